"""What a record says of the machine."""

import platform
import subprocess
from functools import partial
from pathlib import Path

import pytest

from robustbench_kpca._engine.inference import environment

CHECKOUT = Path(environment.__file__).parents[3]
EPYC = (
    "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: {}\nmodel name\t: AMD EPYC\nstepping\t: 1"
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (EPYC.format(17) + "\n\n" + EPYC.format(99), "AMD EPYC (family 25, model 17)"),
        (EPYC.format(1), "AMD EPYC (family 25, model 1)"),
        ("processor\t: 0\nmodel name\t: Some CPU\n", "Some CPU"),
        ("processor\t: 0\nBogoMIPS\t: 48.00\n", "abacus"),
        (None, "abacus"),
    ],
)
def test_processors_of_one_name_are_told_apart_by_family_and_model(text, name, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert environment.processor() == name


def test_the_revision_is_what_git_says():
    """Git reads the repository with its configuration; `revision` without."""
    if not (CHECKOUT / ".git").exists():
        pytest.skip("no checkout")
    ask = partial(subprocess.check_output, cwd=CHECKOUT, text=True)
    changed = ask(["git", "status", "--porcelain", "--", "robustbench_kpca", "attacks", "corruptions"])
    assert environment.revision() == ask(["git", "rev-parse", "HEAD"]).strip() + ("+" if changed else "")
