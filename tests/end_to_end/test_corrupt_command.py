"""`rbk images corrupt` for a user: the published layout, the same bytes for any workers, resumable, short errors."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robustbench_kpca.cli.main import main
from robustbench_kpca.corruptions import corrupt
from robustbench_kpca.data.imagenet_classes import robustbench_validation
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.request import View
from robustbench_kpca.protocols.corruption_names import COMMON

pytestmark = pytest.mark.usefixtures("elsewhere")

RBK = [sys.executable, "-m", "robustbench_kpca"]
SOME = ["--corruption", "gaussian_noise", "--corruption", "contrast", "--severity", "2", "--severity", "5"]
CELLS = [f"{name}/{severity}" for name in ("contrast", "gaussian_noise") for severity in (2, 5)]


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.delenv("RBK_FROST", raising=False)
    rng = np.random.default_rng(0)
    for stem, wnid in list(robustbench_validation().items())[:6]:
        (tmp_path / "src" / wnid).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "src" / wnid / f"{stem}.png")
    (tmp_path / "src" / "README").write_text("x")
    return tmp_path / "src"


def rbk(*arguments: str) -> int:
    return main(["images", "corrupt", *map(str, arguments), "-q"])


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def stems(source: Path) -> list[str]:
    return sorted(path.relative_to(source).as_posix().removesuffix(".png") for path in source.rglob("*.png"))


def test_the_published_layout_and_a_manifest(source, tmp_path, capsys):
    assert rbk(source, "dst", *SOME) == 0
    assert "24 files made, 0 kept, of 6 images" in capsys.readouterr().out
    visible = {name for name in contents(tmp_path / "dst") if not name.startswith(".")}
    assert visible == {f"{cell}/{stem}.JPEG" for cell in CELLS for stem in stems(source)} | {"manifest.json"}
    settings = json.loads((tmp_path / "dst" / "manifest.json").read_text())
    assert settings["finished"] is True
    assert (settings["profile"], settings["seed"]) == ("imagenet_c", 0)


def test_pictures_are_those_of_corrupt_and_its_seeds(source, tmp_path):
    assert rbk(source, "dst", *SOME, "--seed", "7") == 0
    for stem in stems(source):
        with Image.open(source / f"{stem}.png") as image:
            pixels = np.array(image)[None]
        expected = corrupt(pixels, "gaussian_noise", 5, seed=7, ids=[f"{stem}.png"], profile="imagenet_c")[0]
        Image.fromarray(expected).save(tmp_path / "expected.jpg", quality=85, optimize=True)
        made = tmp_path / "dst" / "gaussian_noise" / "5" / f"{stem}.JPEG"
        assert made.read_bytes() == (tmp_path / "expected.jpg").read_bytes()


def test_jpegs_are_stored_as_published(source, tmp_path):
    assert rbk(source, "dst", *SOME) == 0
    with Image.open(tmp_path / "dst" / "contrast" / "2" / f"{stems(source)[0]}.JPEG") as image:
        tables, sampling = image.quantization, image.layer
    Image.new("RGB", (32, 32)).save(tmp_path / "q85.jpg", quality=85)
    with Image.open(tmp_path / "q85.jpg") as image:
        assert tables == image.quantization
    assert [layer[1:3] for layer in sampling] == [(2, 2), (1, 1), (1, 1)]  # chroma halved both ways


def test_the_same_bytes_whatever_the_workers(source, tmp_path):
    assert rbk(source, "one", *SOME) == rbk(source, "two", *SOME, "--workers", "2") == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_the_result_loads_again(source):
    assert rbk(source, "dst", *SOME) == 0
    samples = load_data("imagenet-c:dst", view=View(32))
    assert (samples.corruptions, samples.severities, len(samples)) == (("gaussian_noise", "contrast"), (2, 5), 6)
    known = robustbench_validation()
    assert all(known[Path(name).stem] == name.partition("/")[0] for name in samples.ids)
    assert samples.cell("contrast", 5).image(0).shape == (32, 32, 3)


def test_finished_files_are_kept_and_those_of_a_newer_source_made_again(source, tmp_path, capsys):
    assert rbk(source, "dst", *SOME) == 0
    before, dst = contents(tmp_path / "dst"), tmp_path / "dst"
    gone, *files = sorted(dst.rglob("*.JPEG"))
    gone.unlink()
    times = {path: path.stat().st_mtime_ns for path in files}
    capsys.readouterr()
    assert rbk(source, "dst", *SOME) == 0
    assert "1 files made, 23 kept" in capsys.readouterr().out
    assert contents(dst) == before
    assert {path: path.stat().st_mtime_ns for path in files} == times
    os.utime(next(source.rglob("*.png")), ns=(2**62, 2**62))
    assert rbk(source, "dst", *SOME) == 0
    assert "4 files made, 20 kept" in capsys.readouterr().out


def test_more_corruptions_may_come(source, tmp_path, capsys):
    assert rbk(source, "dst", *SOME[:2], *SOME[4:]) == 0
    assert rbk(source, "dst", *SOME[2:]) == 0
    assert rbk(source, "once", *SOME) == 0
    grown, once = contents(tmp_path / "dst"), contents(tmp_path / "once")
    assert grown == once
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_killed_run_goes_on_to_the_same_bytes(source, tmp_path, workers):
    for stem in stems(source):  # more of them, so that there is time
        for number in range(40):
            shutil.copy(source / f"{stem}.png", source / f"{stem}_{number}.png")
    arguments = ["src", "dst", *SOME, "--corruption", "defocus_blur", "--workers", workers, "-q"]
    process = subprocess.Popen(
        [*RBK, "images", "corrupt", *arguments], cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and sum(1 for _ in (tmp_path / "dst").rglob("*.JPEG")) < 40:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert json.loads((tmp_path / "dst" / "manifest.json").read_text())["finished"] is False, "killed too late"
    assert main(["images", "corrupt", *arguments]) == 0
    assert rbk("src", "whole", *SOME, "--corruption", "defocus_blur") == 0
    left = {name: data for name, data in contents(tmp_path / "dst").items() if not Path(name).name.startswith(".rbk-")}
    assert left == contents(tmp_path / "whole")


def test_pictures_of_every_format_are_corrupted_and_what_is_left_out_is_counted(tmp_path, capsys):
    for number, suffix in enumerate(["png", "tif", "tiff", "gif", "jfif", "ppm", "heic", "heic"]):
        path = tmp_path / "src" / "a" / f"{number}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32)).save(path, "PNG" if suffix == "heic" else None)
    assert rbk("src", "dst", *SOME) == 0
    assert "of 6 images; 2 files of src were left out: 2 .heic" in capsys.readouterr().out


def test_two_at_once_are_refused(source, tmp_path, capsys):
    code = (
        "import pathlib, sys; from robustbench_kpca._core.lock import locked\n"
        "with locked(pathlib.Path('dst/.lock'), wait=False): print('held', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, text=True, **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        assert rbk(source, "dst", *SOME) == 2
        assert "another process" in capsys.readouterr().err
        holder.stdin.close()
    assert rbk(source, "dst", *SOME) == 0


def test_what_cannot_be_read_is_named(source, tmp_path, capsys):
    bad = next(source.rglob("*.png"))
    bad.write_bytes(bad.read_bytes()[:50])
    assert rbk(source, "dst", *SOME) == 2
    said = capsys.readouterr().err
    assert bad.name in said
    assert said.count("\n") == 1


BAD = {
    "src src/dst": "inside",
    "src/../src src/a/../b": "inside",
    "nowhere dst": "nowhere",
    "empty dst": "empty",
    "src full": "full",
    "src file": "file",
    "twins dst": "a.bmp",
    "src dst --corruption frog": "did you mean 'fog'",
    "src dst --severity 6": "severity",
    "src dst --profile imagenet": "'imagenet'",
    "src dst --crop 0.9": "--size",
    "src dst --size 16 --crop 2": "crop",
    "src dst --frost nowhere": "nowhere",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line_and_writes_nothing(source, tmp_path, capsys, words):
    for name in ("empty", "full", "twins"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "x").write_text("x")
    (tmp_path / "file").write_text("x")
    for suffix in ("png", "bmp"):
        Image.new("RGB", (4, 4)).save(tmp_path / "twins" / f"a.{suffix}")
    before = contents(tmp_path)
    assert rbk(*words.split(), *([] if "--corruption" in words else ["--corruption", "contrast"])) == 2
    said = capsys.readouterr().err
    assert said.startswith("rbk: error: ")
    assert said.count("\n") == 1
    assert BAD[words] in said
    assert contents(tmp_path) == before
    assert not (tmp_path / "dst").exists()


def test_other_settings_and_versions_need_another_folder(source, tmp_path, capsys):
    assert rbk(source, "dst", *SOME) == 0
    before = contents(tmp_path)
    changes = {"--seed 1": "seed", "--profile cifar_c": "imagenet_c", "--size 16": "view"}
    for changed, message in changes.items():
        capsys.readouterr()
        assert rbk(source, "dst", *SOME, *changed.split()) == 2
        assert message in capsys.readouterr().err
        assert contents(tmp_path) == before
    path = tmp_path / "dst" / "manifest.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"versions": settings["versions"] | {"numpy": "1.0"}}))
    assert rbk(source, "dst", *SOME) == 2
    assert "'numpy': '1.0'" in capsys.readouterr().err


def test_by_default_the_fifteen_at_every_severity(source, tmp_path):
    for stem in stems(source)[1:]:
        (source / f"{stem}.png").unlink()
    assert rbk(source, "dst") == 0
    made = {path.relative_to(tmp_path / "dst").parts[:2] for path in (tmp_path / "dst").rglob("*.JPEG")}
    assert made == {(name, str(severity)) for name in COMMON for severity in range(1, 6)}
