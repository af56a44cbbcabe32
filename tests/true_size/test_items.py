"""Items of the packs that follow a training or diagnose a network, made by `rbk reproduce` at the paper's scale.

Their trainings are of one epoch, on an image of each class, and their networks have 16 tokens and two layers. The
claims about pretrained networks draw their images from all 50,000, and show them to a network of the published size.
"""

import pytest
import timm
import torch
import trees
from form import WHOLE, measured
from safetensors.torch import save_file

from robustbench_kpca.cli.main import main
from robustbench_kpca.study.reproduction import pack

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2}
FEW = {"epochs": 1, "warmup_epochs": 0, "batch_size": 250, "images.workers": 0, "precision": "fp32"}
pytestmark = pytest.mark.filterwarnings("ignore:constrained_layout")  # long names are wider than a figure
ITEMS = {
    "teo2024": ("figure-1", "figure-2", "figure-4"),
    "chen2023": ("low-rank", "training"),
    "saritas2025": ("training",),
}


@pytest.fixture
def small(monkeypatch):
    """Let each training of a pack be a short one of a small network."""
    load, changes = pack.load_pack, FEW | {f"model_options.{key}": value for key, value in SMALL.items()}

    def shrunk(name):
        title, content, items = load(name)
        arms = {
            role: arm.model_copy(update={"set": {**arm.set, **changes}, "keep_every": min(arm.keep_every, 1)})
            if arm.data == "imagenet"
            else arm
            for role, arm in content.paper.arms.items()
        }
        return title, content.model_copy(update={"paper": content.paper.model_copy(update={"arms": arms})}), items

    monkeypatch.setattr(pack, "load_pack", shrunk)


@pytest.mark.skipif(not WHOLE, reason="minutes")
@pytest.mark.parametrize("name", ITEMS)
def test_items_of_trainings_are_made(name, small, tmp_path, types_unchecked, capsys):
    data, out = tmp_path / "data", tmp_path / "out"
    trees.make(data, 1 / 1282, ["imagenet", "imagenet/train"])
    words = [f"--item={item}" for item in ITEMS[name]]
    with measured(f"{', '.join(ITEMS[name])} of {name}, small networks", 1_000):
        assert main(["reproduce", name, *words, f"--data=imagenet:{data / 'imagenet'}", "-o", str(out), "-q"]) == 0
    done, _, steps = capsys.readouterr().out.partition(" steps are done")[0].split("\n")[-1].partition(" of ")
    assert done == steps
    assert all((out / item / "README.md").is_file() for item in ITEMS[name])


@pytest.mark.skipif(not WHOLE, reason="minutes")
def test_claims_are_tested_on_a_network_of_the_published_size(root, tmp_path, types_unchecked):
    """One of the ten networks, with random weights; the others are absent."""
    name = "deit_tiny_distilled_patch16_224.fb_in1k"
    with torch.random.fork_rng():
        save_file(timm.create_model(name).state_dict(), tmp_path / "weights.safetensors")
    words = [f"--item=claim-{number}" for number in (1, 2, 3)] + [f"--data=imagenet:{root / 'imagenet'}"]
    words += ["--checkpoint", f"timm:{name}={tmp_path / 'weights.safetensors'}", "-o", str(tmp_path / "out"), "-q"]
    with measured("claims 1 to 3 of saritas2025, one network", 50_000):
        assert main(["reproduce", "saritas2025", *words]) == 0
    assert len(list((tmp_path / "out").rglob("diagnosis.json"))) == 6
