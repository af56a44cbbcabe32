"""What a run of a pack does with steps that fail, with leftovers, and with time that ends; on a pack of one table."""

from types import SimpleNamespace

import pytest

from robustbench_kpca.reproduction.pack import load_pack
from robustbench_kpca.reproduction.roles import Roles
from robustbench_kpca.reproduction.run import Settings, run
from robustbench_kpca.reproduction.steps import plan

PACK = """
title = "A paper"
source = "Nobody (2026)"
intro = "Said."

[embedded]
intro = "Small."

[embedded.samples]
val = { data = "digits", split = "test" }

[embedded.arms]
plain = { title = "Plain", models = ["vit_digits"] }
other = { title = "Other", models = ["symvit_digits"] }
trained = { title = "Trained", recipe = "vit_digits", seeds = [0, 1], set = { epochs = 2 }, keep_every = 1 }

[paper]
intro = "Large."

[paper.samples]
val = { data = "imagenet", split = "val" }

[paper.arms]
plain = { title = "Plain", models = ["timm:vit_tiny_patch16_224"] }
other = { title = "Other", models = ["timm:deit_tiny_patch16_224"] }
trained = { title = "Trained", recipe = "vit_tiny", seeds = [0, 1], data = "imagenet" }
"""
TABLE = """
kind = "table"
title = "Table 1"
intro = "Both."
arms = ["plain", "other"]
rank_by = "Clean"

[[column]]
title = "Clean"
samples = "val"
protocol = "clean"
metric = "clean_accuracy"
"""
QUIET = SimpleNamespace(
    start=lambda title: lambda *news, **more: None, announce=lambda text: None, audited=lambda audit, kept: None,
    recorded=lambda record: None,
)  # fmt: skip


@pytest.fixture
def pack(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "pack.toml").write_text(PACK)
    (folder / "table-1.toml").write_text(TABLE)
    return folder


def planned(pack, tmp_path, limit=None, **how):
    name, content, items = load_pack(str(pack))
    settings = {"folders": {}, "checkpoints": {}} | how
    roles = Roles(name, content, "embedded", tmp_path / "out", limit=limit, **settings)
    return plan(items, roles), roles


def test_one_damaged_model_fails_alone(pack, tmp_path, few_resamples):
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"no weights")
    steps, roles = planned(pack, tmp_path, 8, checkpoints={"vit_digits": damaged})
    after = {one.step.model.arm: one for one in run(steps, roles, Settings(audit=None), QUIET)}
    assert {arm: one.state for arm, one in after.items()} == {"plain": "failed", "other": "done"}
    assert "damaged.safetensors" in after["plain"].why
