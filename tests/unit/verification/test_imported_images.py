"""Images that others found: what is refused, what is recorded, and what a board makes of it."""

import numpy as np
import pytest
import torch
from board_pages import board_text
from safetensors.torch import save_file

from robustbench_kpca import load_data, load_model
from robustbench_kpca.cli.main import main
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.report.render import json_text, markdown

N, EPS = 16, 8 / 255
FGSM = ("fgsm-linf-8_255", "robust_accuracy")
TOML = board_text(
    ["vit_digits", "vit_digits_adv"], {"FGSM": FGSM, "Best known": (*FGSM, {"imported": True})},
    limit=N, rank_by="Best known",
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def clean():
    return load_data("digits", limit=N).in_order().tensors()


@pytest.fixture(scope="module")
def good(clean):
    """Ten steps of sign descent on the margin: PGD written here, on a copy of its own."""
    model, (x, y) = load_model("vit_digits"), clean
    found = x.clone()
    for _ in range(10):
        found.requires_grad_()
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(model(found), y, reduction="sum"), found)
        found = (found.detach() + 2 / 255 * gradient.sign()).clamp(x - EPS, x + EPS).clamp(0, 1)
    return found.detach()


@pytest.fixture(scope="module")
def folder(few_resamples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine")
    (folder / "board.toml").write_text(TOML)
    (folder / "records").mkdir()
    command = ["eval", "-m", "vit_digits,vit_digits_adv", "-p", "fgsm-linf-8_255", "--limit", str(N), "--quiet"]
    assert main([*command, "--audit", "none", "-o", str(folder / "records")]) == 0
    return folder


def put(file, out, folder):
    (own,) = (path for path in find_records(folder / "records") if path.name.startswith("vit_digits__"))
    words = ["--record", str(own), "--by", "A. <b>Finder</b>", "--method", "PGD", "-o", str(out)]
    return main(["records", "import-images", str(file), *words])


def save(path, images):
    if path.suffix == ".npy":
        np.save(path, images.numpy())
    elif path.suffix == ".safetensors":
        save_file({"x_adv": images.contiguous()}, path)
    else:
        torch.save(images, path)
    return path


def far(images, x):
    return torch.where(x < 0.5, x + EPS + 1e-4, x - EPS - 1e-4)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (lambda images, x: far(images, x), "too far"),
        (lambda images, x: images.roll(1, 0), "order"),
        (lambda images, x: images.index_fill(3, torch.tensor([2]), torch.nan), "NaN"),
        (lambda images, x: images - 0.02, "outside [0, 1]"),
        (lambda images, x: {"x": images}, "dict"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(wrong, word, folder, good, clean, tmp_path, capsys):
    file = save(tmp_path / "x.pt", wrong(good, clean[0]))
    assert put(file, tmp_path / "out", folder) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert word in line
    assert not list(tmp_path.rglob("*.json"))


def test_an_object_array_is_not_unpickled(folder, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    assert put(tmp_path / "x.npy", tmp_path, folder) == 2
    assert "no images" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_good_file_lowers_the_row_as_computed_by_hand(suffix, folder, good, clean, tmp_path, capsys):
    mixed = good.clone()
    mixed[::2] = clean[0][::2]  # clean copies where the attack "failed"
    assert put(save(tmp_path / f"x{suffix}", mixed), tmp_path, folder) == 0
    (path,) = find_records(tmp_path)
    record = load_record(path)
    with torch.inference_mode():
        model = load_model("vit_digits")
        before, after = (model(shown).argmax(1) == clean[1] for shown in (clean[0], mixed))
    assert record.metrics["robust_accuracy"].value == float((before & after).float().mean())
    assert (record.passes.forwards, record.passes.backwards) == (N + int(before.sum()), 0)
    assert record.spec.protocol.resolved["imported"]["by"] == "A. <b>Finder</b>"
    assert main(["records", "verify", "--kept-images", str(path)]) == 0
    assert main(["records", "verify", str(path)]) == 2
    assert "--kept-images" in capsys.readouterr().err

    board = load_board(str(folder), [*find_records(folder / "records"), path])
    fgsm, best = board.spec.column
    own = board.records("vit_digits", fgsm)[0].outcomes
    stands = dict(zip(own["sample"].tolist(), (own["broken_by"] == "").tolist(), strict=True))
    kept = dict(zip(record.outcomes["sample"].tolist(), (before & after).tolist(), strict=True))
    by_hand = [stands[name] and kept[name] for name in stands]
    assert board.estimate("vit_digits", best).value == sum(by_hand) / N < board.estimate("vit_digits", fgsm).value
    assert board.estimate("vit_digits_adv", best).value == board.estimate("vit_digits_adv", fgsm).value
    assert "Finder" in markdown(board)
    assert "<b>Finder" not in markdown(board)
    assert json_text(board)


def test_without_its_images_the_record_is_refused(folder, good, tmp_path, capsys):
    assert put(save(tmp_path / "x.pt", good), tmp_path, folder) == 0
    (path,) = find_records(tmp_path)
    load_record(path).model_copy(update={"images_file": None}).save(tmp_path)
    capsys.readouterr()
    assert main(["records", "show", str(path)]) == 2
    assert "keeps none" in capsys.readouterr().err
