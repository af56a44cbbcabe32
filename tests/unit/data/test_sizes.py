"""The size at which pictures are shown: as they are, as the model states, or as asked; never cropped in silence."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from robustbench_kpca import evaluate, load_data
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.audit.run import audit
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.given import as_dataset
from robustbench_kpca.data.load import load_data as load
from robustbench_kpca.data.request import View
from robustbench_kpca.data.samples import ArraySamples
from robustbench_kpca.evaluation.requests import DataRequest
from robustbench_kpca.models.source import describe

RNG = np.random.default_rng(0)
STATED = View(8, 0.5)
ONE, SEVERAL = [(16, 16)] * 4, [(16, 16), (8, 8), (20, 10), (16, 16)]
"""Widths and heights of four pictures."""


class Seen(nn.Module):
    """Two classes by the mean level; remembers the shapes that it is shown."""

    def __init__(self, view=None):
        super().__init__()
        self.scale, self.shapes = nn.Parameter(torch.ones(2)), set()
        describe(self, view)
        self.eval()

    def forward(self, x):
        self.shapes.add(tuple(x.shape[-2:]))
        return x.mean((1, 2, 3))[:, None] * self.scale * torch.tensor([-1.0, 1.0]) + torch.tensor([0.5, -0.5])


class Collection(torch.utils.data.Dataset):
    """Pillow images, as torchvision's sets have them."""

    def __init__(self, pictures):
        self.pictures = pictures

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return self.pictures[index], index % 2


def pictures(sizes):
    return [Image.fromarray(RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in sizes]


@pytest.fixture(params=["folder", "collection"])
def stored(request, tmp_path):
    def make(sizes):
        made = pictures(sizes)
        if request.param == "collection":
            return Collection(made)
        for number, picture in enumerate(made):
            (tmp_path / "pets" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
            picture.save(tmp_path / "pets" / "ab"[number % 2] / f"{number}.png")
        return str(tmp_path / "pets")

    return make


@pytest.mark.parametrize(
    ("sizes", "view", "asked", "resized"),
    [
        (ONE, None, {}, None),
        (ONE, View(16, 0.5), {}, None),
        (ONE, STATED, {}, "bicubic 8 of 16, as torchvision"),
        (SEVERAL, STATED, {}, "bicubic 8 of 16, as torchvision"),
        (SEVERAL, View(16, 0.5), {}, "bicubic 16 of 32, as torchvision"),
        (ONE, View(16, 0.5, "bilinear"), {"size": 16}, None),
        (ONE, None, {"size": 8}, "bicubic 8 x 8, not cropped"),
        (SEVERAL, None, {"size": 8}, "bicubic 8 x 8, not cropped"),
        (SEVERAL, View(16, 0.5, "bilinear"), {"size": 8}, "bilinear 8 x 8, not cropped"),
        (ONE, None, {"size": 16, "crop": 0.5}, "bicubic 16 of 32, as torchvision"),
        (SEVERAL, View(16, 0.9), {"crop": 0.5}, "bicubic 16 of 32, as torchvision"),
    ],
)
def test_stored_pictures_are_shown_as_they_are_as_stated_or_as_asked(stored, sizes, view, asked, resized, caplog):
    model = Seen(view)
    record = evaluate(model, stored(sizes), protocol="clean", **asked)
    assert record.spec.data.resized == resized
    side = asked.get("size", 16 if view is None else view.size)
    assert model.shapes == {(side, side)}
    shown = [message for message in caplog.messages if "are resized" in message]
    assert bool(shown) == bool(resized)
    assert all(resized in message for message in shown)


def test_pictures_of_several_sizes_are_refused_where_nobody_says_which(stored):
    given = stored(SEVERAL)
    several = r"several sizes \(16 x 16 and (8 x 8|20 x 10)\), and the model states none.*--size N.*--crop"
    for attempt in (
        lambda: evaluate(Seen(), given, protocol="clean"),
        lambda: evaluate({"a": Seen(), "b": Seen()}, given, protocol="clean"),
        lambda: audit(Seen(), given, level="quick"),
    ):
        with pytest.raises(BadInputError, match=several):
            attempt()
    with pytest.raises(BadInputError, match=r"crop 0\.9 without a size"):
        evaluate(Seen(), given, protocol="clean", crop=0.9)
    with pytest.raises(BadInputError, match=several):
        evaluate({"a": Seen(STATED), "b": Seen()}, given, protocol="clean")
    shared = evaluate({"a": Seen(STATED), "b": Seen(STATED)}, given, protocol="clean")
    assert {record.spec.data.resized for record in shared} == {STATED.how}


def test_sizes_of_pictures_in_memory():
    # Oblong pictures, too: the oracle is Pillow's own resizing.
    picture = pictures([(20, 10)])[0]
    shown = DataRequest(None, size=8).fitted(as_dataset(Collection([picture])), STATED)
    assert np.array_equal(shown.image(0), np.array(picture.resize((8, 8), Image.Resampling.BICUBIC)))
    model = describe(Tenfold(), View(48, 0.875, "bilinear"))
    with pytest.raises(BadInputError, match=r"32 x 32, but the model takes 48 x 48; add --size 48 .* --size 32"):
        evaluate(model, "digits", protocol="clean")
    shown = evaluate(model, "digits", protocol="clean", size=48)
    assert shown.spec.data.resized == "bilinear 48 x 48, not cropped"
    asis = evaluate(model, "digits", protocol="clean", size=32)
    assert asis.spec.data.resized is None
    assert asis.spec.data.digest == load("digits").digest() != shown.spec.data.digest


def test_a_size_is_refused_where_nothing_is_resized(tmp_path):
    few = load("digits", limit=4)
    for data, reason in ((load("waves", limit=4), "signals"), (load("shapes", limit=2), "segmentation")):
        with pytest.raises(BadInputError, match=reason):
            evaluate(Seen(), data, protocol="clean", size=8)
    resized = DataRequest(None, size=8).fitted(few, None)
    with pytest.raises(BadInputError, match="which are resized: bicubic 8 x 8"):
        evaluate(Seen(), resized, protocol="clean", size=16)


def test_what_is_known_of_the_classes_outlives_resizing():
    few = as_dataset(RNG.integers(0, 256, (4, 16, 16, 3), dtype=np.uint8), [0, 4, 6, 1])
    shown = DataRequest(None, size=8).fitted(few, None)
    assert few.counted
    assert shown.counted
    assert shown.take([0]).counted
    assert (
        evaluate(Tenfold(), few, protocol="clean", size=8).spec.data.matched
        == "labels up to 6 of 10 classes, by number"
    )


class Tenfold(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(10))
        self.eval()

    def forward(self, x):
        return x.mean((1, 2, 3))[:, None] * self.scale * torch.arange(10)


@pytest.fixture(scope="module")
def digits_as_files(tmp_path_factory):
    """Sixty digits as a folder of 32 x 32 files, and in memory under the same ids."""
    root, few = tmp_path_factory.mktemp("sixty") / "numbers", load_data("digits", limit=60)
    ids = [f"{label}/{index}.png" for index, label in enumerate(few.labels)]
    for index, name in enumerate(ids):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(few.image(index)).save(root / name)
    pixels = np.stack([few.image(index) for index in range(60)])
    return root, ArraySamples(pixels, few.labels, name="numbers", split="all", ids=ids, classes=10)


@pytest.mark.usefixtures("few_resamples")
def test_a_folder_is_as_robust_as_its_pictures_in_memory(digits_as_files, tmp_path, capsys):
    root, in_memory = digits_as_files
    asked = {"protocol": "pgd20-linf-8_255", "steps": 5, "audit": False}
    expected = evaluate("vit_digits_adv", in_memory, **asked)
    assert 0 < expected.metrics["robust_accuracy"].value < 1
    for size in (None, 32):
        record = evaluate("vit_digits_adv", str(root), size=size, **asked)
        assert record.outcomes["prediction"].tolist() == expected.outcomes["prediction"].tolist()
        assert record.outcomes["broken_by"].tolist() == expected.outcomes["broken_by"].tolist()
    words = ["eval", "-m", "vit_digits_adv", "-p", "clean", "--data", str(root), "-o", str(tmp_path)]
    assert main(words) == 0
    assert "numbers are shown as they are: 32 x 32" in capsys.readouterr().err
    assert main([*words, "--crop", "0.875"]) == 0
    assert "bicubic 32 of 36, as torchvision" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "eval -m vit_digits -p clean", "audit vit_digits",
        "cross-check vit_digits -p fgsm-linf-8_255", "images draw adversarial -m vit_digits", "diagnose vit_digits",
        "diagnose vit_digits --protocol saritas2025",
    ],
)  # fmt: skip
def test_every_command_on_a_folder_takes_size_and_crop(command, digits_as_files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    met = []

    def fitted(request, data, stated):
        met.append((request.size, request.crop, data.name, stated.size))
        raise BadInputError("enough")

    monkeypatch.setattr(DataRequest, "fitted", fitted)
    assert main([*command.split(), "--data", str(digits_as_files[0]), "--size", "48", "--crop", "0.9"]) == 2
    assert met == [(48, 0.9, "numbers", 32)]
    assert "enough" in capsys.readouterr().err
