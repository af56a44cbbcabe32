"""Images that others found: what is refused, what is recorded, and what a board makes of it."""

import numpy as np
import pytest
import torch
from board_pages import board_text
from safetensors.torch import save_file

from robustbench_kpca import load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.records.images import KeptImages, load_images
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.report.breaks import by_model
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.report.render import json_text, markdown
from robustbench_kpca.report.table import BROKEN, telling_marks
from robustbench_kpca.verification import image_files
from robustbench_kpca.verification.image_files import read_images
from robustbench_kpca.verification.kept import recheck

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
    words = ["--images", str(file), "--by", "A. <b>Finder</b>", "--method", "PGD", "-o", str(out)]
    return main(["board", "break", str(own), *words])


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
        (lambda images, x: images.to("meta"), "float32"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(wrong, word, folder, good, clean, tmp_path, capsys):
    file = save(tmp_path / "x.pt", wrong(good, clean[0]))
    assert put(file, tmp_path / "out", folder) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert word in line
    assert not list(tmp_path.rglob("*.json"))


def test_a_record_stands_on_no_board(folder, capsys):
    (own, *_) = find_records(folder / "records")
    assert main(["board", "break", str(own), "--images", "x.pt", "--by", "me", "--board", str(folder)]) == 2
    assert "--board with a record has no effect" in capsys.readouterr().err


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


NEAREST_MEAN = """
import torch
from robustbench_kpca import load_data
def build():
    x, y = load_data("digits").in_order().tensors()
    means = torch.stack([x[y == label].flatten(1).mean(0) for label in range(10)])
    net = torch.nn.Linear(means.shape[1], 10)
    net.weight.data, net.bias.data = means / 25, -means.square().sum(1) / 50
    return torch.nn.Sequential(torch.nn.Flatten(), net)
"""


def npz(path, samples, attacked):
    np.savez(path, samples=np.array(samples), attacked=attacked)
    return path


@pytest.fixture
def of_means(tmp_path):
    """A board of the nearest mean, a linear network that FGSM attacks, and the closed form of its worst images.

    Towards another class j, the worst image in ball and box moves each pixel to its end by the sign of w_j - w_y.
    """
    (tmp_path / "net.py").write_text(NEAREST_MEAN)
    net = ["--model", f"{tmp_path / 'net.py'}:build", "--name", "means", "--data", "digits"]
    out = ["--limit", str(N), "--set", "eps=24/255", "--audit", "none", "-o", str(tmp_path / "records")]
    assert main(["eval", *net, "--quiet", "-p", "fgsm-linf-8_255", *out]) == 0
    described = f'\n[[model]]\nname = "means"\nsource = "{tmp_path / "net.py"}:build"\n'
    columns = {"Best known": (*FGSM, {"imported": True, "eps": "24/255"})}
    (tmp_path / "board.toml").write_text(board_text(["means"], columns, limit=N) + described)
    data = load_data("digits", limit=N).in_order()
    x, y = data.tensors()
    linear = load_model(f"{tmp_path / 'net.py'}:build")[1]
    rows, worst, margins = torch.arange(N), x.clone(), torch.full((N,), torch.inf)
    for label in range(10):
        towards = (linear.weight[label] - linear.weight[y]).view(x.shape)
        image = (x + 3 * EPS * towards.sign()).clamp(0, 1)
        scores = linear(image.flatten(1)).detach()
        margin = torch.where(y == label, torch.inf, scores[rows, y] - scores[rows, label])
        better = margin < margins
        worst[better], margins[better] = image[better].detach(), margin[better]
    return tmp_path, data.ids, worst.numpy(), margins.numpy()


def break_means(folder, file, *more):
    words = ["--board", str(folder), "--images", str(file), "--by", "A. <b>Finder</b>", "--run-code", *more]
    return main(["board", "break", "means", *words])


def test_a_break_lowers_a_linear_row_to_its_closed_form(of_means, capsys):
    folder, ids, worst, margins = of_means
    before = load_board(str(folder))
    (best,) = before.spec.column
    own = before.estimate("means", best).value
    (fgsm,) = before.records("means", best)
    fell = np.flatnonzero((fgsm.outcomes["broken_by"] == "") & (margins < 0))
    first, rest = fell[:1], fell[1:]
    assert len(rest) > 1  # else this would test nothing
    assert break_means(folder, npz(folder / "one.npz", [ids[at] for at in first], worst[first])) == 0
    for _ in range(2):  # a second time it says the same
        assert break_means(folder, npz(folder / "all.npz", [ids[at] for at in fell], worst[fell])) == 0
        assert f"{len(rest)} images broken by" in capsys.readouterr().out
    after = load_board(str(folder))
    assert own > after.estimate("means", best).value == (margins > 0).mean()
    assert after.records("means", best)[0].outcomes_file == fgsm.outcomes_file  # the row's own record stays
    assert BROKEN in telling_marks(after)["means"]
    page = markdown(after)
    assert "A. &lt;b&gt;Finder&lt;/b&gt; (1 image)" in page
    assert f"({len(rest)} image" in page
    records = str(folder / "records")
    assert main(["records", "verify", "--model", f"{folder / 'net.py'}:build", "--kept-images", records]) == 0

    assert break_means(folder, npz(folder / "two.npz", [ids[at] for at in rest], worst[rest])) == 2
    assert "break nothing" in capsys.readouterr().err
    assert len(list((folder / "records").glob("means__*imported*.json"))) == 2


@pytest.mark.parametrize(
    ("samples", "change", "word"),
    [
        (["digits/0039", "digits/0039"], 0, "several images"),
        (["digits/0039", "cat"], 0, "'cat'"),
        (np.array([], str), 0, "without images"),
        (["digits/0039"], 0, "shape (2, 3, 32, 32)"),
        (["digits/0039", "digits/0068"], 1e-3, "too far"),
        ([["digits/0039", "digits/0068"]], 0, "not a list of names"),
        (np.array([{}, {}], object), 0, "holds no images"),
    ],
)
def test_wrong_names_are_refused_in_one_line(samples, change, word, folder, clean, tmp_path, capsys):
    images = clean[0][:2].numpy()
    step = np.float32(change + EPS * (change > 0))
    np.savez(tmp_path / "x.npz", samples=samples, attacked=np.where(images < 0.5, images + step, images - step))
    assert put(tmp_path / "x.npz", tmp_path / "out", folder) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert word in line
    assert not list(tmp_path.rglob("*.json"))


def test_a_file_that_unpacks_beyond_the_limit_is_not_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "x.npz", samples=np.array(["a"]), attacked=np.zeros((1, 3, 64, 64), np.float32))
    monkeypatch.setattr(image_files, "MOST", 8192)
    with pytest.raises(BadInputError, match="larger than its limit"):
        read_images(tmp_path / "x.npz")


def test_a_break_of_other_weights_lowers_nothing_and_one_without_images_is_found(folder, good, tmp_path):
    assert put(save(tmp_path / "x.pt", good), tmp_path, folder) == 0
    (path,) = find_records(tmp_path)
    found = load_record(path)
    retrained = found.spec.model_copy(update={"model": found.spec.model.model_copy(update={"parameters_sha256": "0"})})
    imported, stale = by_model([found], {"vit_digits": found.model_copy(update={"spec": retrained})})
    assert imported == {}
    assert "other weights of vit_digits" in stale[0]
    kept = load_images(tmp_path, found.images_file)
    assert len(kept.samples) == (found.outcomes["broken_by"] == "imported").sum()
    fewer = KeptImages(kept.samples[3:], kept.clean[3:], kept.attacked[3:])
    assert len(recheck(found, fewer, load_model("vit_digits")).differences) == 3
