"""`rbk images draw segmentation` as a user meets it: every panel is what it claims to be, and errors are one line."""

import importlib
import json
import os

import numpy as np
import pytest
from PIL import Image
from segmenting import segment

from robustbench_kpca import evaluate
from robustbench_kpca.cli.main import main
from robustbench_kpca.corruptions import corrupt
from robustbench_kpca.corruptions.shared.storage import store
from robustbench_kpca.data.load import load_data
from robustbench_kpca.report.pictures import grid, render
from robustbench_kpca.tasks.segmentation.drawing import coloured, legend_of

MODEL = """
import torch

class ByRed(torch.nn.Module):
    classes, window = CLASSES, 16

    def forward(self, x):
        '''Class 1 where red is above a half, else class 0.'''
        logits = torch.zeros(len(x), self.classes, *x.shape[2:])
        logits[:, 1] = x[:, 0] - 0.5
        return logits

build = ByRed
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(os, "environ", os.environ.copy())


def model(folder, classes: int = 8, name: str = "byred") -> str:
    (folder / f"{name}.py").write_text(MODEL.replace("CLASSES", str(classes)))
    return f"{name}:build"


def rbk(*arguments: str) -> int:
    return main(["images", "draw", "segmentation", *arguments])


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn, before it is rendered."""
    kept = []
    monkeypatch.setattr(
        "robustbench_kpca.report.pictures.render", lambda drawing: (kept.append(drawing), render(drawing))[1]
    )
    return kept


def test_panels_are_image_truth_prediction_corrupted_and_its_prediction(tmp_path, capsys, drawn):
    options = ["--images", "2", "--corruption", "gaussian_noise", "--severity", "4", "--seed", "7"]
    assert rbk("-m", model(tmp_path), *options, "-o", "x.png") == 0
    [shown] = drawn
    scenes = load_data("shapes", limit=2)
    right = np.zeros(2)
    assert len(shown.rows) == 2
    for index, row in enumerate(shown.rows):
        clean, truth = scenes.image(index), scenes.mask(index)
        bad = corrupt(clean[None], "gaussian_noise", 4, 7, ids=[scenes.ids[index]])[0]
        seen = [(image[..., 0] > 127).astype(int) for image in (clean, bad)]
        expected = [clean, scenes.palette[truth], scenes.palette[seen[0]], bad, scenes.palette[seen[1]]]
        for panel, want in zip(row, expected, strict=True):
            assert np.array_equal(panel, want)
        right += [(prediction == truth).sum() / truth.size / 2 for prediction in seen]
        assert scenes.ids[index] in shown.row_titles[index]
    assert f"{100 * right[0]:.1f} % → {100 * right[1]:.1f} %" in capsys.readouterr().out
    assert any("gaussian_noise 4" in title for title in shown.column_titles)
    there = {0, 1, *np.unique([scenes.mask(0), scenes.mask(1)]).tolist()}
    names = [name for name, _ in shown.legend]
    assert [name in names for name in scenes.class_names] == [label in there for label in range(8)]
    assert "ignored" not in names


WAYS = {"resize": "short-side", "window": 32, "stride": 20, "storage": "jpeg-q85"}


def test_a_protocol_is_drawn_as_it_is_measured(tmp_path, drawn):
    """Every panel is what the evaluation shows and sees, and the pixels that are right are those that it counts."""
    settings = [part for key, value in WAYS.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    asked = ["-p", "shapes-c", *settings, "--corruption", "snow", "--severity", "5", "--seed", "3", "--images", "2"]
    assert rbk("-m", model(tmp_path), *asked, "-o", "x.png") == 0
    [shown] = drawn
    scenes = load_data("shapes", limit=2)
    network = importlib.import_module("byred").build().eval()
    cells = {"corruptions": ["snow"], "severities": [5]}
    record = evaluate(network, scenes, protocol="shapes-c", seed=3, **WAYS, **cells, audit=False)
    for name, title in zip(scenes.ids, shown.row_titles, strict=True):
        own = record.outcomes.where(record.outcomes["sample"] == name)
        parts = [own.where(own["severity"] == level) for level in (0, 5)]
        shares = [100 * part["intersection"].sum() / part["truth"].sum() for part in parts]
        assert " → ".join(f"{share:.1f} %" for share in shares) in title
    looked = {key: value for key, value in WAYS.items() if key != "storage"}
    for index, row in enumerate(shown.rows):
        corrupted = store(corrupt(scenes.image(index)[None], "snow", 5, 3, ids=[scenes.ids[index]])[0])
        assert np.array_equal(row[3], corrupted)
        for image, seen in ((scenes.image(index), row[2]), (corrupted, row[4])):
            assert np.array_equal(seen, scenes.palette[segment(network, image, **looked)])
    plain = segment(network, corrupted, window=32, stride=20)
    assert not np.array_equal(scenes.palette[plain], row[4])


def test_a_png_of_images_of_several_sizes(tmp_path, capsys, drawn):
    rng = np.random.default_rng(0)
    (tmp_path / "set" / "images").mkdir(parents=True)
    (tmp_path / "set" / "masks").mkdir()
    for name, size in (("wide", (20, 50)), ("tall", (60, 25))):
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(tmp_path / f"set/images/{name}.png")
        Image.fromarray(rng.integers(0, 3, size, dtype=np.uint8)).save(tmp_path / f"set/masks/{name}.png")
    (tmp_path / "set" / "classes.csv").write_text("id,name\n0,low\n1,high\n2,ignore\n")
    assert rbk("-m", model(tmp_path, 2, "two"), "--data", "masks:set", "-o", "x.png") == 0
    assert "2 scenes" in capsys.readouterr().out
    with Image.open(tmp_path / "x.png") as file:
        assert min(file.size) > 400
    [shown] = drawn
    assert "ignored" in [name for name, _ in shown.legend]
    assert [len(row) for row in shown.rows] == [3, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "x.jpg"], "ends in .png"),
        (["--corruption", "mist"], "'mist'"),
        (["-p", "shapes-c", "--corruption", "word_swap"], "no profile 'imagecorruptions'"),
        (["--data", "shape"], "did you mean 'shapes'"),
        (["--data", "shapes", "--split", "test"], "'test'"),
        (["--set", "eps=1"], "'eps'"),
        (["-p", "shapes-c", "--set", "severities=[5]"], "--severity"),
        (["-p", "pgd20-linf-8_255"], "'pgd20-linf-8_255'"),
        (["-p", "shapes-c", "--corruption", "frost", "--set", "mode=exact"], "frost = 'original'"),
        (["-p", "shapes-c", "--corruption", "frost", "--set", "frost=original"], "--frost"),
        (["--set", "stride=99"], "0 < stride <= window"),
        (["--data", "masks:nowhere"], "nowhere"),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, arguments, message):
    assert rbk("-m", model(tmp_path), *arguments) == 2
    error = capsys.readouterr().err
    assert message in " ".join(error.split())
    assert "Traceback" not in error
    assert not list(tmp_path.glob("*.png"))


def test_what_is_of_no_class_is_black_and_rare_classes_are_counted():
    palette = np.arange(1, 301).astype(np.uint8).reshape(100, 3)
    mask = np.array([[0, 99, -1]], np.int16)
    assert coloured(mask, palette).tolist() == [[[1, 2, 3], palette[99].tolist(), [0, 0, 0]]]
    names = [str(label) for label in range(100)]
    assert [name for name, _ in legend_of([mask], names, palette)] == ["0", "99", "ignored"]
    many = np.repeat(np.arange(100), np.arange(1, 101)).reshape(50, 101)
    legend = legend_of([many], names, palette)
    assert [name for name, _ in legend] == [*names[60:], "(60 rarer ones)"]


def test_names_that_look_like_markup_are_only_names():
    """A file's name or a class's is anybody's: a $ starts no formula."""
    image = np.zeros((4, 6, 3), np.uint8)
    titles = [["<i>.png $\\oops$"], ["$x"]]
    legend = [("<script>", (1, 2, 3)), ("$\\notatexcommand$", (4, 5, 6)), ("_underscored", (7, 8, 9))]
    assert grid([[image]], *titles, legend=legend).startswith(b"\x89PNG")
