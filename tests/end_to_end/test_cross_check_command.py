"""`rbk cross-check` as a user meets it."""

import importlib
import re

import pytest

from robustbench_kpca.cli.main import main
from robustbench_kpca.corruptions import CORRUPTIONS
from robustbench_kpca.verification import at_a_glance
from robustbench_kpca.verification.equivalents import REFERENCES

pytestmark = pytest.mark.usefixtures("elsewhere")

VERIFY = ["cross-check", "symvit_digits_adv", "--limit", "24"]


def test_it_prints_both_programs_and_a_verdict(capsys, tmp_path):
    pytest.importorskip("torchattacks")
    code = main([*VERIFY, "-p", "fgsm-linf-8_255", "--set", "eps=16/255"])
    out = capsys.readouterr().out
    assert code == 0
    assert "torchattacks:FGSM" in out
    assert "broken by native" in out
    assert "as strong as the reference" in out
    assert not list(tmp_path.iterdir()), "no record is kept"


def test_a_weaker_native_attack_fails_and_help_says_which_commands_exit_with_1(capsys, monkeypatch):
    # Noise with a strong reference in place of its own.
    pytest.importorskip("torchattacks")
    options = {"alpha": 2 / 255, "steps": 20, "random_start": True}
    monkeypatch.setitem(REFERENCES, "noise", lambda ours, norm, eps: ("torchattacks:PGD", options))
    assert main(["cross-check", "vit_digits", "--limit", "24", "-p", "noise-linf-8_255"]) == 1
    assert "WEAKER than the reference" in capsys.readouterr().out
    assert main(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "`cross-check`" in said


def test_without_the_library_the_extra_is_named(monkeypatch, capsys):
    real = importlib.import_module

    def without(name, *rest):
        if name == "torchattacks":
            raise ModuleNotFoundError("No module named 'torchattacks'", name=name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    assert main([*VERIFY, "-p", "fgsm-linf-8_255"]) == 2
    error = capsys.readouterr().err
    assert "pip install '.[reference]'" in error
    assert error.count("\n") == 1


def test_corruptions_need_no_model(capsys):
    pytest.importorskip("skimage")
    cells = ["-p", "common-corruptions", "--set", 'corruptions=["contrast","fog"]', "--set", "severities=[1,5]"]
    assert main(["cross-check", *cells, "--limit", "2"]) == 0
    assert "as the library's: 4 cells on 2 images of photos" in capsys.readouterr().out
    assert main(["cross-check", "vit_digits", *cells]) == 2
    assert "'vit_digits' with corruptions" in capsys.readouterr().err
    assert main(["cross-check", "-p", "fgsm-linf-8_255"]) == 2
    assert "without a model" in capsys.readouterr().err


def test_corruptions_of_another_strength_fail(capsys, monkeypatch):
    pytest.importorskip("skimage")
    contrast = CORRUPTIONS.get("contrast")
    strengths = (*contrast.parameters["imagecorruptions"][:3], 0.3, 0.3)
    monkeypatch.setattr(type(contrast), "parameters", contrast.parameters | {"imagecorruptions": strengths})
    cells = ["-p", "common-corruptions", "--set", 'corruptions=["contrast"]', "--set", "severities=[3,4,5]"]
    assert main(["cross-check", *cells, "--limit", "2"]) == 1
    assert "DIFFERENT from the library's in 2 cells: 3 cells on 2 images" in capsys.readouterr().out


@pytest.mark.slow
def test_alone_it_says_in_one_line_that_no_verdict_differs(capsys):
    """What `make demo` ends with."""
    for library in ("torchattacks", "pyautoattack", "skimage"):
        pytest.importorskip(library)
    assert main(["cross-check"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert "verdicts differing: 0 of 96" in line
    assert "0 of 4 differ" in line


def test_alone_it_counts_what_differs(capsys, monkeypatch):
    """Noise with PGD in place of its own reference, and a contrast of another strength."""
    for library in ("torchattacks", "skimage"):
        pytest.importorskip(library)
    options = {"alpha": 2 / 255, "steps": 20, "random_start": False}
    monkeypatch.setitem(REFERENCES, "noise", lambda ours, norm, eps: ("torchattacks:PGD", options))
    monkeypatch.setattr(at_a_glance, "ATTACKS", (("noise-linf-8_255", {"restarts": 1}),))
    monkeypatch.setattr(at_a_glance, "CORRUPTIONS", {"corruptions": ["contrast"], "severities": [3]})
    contrast = CORRUPTIONS.get("contrast")
    weaker = {**contrast.parameters, "imagecorruptions": (0.4, 0.3, 0.3, 0.1, 0.05)}
    monkeypatch.setattr(type(contrast), "parameters", weaker)
    assert main(["cross-check"]) == 1
    line = capsys.readouterr().out
    assert int(re.search(r"differing: (\d+) of 32", line)[1]) > 20
    assert "1 of 1 differ" in line
    assert main(["cross-check", "vit_digits"]) == 2
    assert "-p PROTOCOL" in capsys.readouterr().err
