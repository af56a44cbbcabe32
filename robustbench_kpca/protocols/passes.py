"""How many passes an attack can cost a sample, from its options alone. Does not import torch.

Passes are (forward, backward) passes of one restart, the loop's check of the last proposal included. The attacks
themselves ask here (`most_passes`), so every formula exists once; the derivations are in the attacks' files.
"""

from collections.abc import Callable, Mapping
from typing import Any

Options = Mapping[str, Any]
Passes = tuple[int, int]
Formula = Callable[[Options, int], Passes]

_CHECK = 1  # the loop's forward pass on the last proposal


def _steps(options: Options, classes: int) -> Passes:  # noqa: ARG001
    return options["steps"] + _CHECK, options["steps"]


def _runs(options: Options, classes: int) -> int:
    return int(min(options["targets"], classes - 1)) if options["loss"].endswith("_targeted") else 1


def _auto_pgd(extra: int) -> Formula:
    """Each run costs `extra` gradients more than it has steps; targets are taken from one pass on the clean image."""

    def passes(options: Options, classes: int) -> Passes:
        gradients = _runs(options, classes) * (options["steps"] + extra)
        return gradients + _CHECK + options["loss"].endswith("_targeted"), gradients

    return passes


def _malt(options: Options, classes: int) -> Passes:
    """Before its runs, one gradient for each candidate."""
    forwards, backwards = _auto_pgd(1)(options, classes)
    ranked = min(options["candidates"], classes - 1)
    return forwards + ranked, backwards + ranked


def _shrinking(options: Options, classes: int) -> Passes:  # noqa: ARG001
    return options["steps"] + 3 + _CHECK, options["steps"] + 3


def _fab(options: Options, classes: int) -> Passes:
    runs = min(options["targets"], classes - 1)
    forwards, backwards = (2 * runs, runs) if options["targets"] else (classes, classes - 1)
    return forwards * options["steps"] + 1 + _CHECK, backwards * options["steps"]


def _carlini_wagner(options: Options, classes: int) -> Passes:  # noqa: ARG001
    gradients = options["binary_steps"] * options["steps"]
    return gradients + _CHECK, gradients


def _carlini_wagner_at_least(options: Options, classes: int) -> Passes:  # noqa: ARG001
    """Every run may end at its second check: records made before the last run had all its steps stay readable."""
    gradients = options["binary_steps"] * min(options["steps"], options["steps"] // 10 + 1)
    return gradients + _CHECK, gradients


def _queries(options: Options, classes: int) -> Passes:  # noqa: ARG001
    return options["queries"] + _CHECK, 0


def _spsa(options: Options, classes: int) -> Passes:  # noqa: ARG001
    return options["steps"] * (options["samples"] + 1) + _CHECK, 0


def _climbs(shown: str) -> Formula:
    """Each step costs a gradient, and a plain pass for each of the texts that it shows."""

    def passes(options: Options, classes: int) -> Passes:  # noqa: ARG001
        return options["steps"] * (1 + options[shown]) + _CHECK, options["steps"]

    return passes


_MOST: Mapping[str, Formula] = {
    "apgd": _auto_pgd(1),
    "apgd_l1": _auto_pgd(3),
    "apgd_shrinking": _shrinking,
    "cw": _carlini_wagner,
    "cw_cleverhans": _carlini_wagner,
    "ddn": _steps,
    "fab": _fab,
    "fgsm": lambda options, classes: (1 + _CHECK, 1),  # noqa: ARG005
    "fmn": _steps,
    "gbda": _climbs("samples"),
    "hopskipjump": _queries,
    "hotflip": _climbs("tries"),
    "malt": _malt,
    "mim": _steps,
    "noise": lambda options, classes: (_CHECK, 0),  # noqa: ARG005
    "pgd": _steps,
    "random_swap": _queries,
    "segpgd": _steps,
    "sld": _steps,
    "spsa": _spsa,
    "spsa_cleverhans": _spsa,
    "square": _queries,
}
_LEAST: Mapping[str, Formula] = {"cw": _carlini_wagner_at_least}
"""Attacks that may end a restart early; of all others every restart costs a sample that withstands the same."""


def most_passes(attack: str, options: Options, classes: int) -> Passes:
    """Return the most passes that a restart can cost a sample, claims of success that did not hold apart.

    Args:
        attack: name of an attack of `robustbench_kpca/attacks`.
        options: its options, by name.
        classes: the number of classes of the model.

    Raises:
        KeyError: there is no formula for the attack, or an option is missing.

    """
    return _MOST[attack](options, classes)


def least_passes(attack: str, options: Options, classes: int) -> Passes:
    """Return the fewest passes of a restart in which a sample withstands; arguments and errors as `most_passes`."""
    return _LEAST.get(attack, _MOST[attack])(options, classes)


def is_bounded(attack: str) -> bool:
    """Tell whether there is a formula: attacks of other libraries have none."""
    return attack in _MOST
