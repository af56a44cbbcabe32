"""`rbk images draw segmentation` as a user meets it: every panel is what it claims to be, and errors are one line."""

import importlib
import json

import numpy as np
import pytest
from PIL import Image
from segmenting import segment

from robustbench_kpca import evaluate
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.load import load_data
from robustbench_kpca.report.pictures import grid, render
from robustbench_kpca.tasks.segmentation.drawing import coloured, legend_of

pytestmark = pytest.mark.usefixtures("elsewhere")

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


def model(folder, classes: int = 8, name: str = "byred") -> str:
    (folder / f"{name}.py").write_text(MODEL.replace("CLASSES", str(classes)))
    return f"{name}:build"


def rbk(*arguments: str) -> int:
    return main(["images", "draw", "segmentation", *arguments])


@pytest.fixture
def drawn(monkeypatch):
    kept = []
    monkeypatch.setattr(
        "robustbench_kpca.report.pictures.render", lambda drawing: (kept.append(drawing), render(drawing))[1]
    )
    return kept


def test_panels_are_image_truth_and_prediction(tmp_path, capsys, drawn):
    assert rbk("-m", model(tmp_path), "--images", "2", "-o", "x.png") == 0
    [shown] = drawn
    scenes = load_data("shapes", limit=2)
    right = 0
    assert len(shown.rows) == 2
    for index, row in enumerate(shown.rows):
        clean, truth = scenes.image(index), scenes.mask(index)
        seen = (clean[..., 0] > 127).astype(int)
        for panel, want in zip(row, [clean, scenes.palette[truth], scenes.palette[seen]], strict=True):
            assert np.array_equal(panel, want)
        right += (seen == truth).sum() / truth.size / 2
        assert scenes.ids[index] in shown.row_titles[index]
    assert f"{100 * right:.1f} % of the pixels" in capsys.readouterr().out
    there = {0, 1, *np.unique([scenes.mask(0), scenes.mask(1)]).tolist()}
    names = [name for name, _ in shown.legend]
    assert [name in names for name in scenes.class_names] == [label in there for label in range(8)]
    assert "ignored" not in names


WAYS = {"resize": "short-side", "window": 32, "stride": 20}


def test_a_protocol_is_drawn_as_it_is_measured(tmp_path, drawn):
    """Every panel is what the evaluation shows and sees, and the pixels that are right are those that it counts."""
    settings = [part for key, value in WAYS.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    assert rbk("-m", model(tmp_path), *settings, "--images", "2", "-o", "x.png") == 0
    [shown] = drawn
    scenes = load_data("shapes", limit=2)
    network = importlib.import_module("byred").build().eval()
    record = evaluate(network, scenes, protocol="segmentation", **WAYS, audit=False)
    for name, title in zip(scenes.ids, shown.row_titles, strict=True):
        own = record.outcomes.where(record.outcomes["sample"] == name)
        assert f"{100 * own['intersection'].sum() / own['truth'].sum():.1f} %" in title
    for index, row in enumerate(shown.rows):
        assert np.array_equal(row[2], scenes.palette[segment(network, scenes.image(index), **WAYS)])
    assert not np.array_equal(scenes.palette[segment(network, scenes.image(1), window=32, stride=20)], row[2])


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
        (["--data", "shape"], "did you mean 'shapes'"),
        (["--data", "shapes", "--split", "test"], "'test'"),
        (["--set", "eps=1"], "'eps'"),
        (["-p", "shapes-c"], "kind clean"),
        (["-p", "pgd20-linf-8_255"], "'pgd20-linf-8_255'"),
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


def test_black_rare_and_marked_up_names_of_classes():
    palette = np.arange(1, 301).astype(np.uint8).reshape(100, 3)
    mask = np.array([[0, 99, -1]], np.int16)
    assert coloured(mask, palette).tolist() == [[[1, 2, 3], palette[99].tolist(), [0, 0, 0]]]
    names = [str(label) for label in range(100)]
    assert [name for name, _ in legend_of([mask], names, palette)] == ["0", "99", "ignored"]
    many = np.repeat(np.arange(100), np.arange(1, 101)).reshape(50, 101)
    legend = legend_of([many], names, palette)
    assert [name for name, _ in legend] == [*names[60:], "(60 rarer ones)"]
    # A file's name or a class's is anybody's: a $ starts no formula.
    image = np.zeros((4, 6, 3), np.uint8)
    titles = [["<i>.png $\\oops$"], ["$x"]]
    legend = [("<script>", (1, 2, 3)), ("$\\notatexcommand$", (4, 5, 6)), ("_underscored", (7, 8, 9))]
    assert grid([[image]], *titles, legend=legend).startswith(b"\x89PNG")
