"""Attacks where every pixel has a label: what can flip does, what is to be ignored counts nowhere, the worst stays."""

import attack_checks
import numpy as np
import pytest
import torch
from attack_checks import rand
from segmenting import PerPixel, segment
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.passes import most_passes, passes_of
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca._engine.inference.sliding_window import through_windows
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.audit.preflight import inspect
from robustbench_kpca.data.scenes import ArrayScenes
from robustbench_kpca.evaluation.api import evaluate
from robustbench_kpca.evaluation.part import attack_all
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.table import COUNTS
from robustbench_kpca.tasks import task_named

CPU = torch.device("cpu")
SEGMENTATION = task_named("segmentation").compute
PGD = {"attack": "pgd", "restarts": 1, "steps": 10, "step_size": "0.25 eps", "random_start": False}
SEGPGD = PGD | {"attack": "segpgd"}
APGD = {"attack": "apgd", "restarts": 1, "steps": 20, "targets": 1, "rho": 0.75}
SHRINKING = {"attack": "apgd_shrinking", "restarts": 1, "steps": 30, "rho": 0.75}


class Three(nn.Module):
    """A 1 x 1 convolution to three classes, among which grey is a tie."""

    def __init__(self):
        super().__init__()
        weight = rand(5, 3, 3).float()
        self.weight = nn.Parameter(weight - weight.mean(1, keepdim=True))

    def forward(self, x):
        return torch.einsum("bchw,kc->bkhw", x, self.weight)


class Depth(nn.Module):
    """Class 1 where the mean colour is further than `half` from 0.45: a valley of class 0."""

    def __init__(self, half=0.1):
        super().__init__()
        self.half = half

    def forward(self, x):
        score = (x.mean(1) - 0.45).abs() - self.half
        return torch.stack([torch.zeros_like(score), score], 1)


def scenes(count=5, height=6, width=8, classes=2, seed=0, model=None):
    """Scenes of middling colours; a fifth of their pixels is to be ignored, and some labels are wrong."""
    rng = np.random.default_rng(seed)
    images = [rng.integers(90, 165, (height, width, 3), dtype=np.uint8) for _ in range(count)]
    masks = []
    for image in images:
        truth = rng.integers(0, classes, (height, width))
        if model is not None:
            said = model(pixels(image)[None]).argmax(1)[0].numpy()
            truth = np.where(rng.random(said.shape) < 0.85, said, truth)
        masks.append(np.where(rng.random(truth.shape) < 0.2, -1, truth))
    return ArrayScenes(images, masks, [f"class {k}" for k in range(classes)])


def pixels(image):
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255


def measure(model, data, *stages, batch_size=3, journal=None, **fields):
    """Return outcomes and the samples they are of."""
    kept = {}
    chosen = attack_checks.scenario(stages or (PGD,), **({"policy": "strongest", "eps": 0.05} | fields))
    presentation = SEGMENTATION.presentation(model, "clean")
    outcomes = attack_all(
        Runner(model.eval(), batch_size, CPU, presentation=presentation), data, chosen,
        seed=0, workers=0, journal=journal, progress=None, keep=lambda sample: kept.update({sample.index: sample}),
    )  # fmt: skip
    return outcomes, [kept.get(index) for index in range(len(data))]


def wholes(outcomes):
    """One row a scene: the totals of its worst picture, those of the clean one, and the passes."""
    scenes = {}
    for row in outcomes.rows():
        if row["class"] == -1:
            scenes.setdefault(row["sample"], []).append(row)
    found = []
    for clean, *others in scenes.values():
        assert clean["picture"] == 0
        worst = min((clean, *others), key=lambda row: row["intersection"])
        worst = others[0] if others and worst is clean else worst  # as many right pixels, but a smaller margin
        before = {
            "clean_right": clean["intersection"],
            "clean_predicted": clean["predicted"],
            "worst_by": worst["attack"],
        }
        found.append(worst | before | {name: clean[name] for name in COUNTS})
    return found


@pytest.fixture
def split():
    """A model, scenes, the radius that reaches half of the pixels, and how many each scene then keeps right."""
    model = PerPixel(bias=-0.2)
    data = scenes(model=model)
    score = torch.stack([model(pixels(data.image(i))[None])[0, 1].detach() for i in range(len(data))])
    reach = score.abs() / model.weight.detach().abs().sum()
    eps = float(reach.flatten().sort().values[reach.numel() // 2 - 1 : reach.numel() // 2 + 1].mean())
    assert eps < 0.3, "the box must be further away"
    truth = torch.stack([torch.from_numpy(data.mask(i)) for i in range(len(data))])
    right = (score > 0) == (truth == 1)
    stand = (right & (reach > eps) & (truth >= 0)).flatten(1).sum(1).tolist()
    before = (right & (truth >= 0)).flatten(1).sum(1).tolist()
    assert all(0 < after < clean for after, clean in zip(stand, before, strict=True))
    return model, data, eps, stand, before


STAGES = [PGD, PGD | {"random_start": True}, SEGPGD, SEGPGD | {"random_start": True}]
STAGES += [APGD | {"loss": loss} for loss in ("ce", "dlr")]
STAGES += [SHRINKING | {"loss": loss} for loss in ("ce_masked", "ce_masked_by_class", "js")]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: "-".join(str(stage.get(k, "")) for k in ("attack", "loss")))
def test_exactly_the_pixels_within_eps_of_their_hyperplane_flip(stage, split):
    model, data, eps, stand, before = split
    found = wholes(measure(model, data, stage, eps=eps)[0])
    assert [row["intersection"] for row in found] == stand
    assert [row["clean_right"] for row in found] == before
    assert [row["linf"] for row in found] == pytest.approx([eps] * len(found), abs=1e-5)
    assert {row["worst_by"] for row in found} == {stage["attack"]}


def test_exact_pass_counts(split):
    """Ten steps, the last iterate, and the worst image once more; three and the last, twice over, and the worst."""
    model, data, eps, _, _ = split
    for stage in (PGD, SEGPGD):
        found = wholes(measure(model, data, stage, eps=eps)[0])
        assert {(row["forwards"], row["backwards"]) for row in found} == {(12, 10)}
    most = most_passes(load_scenario("segpgd20-linf-4_255", {"steps": 10})[1], 3, graded=True)
    assert (most.forwards, most.backwards) == (1 + 12, 10), "the clean image is not counted as a pass of the attack"
    segpgd = ATTACKS.get("segpgd")(steps=10, step_size="0.25 eps", random_start=False)
    assert passes_of(segpgd, 2) == (11, 10)
    short = PGD | {"steps": 3, "restarts": 2, "random_start": True}
    found = wholes(measure(model, data, PGD, short, eps=eps)[0])
    assert {(row["forwards"], row["backwards"]) for row in found} == {(21, 16)}


def test_counts_are_those_of_the_images_kept():
    """Recounted from the worst image by a plain forward pass, class by class."""
    data = scenes(classes=3, model=Three(), seed=3)
    model = Three()
    outcomes, samples = measure(model, data, SEGPGD, batch_size=2, eps=0.05)
    rows = outcomes.rows()
    for index, sample in enumerate(samples):
        mask, clean = data.mask(index), pixels(data.image(index))
        assert float((sample.worst - clean).abs().max()) <= 0.05 + 1e-6
        worst, before = (model(image[None]).argmax(1)[0].numpy()[mask >= 0] for image in (sample.worst, clean))
        truth = mask[mask >= 0]
        for number, said in ((0, before), (1, worst)):
            own = [row for row in rows if (row["sample"], row["picture"]) == (data.ids[index], number)]
            expected = [
                (k, *(int(np.sum(part)) for part in ((truth == k) & (said == k), truth == k, said == k)))
                for k in range(3)
            ]  # fmt: skip
            names = ("class", "intersection", "truth", "predicted")
            assert [tuple(row[name] for name in names) for row in own[1:]] == [row for row in expected if any(row[1:])]
            assert [own[0][name] for name in names] == [-1, *np.array(expected)[:, 1:].sum(0).tolist()]
        assert np.sum(worst == truth) < np.sum(before == truth)


def test_pixels_to_ignore_are_left_as_they_are():
    """Pixels are independent: without a label to leave, there is no slope."""
    model = PerPixel(bias=-0.2)
    data = scenes(model=model)
    for stage in (PGD, SEGPGD):
        for index, sample in enumerate(measure(model, data, stage)[1]):
            moved = (sample.worst - sample.clean).abs().amax(0).numpy()
            assert np.all(moved[data.mask(index) == -1] == 0)
            assert np.all(moved[data.mask(index) != -1] > 0)


def test_the_picture_of_fewest_right_pixels_is_kept_whenever_it_was_met():
    """Steps of 0.09 lead down into the valley and, for the dark pixels, out of it on the other side."""
    image = np.full((1, 4, 3), 153, dtype=np.uint8)  # 0.6
    image[0, 2:] = 143  # 0.56
    data = ArrayScenes([image], [np.ones((1, 4), int)], ["valley", "hill"])
    stage = PGD | {"steps": 4, "step_size": 0.09}
    outcomes, (sample,) = measure(Depth(0.1), data, stage, eps=0.36)
    assert float(sample.worst[0, 0, 0]) == pytest.approx(0.6 - 0.09)
    assert wholes(outcomes)[0]["intersection"] == 0
    again, (last,) = measure(Depth(0.015), data, PGD | {"steps": 2, "step_size": 0.045}, eps=0.36)
    assert wholes(again)[0]["intersection"] == 4, "no step lands in the trench"
    assert wholes(again)[0]["worst_by"] == "pgd", "but nearer to it, which a smaller margin shows"
    assert float(last.worst[0, 0, 0]) == pytest.approx(0.6 - 0.09)


def test_the_clean_picture_is_the_worst_where_nothing_helps():
    """Class 0 whatever the pixels: no slope, and no image better than the clean one."""

    class Constant(nn.Module):
        def forward(self, x):
            zero = 0 * x.sum(1)
            return torch.stack([zero + 1, zero], 1)

    data = scenes()
    outcomes, samples = measure(Constant(), data, PGD | {"random_start": True})
    for row, sample in zip(wholes(outcomes), samples, strict=True):
        assert (row["worst_by"], row["linf"], row["intersection"]) == ("", 0.0, row["clean_right"])
        assert torch.equal(sample.worst, sample.clean)
        assert row["zero_gradients"] == 10


def test_a_search_stops_only_when_no_pixel_is_right():
    """Policy `stop_at_first`: two scenes whose pixels can all be flipped, at different steps, and one that cannot."""
    image = np.full((2, 2, 3), 128, dtype=np.uint8)
    nearer, further = image.copy(), image.copy()
    nearer[:] += 5
    further[0, 0] += 100
    model = PerPixel(bias=-0.4 * 128 / 255)
    data = ArrayScenes([nearer, further], [np.ones((2, 2), int)] * 2, ["dark", "light"])
    assert bool((model(pixels(nearer)[None]).argmax(1) == 1).all())
    found = wholes(measure(model, data, PGD, policy="stop_at_first")[0])
    assert [row["intersection"] for row in found] == [0, 1]
    assert found[0]["backwards"] < 10
    assert found[1]["backwards"] == 10


class TwoFaced(nn.Module):
    """Like `PerPixel`, but wherever gradients are recorded everything looks wrong."""

    def __init__(self):
        super().__init__()
        self.inner = PerPixel(bias=-0.2)

    def forward(self, x):
        logits = self.inner(x)
        return logits - 100 * logits.detach() if torch.is_grad_enabled() else logits


def test_what_only_a_gradient_pass_sees_is_not_believed(split):
    _, data, eps, _, _ = split
    outcomes, samples = measure(TwoFaced(), data, PGD, eps=eps)
    for row, sample, index in zip(wholes(outcomes), samples, range(len(data)), strict=True):
        mask = data.mask(index)
        said = TwoFaced().inner(sample.worst[None]).argmax(1)[0].numpy()
        assert row["intersection"] == int(np.sum((said == mask) & (mask >= 0)))
        assert row["intersection"] <= row["clean_right"]


def test_fewer_right_pixels_always_score_lower_and_the_margin_decides_between_equals():
    logits, labels = (
        100 * (rand(0, 60, 4, 5, 5) - 0.5),
        torch.from_numpy(np.random.default_rng(0).integers(-1, 4, (60, 5, 5))),
    )
    logits[7, :, 2, 2] = torch.nan
    labels[7, 2, 2] = 1
    prediction, scores = SEGMENTATION.success.judge(logits, labels)
    assert int(prediction[7, 2, 2]) == -1
    right = ((prediction == labels) & (labels >= 0)).flatten(1).sum(1)
    own = logits.nan_to_num().gather(1, labels.clamp_min(0)[:, None])[:, 0]
    others = logits.nan_to_num().scatter(1, labels.clamp_min(0)[:, None], -torch.inf).amax(1)
    means = torch.tensor([float((a - b)[y >= 0].mean()) for a, b, y in zip(own, others, labels, strict=True)])
    means[7] = -torch.inf
    keys = list(zip(right.tolist(), means.tolist(), strict=True))
    assert sorted(range(60), key=lambda i: keys[i]) == scores.argsort().tolist()
    assert torch.equal(scores.floor().long(), right)


def test_every_stage_keeps_its_own_worst_picture(split):
    """As many as each stage finds alone: the stronger one first changes nothing for the weaker one after it."""
    model, data, eps, _, _ = split
    weak = PGD | {"steps": 1, "step_size": "0.3 eps"}
    together = measure(model, data, PGD, weak, eps=eps)[0].rows()
    for number, stage in ((1, PGD), (2, weak)):
        alone = measure(model, data, stage, eps=eps)[0].rows()
        assert [row | {"picture": number} for row in alone if row["picture"] == 1] == [
            row for row in together if row["picture"] == number
        ]
    hits = {(row["sample"], row["picture"]): row["intersection"] for row in together if row["class"] == -1}
    assert all(hits[name, 1] < hits[name, 2] < hits[name, 0] for name in data.ids)


def test_smaller_budgets_count_at_larger_ones(split):
    model, data, eps, _, _ = split
    stage = PGD | {"steps": 3, "step_size": "1 eps"}
    small, large = (wholes(measure(model, data, stage, eps=e)[0]) for e in (eps, 2 * eps))
    both = wholes(measure(model, data, stage, eps=2 * eps, below=[eps])[0])
    for a, b, c in zip(small, large, both, strict=True):
        assert c["intersection"] == min(a["intersection"], b["intersection"])
        assert c["backwards"] == a["backwards"] + b["backwards"] == 6
    useless = PGD | {"steps": 1, "step_size": 1e-9}
    weak = wholes(measure(model, data, useless, eps=2 * eps, below=[eps])[0])
    assert [row["intersection"] for row in weak] == [row["clean_right"] for row in weak]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy": "last"}, "policy = 'last'.*labels = 'true'"),
        ({"labels": "predicted"}, "labels = 'predicted'"),
        ({"stages": [APGD | {"loss": "dlr_targeted"}]}, "'apgd'.*one label"),
        ({"stages": [{"attack": "square", "restarts": 1, "queries": 10, "p_init": 0.8}]}, "'square'.*apgd_shrinking"),
    ],
)
def test_protocols_that_mean_nothing_for_pixels_are_refused(fields, message):
    with pytest.raises(BadInputError, match=message):
        measure(Three(), scenes(classes=3), *fields.pop("stages", [PGD]), **fields)
    chosen = attack_checks.scenario((PGD,), space="normalised", policy="strongest")
    with pytest.raises(BadInputError, match="space = 'normalised'"):
        SEGMENTATION.success.check_protocol(chosen, {})


def mixed():
    """Scenes of three sizes, in turns."""
    parts = [
        scenes(3, model=PerPixel(), seed=seed, **size) for seed, size in enumerate(({}, {"height": 7}, {"width": 5}))
    ]
    order = [(part, index) for index in range(3) for part in parts]
    return ArrayScenes(
        [part.image(index) for part, index in order], [part.mask(index) for part, index in order], parts[0].class_names
    )


def test_scenes_of_different_sizes_are_attacked_alone_and_others_refused(tmp_path):
    model, data = PerPixel().eval(), mixed()
    stage = PGD | {"steps": 3, "random_start": True}
    together = measure(model, data, stage, SEGPGD)[0].rows()
    alone = [row for index in range(9) for row in measure(model, data.take([index]), stage, SEGPGD)[0].rows()]
    assert together == alone
    assert [len(group) for group in data.by_size(range(9))] == [3, 3, 3]
    small = scenes(2)
    with pytest.raises(BadInputError, match=r"label 2 .*2 classes"):
        measure(PerPixel(), scenes(classes=3))
    with pytest.raises(BadInputError, match=r"\(3, 3\).*every pixel"):
        measure(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), small)


class Near(nn.Module):
    """Every pixel is classified by its neighbourhood in the window, at whose edges there is nothing."""

    window, classes = 4, 2

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(rand(1, 2, 3, 3, 3).float() - 0.5)

    def forward(self, x):
        assert x.shape[2:] == (4, 4), "it is shown windows only"
        return nn.functional.conv2d(x, self.weight, padding=1)


@pytest.mark.parametrize("size", [(4, 4), (6, 9), (3, 7)])
def test_attacks_look_through_the_windows_of_the_clean_evaluation(size):
    """The same windows, filling and means, so that the clean numbers of both records are the same."""
    model = Near().eval()
    data = scenes(4, *size, seed=2)
    attacked = evaluate(model, data, protocol="seg-pgd20-linf-8_255", steps=2, eps=0.2, audit=False)
    clean = evaluate(model, data, protocol="segmentation", audit=False)
    for name in ("miou", "pixel_accuracy", "mean_accuracy"):
        assert attacked.metrics[name].value == clean.metrics[name].value
    for index in range(4):
        answer = through_windows(model, pixels(data.image(index))[None], 4).argmax(1)[0].numpy()
        assert np.array_equal(answer, segment(model, data.image(index)))
    assert attacked.metrics["robust_pixel_accuracy"].value < attacked.metrics["pixel_accuracy"].value


def test_preflight_knows_probabilities_of_pixels():
    tensors = SEGMENTATION.tensors(scenes(4, classes=3, model=Three()))
    found = inspect(Runner(nn.Sequential(Three(), nn.Softmax(1)).eval(), 4, CPU), *tensors)
    assert [finding.check for finding in found] == ["probabilities"]
