"""Segmenters are evaluated on scenes: the numbers are those of their predictions, whoever asks and however often."""

import numpy as np
import pytest
import torch
from segmenting import segment
from torch import nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import evaluate, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca.corruptions import corrupt
from robustbench_kpca.data.scenes import ArrayScenes
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.tasks.segmentation.pages import PAGES

GRID = [
    {"corruptions": ["gaussian_noise", "zoom_blur"], "severities": [1, 5]},
    {"corruptions": ["jpeg_compression"], "severities": [3]},
]
CELLS = [("none", 0)] + [(part, s) for part in GRID[0]["corruptions"] for s in (1, 5)] + [("jpeg_compression", 3)]
NAMES = ("dark", "red", "green", "blue")


class ByColour(nn.Module):
    """Four classes by a linear map of a slightly blurred colour; counts its calls, and can be told to fail at one."""

    classes, window = 4, 32

    def __init__(self, fail_at=None, gain=1.0):
        super().__init__()
        self.calls, self.fail_at = 0, fail_at
        self.register_buffer("weight", gain * torch.tensor([[-1.0, -1, -1], [2, -1, -1], [-1, 2, -1], [-1, -1, 2]]))
        self.eval()

    def forward(self, x):
        self.calls += 1
        if self.calls == self.fail_at:
            raise KeyboardInterrupt
        x = F.avg_pool2d(x, 3, 1, 1)
        return torch.einsum("kc,bchw->bkhw", self.weight, x) + torch.tensor([0.8, 0, 0, 0])[:, None, None]


@pytest.fixture(scope="module")
def scenes():
    """Eight scenes of different sizes: coloured patches with noise, in part of no class."""
    rng = np.random.default_rng(0)
    images, masks = [], []
    for number in range(8):
        height, width = int(rng.integers(32, 70)), int(rng.integers(32, 70))
        coarse = rng.integers(0, 4, (6, 6))
        mask = np.kron(coarse, np.ones((12, 12), np.int16))[:height, :width].astype(np.int16)
        colours = np.array([[20, 20, 20], [200, 40, 40], [40, 200, 40], [40, 40, 200]])
        image = np.clip(colours[mask] + rng.normal(0, 60, (height, width, 3)), 0, 255).astype(np.uint8)
        mask[rng.random(mask.shape) < 0.1] = -1
        if number == 0:
            mask[:] = -1
            mask[3, 4] = 1  # one pixel alone has a class
        images.append(image)
        masks.append(mask)
    return ArrayScenes(images, masks, NAMES, name="patches")


def counted(model, scenes, cell=("none", 0), **windows):
    rows = []
    for index, name in enumerate(scenes.ids):
        image = scenes.image(index)
        if cell[1]:
            image = corrupt(image[None], cell[0], cell[1], seed=0, ids=[name])[0]
        truth, said = scenes.mask(index), segment(model, image, **windows)
        for label in range(4):
            row = [
                int(x[truth >= 0].sum()) for x in ((truth == label) & (said == label), truth == label, said == label)
            ]
            if row[1] + row[2]:
                rows.append([name, *cell, label, *row])
    return rows


def protocol(name="shapes-c", **changes):
    data = load_scenario(name)[1].model_dump(mode="json") | {"grid": GRID}
    windows = {key: changes.pop(key) for key in ("window", "stride") if key in changes}
    data |= {"citations": list(data["citations"]), "inference": data["inference"] | windows} | changes
    data = {key: value for key, value in data.items() if key not in ("corruptions", "severities")}
    return parse_scenario(data, "here")


SMALL = """
title = "Few cells"
citations = []
kind = "corruption"
draws = 1
profile = "imagecorruptions"
mode = "fast"
storage = "none"
frost = "generated"
clean = true
reference = "none"
[[grid]]
corruptions = ["gaussian_noise", "zoom_blur"]
severities = [1, 5]
[[grid]]
corruptions = ["jpeg_compression"]
severities = [3]
[inference]
window = 32
stride = 0
scales = [1.0]
flip = false
resize = "none"
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def test_outcomes_are_the_counts_of_predictions(scenes, small):
    model = ByColour()
    record = evaluate(model, scenes, protocol=small, audit=False)
    expected = [row for cell in CELLS for row in counted(model, scenes, cell)]
    assert [list(row.values()) for row in record.outcomes.rows()] == expected
    sizes = [scenes.image(index).shape for index in range(len(scenes))]
    assert record.passes.forwards == len(CELLS) * sum(-(-height // 32) * -(-width // 32) for height, width, _ in sizes)
    assert record.passes.backwards == 0
    assert record.spec.batch_size == 64
    one = record.outcomes.where(record.outcomes["sample"] == "0")
    assert one["truth"].sum() == len(CELLS)


def test_together_is_the_same_as_one_by_one_whatever_the_batch(scenes, small, tmp_path):
    models = {"plain": ByColour(), "odd": ByColour(gain=-0.7)}
    both = evaluate(models, scenes, protocol=small, out=tmp_path / "both")
    for record, (name, model) in zip(both, models.items(), strict=True):
        alone = evaluate(model, scenes, protocol=small, name=name, workers=2, batch_size=3, audit=False)
        assert record.outcomes.to_csv() == alone.outcomes.to_csv()
        assert record.metrics == alone.metrics
        assert record.passes == alone.passes
    kept = evaluate(models, scenes, protocol=small, out=tmp_path / "both")
    assert [record.created for record in kept] == [record.created for record in both]


@pytest.mark.parametrize("fail_at", [2, 15])
def test_an_interrupted_run_goes_on_where_it_stopped(scenes, small, tmp_path, monkeypatch, fail_at):
    monkeypatch.setattr(Journal, "due", lambda self: True)
    asked = {"protocol": small, "batch_size": 4, "name": "m", "out": tmp_path / "out"}
    whole = evaluate(ByColour(), scenes, **{**asked, "out": None}, audit=False)
    with pytest.raises(KeyboardInterrupt):
        evaluate(ByColour(fail_at=fail_at), scenes, **asked, audit=False)
    assert not list((tmp_path / "out").glob("*.json"))
    model = ByColour()
    resumed = evaluate(model, scenes, **asked, audit=False)
    assert resumed.outcomes.to_csv() == whole.outcomes.to_csv()
    assert resumed.passes == whole.passes
    fresh = ByColour()
    evaluate(fresh, scenes, **{**asked, "out": None}, audit=False)
    assert fail_at < 7 or model.calls < fresh.calls
    assert not list((tmp_path / "out").glob(".*"))


def test_the_clean_protocol_is_the_clean_cell_and_settings_reach_every_part(scenes, small):
    model = ByColour()
    clean = evaluate(model, scenes, protocol="segmentation", audit=False)
    grid = evaluate(model, scenes, protocol=small, audit=False)
    rows = grid.outcomes.where(grid.outcomes["severity"] == 0)
    assert rows.rows() == clean.outcomes.rows()
    assert {name: grid.metrics[name] for name in clean.metrics} == clean.metrics
    assert set(clean.metrics) == {"pixel_accuracy", "mean_accuracy", "miou"}
    overlapping = evaluate(model, scenes, protocol="segmentation", stride=20, audit=False)
    assert overlapping.passes.forwards > clean.passes.forwards
    assert [list(row.values()) for row in overlapping.outcomes.rows()] == counted(model, scenes, stride=20)
    label, scenario = load_scenario("ade20k-c-kamann", {"severities": [2]})
    assert label == "ade20k-c-kamann+severities=2"
    assert {severity for _, severity in scenario.cells} == {0, 2}
    assert len(scenario.names) == 16


def unnamed(record):
    """The same record without names of classes."""
    data = record.spec.data.model_copy(update={"class_names": None})
    return record.model_copy(update={"spec": record.spec.model_copy(update={"data": data})}).attach(record.outcomes)


def test_tables_by_corruption_and_class(scenes, small):
    record = evaluate(ByColour(), scenes, protocol=small, audit=False)
    entries = {(entry["corruption"], entry["severity"]): entry for entry in PAGES.cells(record)}
    assert list(entries) == CELLS
    assert entries["none", 0]["miou"] == pytest.approx(record.metrics["miou"].value)
    assert np.mean(entries["none", 0]["iou"]) == pytest.approx(record.metrics["miou"].value)
    table = PAGES.by_corruption(record)
    assert table.loc["zoom_blur", "5"] == pytest.approx(100 * (1 - entries["zoom_blur", 5]["miou"]))
    assert np.isnan(table.loc["jpeg_compression", "5"])
    assert 1 - table["mean"].mean() / 100 == pytest.approx(record.metrics["corrupted_miou"].value)
    curve = PAGES.along_severity(record)
    assert set(curve) == {0, 1, 3, 5}
    assert curve[0].value == pytest.approx(record.metrics["miou"].value)
    assert curve[5].low < curve[5].value < curve[5].high
    by_class = PAGES.by_class(unnamed(record))
    assert by_class["pixels"].sum() == pytest.approx(100)
    assert by_class["clean IoU"].mean() == pytest.approx(100 * record.metrics["miou"].value)
    assert by_class["corrupted IoU"].mean() == pytest.approx(100 * record.metrics["corrupted_miou"].value)
    named = PAGES.by_class(record)
    assert named.index.tolist() == list(NAMES)
    assert np.array_equal(named.to_numpy(), by_class.to_numpy())


def test_an_attack_keeps_the_worst_picture(scenes):
    same = ArrayScenes(
        [scenes.image(i)[:32, :32] for i in range(1, 4)], [scenes.mask(i)[:32, :32] for i in range(1, 4)], NAMES
    )
    record = evaluate(ByColour(), same, protocol="seg-pgd20-linf-8_255", steps=3, audit=False)
    assert (record.outcomes.task, record.outcomes.kind) == ("segmentation", "attack")
    clean = evaluate(ByColour(), same, protocol="segmentation", audit=False)
    for name in clean.metrics:
        assert record.metrics[name] == clean.metrics[name]
        assert record.metrics[f"robust_{name}"].value < clean.metrics[name].value
    whole = record.outcomes.where(record.outcomes["class"] == -1)
    assert record.passes.backwards == whole["backwards"].sum() > 0
    assert record.passes.forwards == 3 + whole["forwards"].sum()
    assert (whole["linf"] <= 8 / 255 + 1e-6).all()


def test_model_data_and_protocol_must_fit(scenes):
    with pytest.raises(BadInputError, match=r"\(64, 4, 32, 32\)"):
        evaluate(ByColour(), "digits", protocol="clean", audit=False)
    stated, default = (evaluate(ByColour(), scenes, protocol=one).outcomes for one in ("segmentation", "clean"))
    assert stated.digest() == default.digest()  # without [inference]: windows of the model's own size, side by side
    with pytest.raises(BadInputError, match="mode = 'stored'"):
        evaluate(ByColour(), scenes, protocol="imagenet-c", reference="none")
    with pytest.raises(BadInputError, match=r"inference.*'digits'"):
        evaluate(load_model("vit_digits"), "digits", protocol="segmentation", audit=False)
    with pytest.raises(BadInputError, match=r"\(64, 10\)"):
        evaluate(load_model("vit_digits"), scenes, protocol="segmentation", window=32, audit=False)
    few = ArrayScenes([scenes.image(1)], [np.minimum(scenes.mask(1), 1)], ("a", "b"))
    with pytest.raises(BadInputError, match=r"4 classes.*'scenes' has 2"):
        evaluate(ByColour(), few, protocol="segmentation", audit=False)
    with pytest.raises(BadInputError, match="window"):
        evaluate(load_model("vit_digits"), scenes, protocol="segmentation", audit=False)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"grid": [], "clean": False}, "grid"),
        ({"grid": [*GRID, {"corruptions": ["zoom_blur"], "severities": [5]}]}, "zoom_blur.*twice"),
        ({"grid": [{"corruptions": ["fog"], "severities": [6]}]}, "severity 6"),
        ({"window": 32, "stride": 33}, "stride = 33"),
        ({"mode": "exact", "grid": [{"corruptions": ["frost"], "severities": [1]}]}, "frost = 'original'"),
    ],
)
def test_protocols_that_cannot_be(changes, match):
    with pytest.raises(BadInputError, match=match):
        protocol(**changes)


def test_a_scene_too_small_for_a_corruption_is_named_before_anything_is_measured(scenes):
    tiny = ArrayScenes(
        [scenes.image(1), scenes.image(2)[:1, :1], scenes.image(3)],
        [np.zeros(scenes.size(1), int), np.zeros((1, 1), int), np.zeros(scenes.size(3), int)],
        NAMES,
        ids=["large", "tiny", "also large"],
    )
    model = ByColour()
    asked = {"protocol": "shapes-c", "corruptions": ["pixelate"], "severities": [5]}
    with pytest.raises(BadInputError, match=r"'tiny'.*pixelate .*1 x 1"):
        evaluate(model, tiny, **asked, audit=False)
    assert model.calls == 1, "the probe's"
