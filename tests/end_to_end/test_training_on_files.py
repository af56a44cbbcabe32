"""Training from files: the same loss for one and two processes, and every bad folder in one line."""

import csv
import os
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from made_trainings import recipe_text, whole_and_resumed
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.training.image_files import ImageFileSource, _posterize
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train
from robustbench_kpca.training.recipe import load_recipe

RECIPE = recipe_text(
    "symvit_digits", "folder", batch_size=8, optimizer="adamw", lr=1e-3, weight_decay=0.05, smoothing=0.1
)
RECIPE += """
[images]
auto_augment = ""
color_jitter = 0.0
scale = [1.0, 1.0]
hflip = 0.0
erase = 0.0
repeats = 1
interpolation = "bicubic"
crop = 0.875
workers = 0
"""
AUGMENTED = {
    "images.auto_augment": "rand-m9-mstd0.5-inc1", "images.color_jitter": 0.4, "images.scale": [0.08, 1.0],
    "images.hflip": 0.5, "images.erase": 0.25, "images.repeats": 3, "images.workers": 1, "ema_decay": 0.9,
    "mixup": {"mixup": 0.8, "cutmix": 1.0, "prob": 1.0, "switch_prob": 0.5}, "clip_grad": 1.0, "init": "torch",
    "model_options.drop_path_rate": 0.1,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 3)):
        for number, name in enumerate(("ant", "bee")):
            (tmp_path / "set" / part / name).mkdir(parents=True)
            for index in range(count):
                image = rng.integers(0, 128, (40, 48, 3), dtype=np.uint8)
                image[..., number] += 120
                Image.fromarray(image).save(tmp_path / "set" / part / name / f"{index:02d}.png")
    return tmp_path / "set"


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "plain.toml"
    path.write_text(RECIPE)
    return str(path)


def test_posterize_keeps_the_highest_bits():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8))
    for bits in range(9):
        kept = np.asarray(_posterize(image, bits))
        assert np.array_equal(kept, np.asarray(image, int) // 2 ** (8 - bits) * 2 ** (8 - bits)), bits


def curves(path):
    with path.open() as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_whole_augmentation_resumes_bit_identically(tmp_path, folder, recipe, workers):
    loaded = load_recipe(recipe, AUGMENTED | {"images.workers": workers})
    whole, parts = whole_and_resumed(loaded, tmp_path, data=folder)
    one, two = (load_file(path.with_suffix(".ema.safetensors")) for path in (whole, parts))
    assert all(torch.equal(one[key], two[key]) for key in one)
    plain, ema = load_file(whole), load_file(whole.parent / "plain.ema.safetensors")
    assert any(not torch.equal(plain[key], ema[key]) for key in plain)
    assert "test_accuracy" not in read_header(whole)
    assert "ema_decay=0.9" in read_header(whole)["recipe"]


def trained_by_one_and_by_two(tmp_path, recipe, data):
    """Curves of the same recipe, trained in this process and shared by two."""
    train(*load_recipe(recipe), tmp_path / "one", Options(data=data))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
         "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
         "-m", "robustbench_kpca", "train", recipe, "--data", str(data), "-o", str(tmp_path / "two")],
        capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("accuracy") == 1, "every process reported"
    one, two = (curves(tmp_path / run / "plain.csv") for run in ("one", "two"))
    assert len(one) == len(two) == 2
    return zip(one, two, strict=True)


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path, folder, recipe):
    for first, second in trained_by_one_and_by_two(tmp_path, recipe, folder):
        assert first == pytest.approx(second, rel=1e-6)


SCENES = recipe_text(
    "symvit_shapes", "masks", "{ img_size = 16, patch_size = 4, embed_dim = 16, depth = 1, num_classes = 4 }"
)
SCENES += """
[scenes]
crop = 16
resize = []
scale = [0.5, 1.0]
most_of_one = 1.0
hflip = 0.5
photometric = false
workers = 0
"""


@pytest.mark.slow
def test_two_processes_train_on_scenes_as_one(tmp_path):
    """Half of the scenes are ignored but for three rows, so that processes have pixels of unequal number.

    Of two classes the decoder's normalisation over classes would leave a sign, which the last bits decide.
    """
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 2)):
        for index in range(count):
            mask = rng.integers(0, 4, (20, 24), dtype=np.uint8)
            image = 60 * mask[..., None] + rng.integers(0, 60, (20, 24, 3), dtype=np.uint8)
            mask[3 if index % 2 else 20 :] = 4
            for kind, pixels in (("images", image), ("masks", mask)):
                (tmp_path / "set" / kind / part).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(tmp_path / "set" / kind / part / f"{index:02d}.png")
    (tmp_path / "set" / "classes.csv").write_text("id,name\n0,a\n1,b\n2,c\n3,d\n4,ignore\n")
    (tmp_path / "plain.toml").write_text(SCENES)
    for first, second in trained_by_one_and_by_two(tmp_path, str(tmp_path / "plain.toml"), tmp_path / "set"):
        assert first == pytest.approx(second, rel=1e-6)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # timm leaves the tar file open
def test_a_tar_file_is_a_folder(tmp_path, folder, recipe):
    (tmp_path / "tars").mkdir()
    for part in ("train", "val"):
        with tarfile.open(tmp_path / "tars" / f"{part}.tar", "w") as archive:
            archive.add(folder / part, arcname=".")
    assert main(["train", recipe, "--data", str(tmp_path / "tars"), "-o", str(tmp_path / "out"), "-q"]) == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_is_no_image_is_named_in_one_line(tmp_path, folder, recipe, capsys, workers):
    (folder / "train" / "ant" / "03.png").write_text("no image")
    words = ["train", recipe, "--data", str(folder), "-o", str(tmp_path / "out"), "-q"]
    assert main([*words, "--set", f"images.workers={workers}"]) == 2
    error = capsys.readouterr().err
    assert "ant/03.png is not a readable image" in error
    assert error.count("\n") == 1


def _no_parts(folder):
    return folder / "train"


def _no_validation(folder):
    (folder / "val").rename(folder.parent / "elsewhere")
    return folder


def _one_class(folder):
    for part in ("train", "val"):
        shutil.rmtree(folder / part / "bee")
    return folder


def _superscript(folder):
    for part in ("train", "val"):
        (folder / part / "bee").rename(folder / part / "²")
    return folder


def _other_classes(folder):
    (folder / "val" / "bee").rename(folder / "val" / "cat")
    return folder


@pytest.mark.parametrize(
    ("spoil", "settings", "message"),
    [
        (lambda folder: folder / "nowhere", [], "nowhere"),
        (_no_parts, [], "train and val"),
        (_no_validation, [], "train and val"),
        (_one_class, [], "1 class"),
        (_other_classes, [], "different classes"),
        (_superscript, [], "'²' has a digit"),
        (lambda folder: folder, ["model_options.num_classes=1"], "one logit"),
        (lambda folder: folder, ["batch_size=64"], "24 training images"),
        (lambda folder: folder, ["images.interpolation=cubist"], "images.interpolation = 'cubist'"),
        (lambda folder: folder, ["images.color=1"], "'images.color'"),
        (lambda folder: folder, ["lr.x=1"], "'lr'"),
        (lambda folder: folder, ["min_lr=5.0"], "min_lr"),
        (lambda folder: folder, ["model_options.drop_path_rate=2"], "drop_path_rate = 2"),
        (lambda folder: folder, ["penalties.ksvd=0.1"], "'ksvd'"),
        (lambda folder: folder, ["max_shift=2"], "max_shift"),
        (lambda folder: folder, ["data=hfds/nothing/here"], "'folder'"),
    ],
)
def test_bad_folders_and_settings(tmp_path, folder, recipe, capsys, spoil, settings, message):
    sets = [part for setting in settings for part in ("--set", setting)]
    out = tmp_path / "out"
    assert main(["train", recipe, "--data", str(spoil(folder)), "-o", str(out), "-q", *sets]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not out.exists()


def test_a_recipe_on_files_needs_a_folder(tmp_path, recipe, capsys):
    assert main(["train", recipe, "-o", str(tmp_path / "out"), "-q"]) == 2
    assert "--data" in capsys.readouterr().err


def test_only_chosen_classes_are_read(tmp_path, folder, recipe, capsys):
    """The third class folder is left alone; the numbers are those of the sorted names."""
    for part in ("train", "val"):
        shutil.copytree(folder / part / "ant", folder / part / "cow")
        shutil.copytree(folder / part / "bee", folder / part / "aphid")
    (tmp_path / "chosen.txt").write_text("bee\nant\n")
    out = ["-o", str(tmp_path / "out"), "-q"]
    assert main(["train", recipe, "--data", str(folder), "--set", "images.classes=chosen.txt", *out]) == 0
    _, parsed, _ = load_recipe(recipe, {"images.classes": "chosen.txt"})
    source = ImageFileSource(parsed, folder, Accelerator(cpu=True))
    names = {"ant": 0, "bee": 1}
    read = [(source.train.reader.filename(i).split("/")[0], source.train[i][1]) for i in range(len(source.train))]
    assert len(read) == 24
    assert all(names[name] == label for name, label in read)
    (tmp_path / "chosen.txt").write_text("bee\nwasp\n")
    refused = {
        "chosen.txt": "1 of the 2 chosen classes (wasp)",
        "nowhere.txt": "'nowhere.txt'",
        "imagenet-100": "images.classes",
    }
    for classes, message in refused.items():
        sets = ["--set", f"images.classes={classes}", "--fresh"]
        assert main(["train", recipe, "--data", str(folder), *sets, *out]) == 2
        assert message in capsys.readouterr().err


def altered(file):
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize(("finished", "part"), [(False, "val"), (True, "train")])
def test_other_files_of_the_same_names_are_other_data(folder, recipe, tmp_path, finished, part):
    name, parsed, text = load_recipe(recipe)
    own, out = shutil.copytree(folder, tmp_path / "own"), tmp_path / "out"
    path = train(name, parsed, text, out, Options(data=own, stop_at=None if finished else 0.0))
    assert path.is_file() == finished
    altered(next((own / part).rglob("*.png")))
    with pytest.raises(BadInputError, match=r"was trained on other data.*same --data, or add --fresh"):
        train(name, parsed, text, out, Options(data=own, resume=True))
    moved = shutil.copytree(folder, tmp_path / "moved")
    assert train(name, parsed, text, out, Options(data=moved, resume=True)).is_file()


def test_a_finished_run_without_a_digest_of_content_is_compared_by_names(folder, recipe, tmp_path):
    name, parsed, text = load_recipe(recipe)
    own, out = shutil.copytree(folder, tmp_path / "own"), tmp_path / "out"
    path = train(name, parsed, text, out, Options(data=own))
    with safe_open(path, "pt") as file:
        header = {key: value for key, value in file.metadata().items() if key != "content_sha256"}
    save_file(load_file(path), path, header)
    altered(next((own / "train").rglob("*.png")))
    assert train(name, parsed, text, out, Options(data=own, resume=True)) == path
    next((own / "train").rglob("*.png")).rename(own / "train" / "ant" / "zzz.png")
    with pytest.raises(BadInputError, match="was trained on other data"):
        train(name, parsed, text, out, Options(data=own, resume=True))
    assert train(name, parsed, text, out, Options(resume=True)) == path, "without --data nothing is compared"
