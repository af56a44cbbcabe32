"""The example plugin, installed by pip into a folder of its own: lists, evaluations and a board have its members."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from board_pages import board_text
from stand_ins import attack_protocol, corruption_protocol

ROOT = Path(__file__).parents[2]
ATTACK = attack_protocol("Climb", "climb")
GRAIN = corruption_protocol(["grain"], [1, 5])
BOARD = board_text(
    ["vit_digits", "linear"],
    {"Climb": ("climb.toml", "robust_accuracy"), "Error": ("clean", "error")},
    limit=16,
)
BOARD += '[[model]]\nname = "linear"\nsource = "rbk_example:linear_vit_digits"\n'


@pytest.mark.slow
def test_an_installed_plugin_is_used_without_a_flag(tmp_path):
    for name, text in (("climb.toml", ATTACK), ("grain.toml", GRAIN), ("board.toml", BOARD)):
        (tmp_path / name).write_text(text)
    site = tmp_path / "site"
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--target", site)
    copy = tmp_path / "plugin"
    copy.mkdir()
    for file in (ROOT / "examples" / "plugin").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, copy], check=True)
    path = os.pathsep.join([str(site), *sys.path[:1], os.environ.get("PYTHONPATH", str(ROOT))])

    def rbk(*words):
        command = [sys.executable, "-m", "robustbench_kpca", *map(str, words)]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split())

    added = "(from rbk-example-plugin 0.1.0)"
    assert f"climb Climb the loss by a quarter of the radius a step. {added}" in rbk("list", "attacks")
    assert f"grain Add grain, as of a fast film. {added}" in rbk("list", "corruptions")
    assert f"error Return the share of wrong answers. {added}" in rbk("list", "metrics")
    how = ("--data", "digits", "--limit", 16, "--audit", "none", "-p", "climb.toml", "-p", "clean")
    assert "error" in rbk("eval", "-m", "vit_digits", "-p", "grain.toml", *how, "--processes", 2)
    rbk("eval", "-m", "rbk_example:linear_vit_digits", "--name", "linear", *how)
    assert (
        rbk("records", "verify", *sorted((tmp_path / "runs").glob("vit*.json"))).count("equal to the last digit") == 3
    )
    rbk("board", "render", tmp_path, "--records", "runs", "-o", "pages")
    page = (tmp_path / "pages" / "README.md").read_text()
    assert "| linear" in page
    assert "Error" in page
