"""How many functions of the package hand an evaluation on before the model is called: docs/architecture.md says so."""

import re
import sys
from pathlib import Path

import pytest

from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.cli import evaluate as command
from robustbench_kpca.cli.main import main

ROOT = Path(__file__).parents[2]
PACKAGE = str(ROOT / "robustbench_kpca")
WHAT = {
    "the first batch": ("logits", "clean"),
    "clean or corrupted images": ("logits", "clean"),
    "the clean pass of an attack": ("logits", "fgsm-linf-8_255"),
    "the first gradient of PGD": ("gradient", "pgd20-linf-1_255"),
}
ASKED = ["--audit", "none", "--batch-size", "4"]
IN = {
    "clean or corrupted images": "show",
    "the clean pass of an attack": "_enter_batch",
    "the first gradient of PGD": "Engine._step",  # the checks before it take one, too
}


def hand_overs():
    """Return the names of the functions of the package between the command and the caller of this, outermost first."""
    frame, names = sys._getframe(2), []
    while frame.f_code is not command.evaluate.__closure__[0].cell_contents.__code__:
        if frame.f_code.co_filename.startswith(PACKAGE):
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names[::-1]


def said(what):
    """Return the number of hand-overs that the page states."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    [count] = re.findall(rf"^\| {what}.*\| (\d+) \|$", page, re.M)
    return int(count)


@pytest.mark.untyped  # a check of types is a call, too
@pytest.mark.parametrize("what", WHAT)
def test_the_page_counts_the_hand_overs(what, monkeypatch, tmp_path):
    method, protocol = WHAT[what]
    real, chains = getattr(Runner, method), []

    def called(runner, *given, **how):
        chains.append([*hand_overs(), f"Runner.{method}"])
        return real(runner, *given, **how)

    monkeypatch.setattr(Runner, method, called)
    assert main(["eval", "-m", "vit_digits", "-p", protocol, "--limit", "8", "-q", "-o", str(tmp_path), *ASKED]) == 0
    chain = next(names for names in chains if any(IN.get(what, "") in name for name in names[:-1]))
    assert len(chain) == said(what), chain
