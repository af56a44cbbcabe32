"""The audit asks segmenters what it asks classifiers: honest ones pass, and planted fakes are caught or known."""

import json

import numpy as np
import pytest
import torch
from fakes import PER_PIXEL, fake, refusal
from segmenting import PerPixel

from robustbench_kpca import evaluate, load_data, load_model, load_record
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.audit.answers import worse
from robustbench_kpca.audit.budgets import resolved
from robustbench_kpca.audit.checks import CHECKS
from robustbench_kpca.audit.context import AuditContext
from robustbench_kpca.audit.run import audit
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.scenes import ArrayScenes
from robustbench_kpca.protocols.presets import roots
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.records.audit import Audit
from robustbench_kpca.records.audit_versions import limits
from robustbench_kpca.records.record import find_records
from robustbench_kpca.tasks import task_named

CPU = torch.device("cpu")
TASK = task_named("segmentation")
COMPUTE = TASK.compute
HONEST = ("symvit_shapes", "rpc_symvit_shapes")
WEIGHT = PerPixel(-0.2).weight.detach()
EPS = 8 / 255
REACH = float(WEIGHT.abs().sum()) * EPS  # furthest that the score of a pixel can be moved


class Whole(PerPixel):
    def forward(self, x):
        return super().forward(x).mean((2, 3))


def scenes(count=4, height=8, width=8, truth=lambda score: score > 0):
    """Scenes of colours away from black and white, a fifth of them to be ignored; labels follow from the score."""
    rng = np.random.default_rng(0)
    images = [rng.integers(40, 215, (height, width, 3), dtype=np.uint8) for _ in range(count)]
    masks = []
    for image in images:
        score = image.astype(float) / 255 @ WEIGHT.double().numpy() - 0.2
        masks.append(np.where(rng.random(score.shape) < 0.2, -1, truth(score).astype(int)))
    return ArrayScenes(images, masks, ["low", "high"])


def context_of(data, model=None, eps="8/255"):
    x, y = COMPUTE.tensors(data)
    model = model or PerPixel(-0.2)
    return AuditContext(TASK, model, Runner(model, len(data), CPU), x, y, eps, Threat("linf", EPS), seed=0)


def flags(done: Audit) -> list[str]:
    return [check.name for check in done.flags]


def values(done: Audit, name: str) -> dict[str, float]:
    return next(check for check in done.checks if check.name == name).values


@pytest.mark.parametrize("name", ["pgd", "apgd-doubled", "segpgd"])
def test_what_is_left_is_the_share_of_pixels_that_cannot_be_flipped(name):
    """A pixel flips if its score is nearer to zero than the ball reaches, whatever the others do."""
    data = scenes()
    expected = []
    for index in range(len(data)):
        score = np.abs(data.image(index).astype(float) / 255 @ WEIGHT.double().numpy() - 0.2)
        known = data.mask(index) >= 0
        assert 0.05 < (score[known] < REACH).mean() < 0.95
        expected.append((score[known] > REACH).mean())
    context = context_of(data)
    assert context.clean.tolist() == [1.0] * len(data)
    np.testing.assert_allclose(context.remaining(name).numpy(), expected, atol=1e-12)
    assert context.failures == {}


def test_what_an_attack_of_an_image_leaves(monkeypatch):
    context = context_of(scenes(truth=lambda score: (score > 0) & (score < 0.05)))
    assert bool(((context.clean > 0) & (context.clean < 1)).all())
    monkeypatch.setattr(context, "attack", lambda *_: 1 / 0)
    assert torch.equal(context.remaining("pgd"), context.clean)
    assert context.failures["pgd"].startswith("ZeroDivisionError")
    than = torch.tensor([1.0, 1.0, 0.5, 0.0], dtype=torch.float64)
    found = torch.tensor([0.0, 0.95, 0.3, 0.4], dtype=torch.float64)
    assert worse(found, than) == 2
    assert worse(found, than, slack=0.3) == 1
    assert worse(than, found) == 1


def test_huge_eps_asks_for_no_more_than_the_answer_to_grey():
    """A model whose answer never changes keeps grey's pixels, and only they are allowed to stay."""
    done = audit(PerPixel(-0.2, blind=True), scenes())
    assert values(done, "huge-eps") == {"standing": 4}
    assert {"huge-eps", "gradients"} <= set(flags(done))
    honest = audit(PerPixel(-0.2), scenes())
    assert values(honest, "huge-eps") == {"standing": 0}
    assert "runs" not in flags(honest)


@pytest.mark.slow
def test_no_flag_is_raised_on_an_honest_segmenter():
    """Of 6 scenes; the records of the shapes board keep the audits of 16, of both bundled segmenters."""
    assert flags(audit(load_model("symvit_shapes"), "shapes", limit=6)) == []
    kept = [load_record(path).audit for root in roots() for path in find_records(root / "leaderboards/shapes")]
    assert {(found.subject.model, found.plan.images, found.flags) for found in kept if found} == {
        (name, 16, ()) for name in HONEST
    }


@pytest.mark.usefixtures("tiny")
def test_a_plan_says_what_segmenters_are_asked():
    done = audit(load_model("rpc_symvit_shapes"), load_data("shapes"), limit=1)
    assert (done.plan.images, done.plan.batch_size) == (1, 1)
    assert {"segpgd", "pgd", "apgd-dlr", "noise"} <= set(done.plan.attacks)
    assert not {"square", "spsa"} & set(done.plan.attacks)
    assert {"slack", "gain"} <= set(done.plan.limits)
    assert set(values(done, "black-box")) == {"noise"}
    assert len(values(done, "surrogate")) == 2
    assert "runs" not in flags(done)


def test_what_classifiers_are_asked_is_what_the_kept_records_say():
    kept = {}
    for root in roots():
        for path in root.glob("leaderboards/*/records/audits/*.audit.json"):
            found = json.loads(path.read_text())
            if found["plan"]["attacks"] and "segpgd" not in found["plan"]["attacks"]:
                kept[found["plan_digest"]] = found["schema_version"], found["plan"]
    assert kept
    for version, plan in kept.values():
        asked = resolved(task_named("classification").compute.audit, plan["eps"], plan.get("level", "full"))
        changed = {"spsa"} if version == 1 else set()  # its probe is in units of eps since version 2 (decision 40)
        newer = set() if version > 2 else {"own-logits"}
        assert {name: one.digest for name, one in asked.items() if name not in changed | newer} == {
            name: one["digest"] for name, one in plan["attacks"].items() if name not in changed
        }
        assert limits(version, plan["images"]) == plan["limits"]


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("size", [(8, 8), (12, 8)])
def test_audit_and_record_know_a_model_by_the_same_answers(size):
    data = scenes(3, *size)
    done = audit(PerPixel(-0.2), data)
    record = evaluate(PerPixel(-0.2), data, protocol="seg-pgd20-linf-1_255", steps=1, batch_size=3, audit=False)
    assert done.subject.probe_sha256 == record.spec.model.probe_sha256
    assert done.subject.data_digest == record.spec.data.digest


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (Whole, scenes, "segmenter"),
        (lambda: PerPixel(-0.2), lambda: load_data("digits", limit=4), "with masks"),
        (lambda: PerPixel(-0.2, classes=3), scenes, "3 classes.*'scenes' has 2"),
    ],
)
def test_what_does_not_fit_is_said(model, data, message):
    with pytest.raises(BadInputError, match=message):
        audit(model(), data(), limit=2)


@pytest.mark.usefixtures("tiny")
def test_an_audit_looks_at_scenes_of_the_commonest_size():
    odd, usual = scenes(1, 6, 8), scenes(3, 8, 8)
    parts = [(odd, 0), *((usual, index) for index in range(3))]
    mixed = ArrayScenes(
        [part.image(index) for part, index in parts], [part.mask(index) for part, index in parts], ["low", "high"]
    )
    assert COMPUTE.audited(mixed, 9).ids == ["1", "2", "3"]
    done = audit(PerPixel(-0.2), mixed)
    assert done.plan.images == 3
    record = evaluate(PerPixel(-0.2), mixed, protocol="seg-pgd20-linf-1_255", steps=1, audit=done)
    assert record.audit == done


@pytest.mark.usefixtures("tiny")
def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    planted = ["--set", "model.base=symvit_shapes", "--set", "model.kind=quantise", "--set", "model.strength=2"]
    asked = ["audit", "fakes:fake", *planted, "--data", "shapes", "--limit", "4", "--json", "-o", "kept"]
    assert main(asked) == 1
    shown = json.loads(capsys.readouterr().out)
    assert "gradients" in {check["name"] for check in shown["checks"] if check["flag"]}
    assert (shown["plan"]["images"], shown["subject"]["split"]) == (4, "val")
    assert len(list(tmp_path.rglob("*.audit.json"))) == 1
    assert main(["audit", "vit_digits", "--data", "shapes"]) == 2
    assert "64 x 64 pixels" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "check"), [("scale", "vanishing-loss"), ("noise", "stochastic"), ("batch", "batch")])
def test_fakes_on_segmenters_that_preflight_refuses(kind, check):
    model = fake("symvit_shapes", kind, len(PER_PIXEL[kind][1]) - 1)
    assert refusal(model, *COMPUTE.tensors(load_data("shapes").take(range(4)))) == check


CAUGHT = {
    ("quantise", 0): {"huge-eps", "gradients", "slope", "ascent"},
    ("quantise", 2): {"huge-eps", "gradients", "slope", "ascent"},
    ("block", 0): {"huge-eps", "slope"},
    ("block", 2): {"huge-eps", "gradients", "slope", "ascent"},
    ("shuffle", 0): {"slope"},
    ("shuffle", 1): {"slope"},
    ("shuffle", 2): {"huge-eps", "slope", "ascent"},
    ("shatter", 1): {"other-loss", "slope"},
    ("shatter", 2): {"huge-eps", "slope", "ascent"},
    ("straight-through", 1): {"slope"},
}


def flagged(kind, strength, names, count):
    """Those of the questions that flag a fake on `count` scenes, which preflight lets through."""
    model = fake("symvit_shapes", kind, strength)
    images, labels = COMPUTE.tensors(COMPUTE.audited(load_data("shapes"), count))
    assert refusal(model, images, labels) == ""
    context = AuditContext(TASK, model, Runner(model, count, CPU), images, labels, "8/255", Threat("linf", 8 / 255), 0)
    return {name for name in names if CHECKS[name](context).flag}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "strength"), sorted(CAUGHT))
def test_fakes_on_segmenters_that_the_audit_flags(kind, strength):
    """Those questions alone are asked that tell."""
    assert flagged(kind, strength, CAUGHT[kind, strength], 8) == CAUGHT[kind, strength]


TELLING = {
    ("quantise", 0): "huge-eps",
    ("quantise", 2): "gradients",
    ("block", 2): "ascent",
    ("shuffle", 0): "slope",
    ("straight-through", 1): "slope",
}


@pytest.mark.parametrize(("kind", "strength"), sorted(TELLING))
def test_fakes_on_segmenters_are_flagged_on_four_scenes_by_one_question(kind, strength):
    name = TELLING[kind, strength]
    assert name in CAUGHT[kind, strength]
    assert flagged(kind, strength, {name}, 4) == {name}
