"""Rules that every honest record of a language model keeps. Does not import torch."""

from collections.abc import Mapping

import numpy as np

from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.records.audit_versions import fault
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks.rules import COMMON, Rule, first

ROUNDING = 1e-5
"""How far a loss under attack may lie below the clean one, relative to it: a mean of single precision."""


def possible_losses(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that every -log p is a number and not negative."""
    outcomes = record.outcomes
    for name in ("clean_nll", "nll"):
        if name in outcomes.columns:
            wrong = ~(np.isfinite(outcomes[name]) & (outcomes[name] >= 0))
            if wrong.any():
                return first(outcomes, wrong, f"{name} = {{{name}:.6g}}")
    return None


def whole_blocks(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that a block is one run of positions of the text, the same in every cell, and that articles ascend."""
    outcomes = record.outcomes
    if "position" not in outcomes.columns:
        return None
    wrong = outcomes["position"] < 1
    if wrong.any():
        return first(outcomes, wrong, "position {position}, but the first that can be predicted is 1")
    cell = _numbered(outcomes, "corruption") * (1 + int(outcomes["severity"].max())) + outcomes["severity"]
    order = np.lexsort((outcomes["position"], cell))
    ordered = outcomes.where(order)
    edges = np.flatnonzero(np.diff(cell[order], prepend=-1))
    runs = np.split(ordered["position"], edges[1:])
    if any(not np.array_equal(runs[0], run) for run in runs):
        return "its cells are not of the same positions"
    same_cell = np.diff(cell[order], prepend=-1) == 0
    same_block = same_cell & (ordered["sample"] == np.roll(ordered["sample"], 1))
    gap = same_block & (np.diff(ordered["position"], prepend=0) != 1)
    if gap.any():
        return first(ordered, gap, "position {position} does not follow the one before it in its block")
    keys = zip(cell[order][~same_block].tolist(), ordered["sample"][~same_block].tolist(), strict=True)
    begun = list(keys)
    if len(set(begun)) != len(begun):
        return "the positions of a block are not together"
    falls = same_cell & (np.diff(ordered["article"], prepend=0) < 0)
    return first(ordered, falls, "article {article} after a later one")


def swaps_fit(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that words are swapped only under corruption."""
    outcomes = record.outcomes
    if "swapped" not in outcomes.columns:
        return None
    wrong = ~np.isin(outcomes["swapped"], (0, 1)) | ((outcomes["severity"] == 0) & (outcomes["swapped"] != 0))
    return first(outcomes, wrong, "swapped = {swapped} at severity {severity}")


def windows_fit(record: Record, scenario: Scenario) -> str | None:
    """Check that there were forward passes, and no more than positions."""
    if isinstance(scenario, Attack):
        return None
    most, forwards = len(record.outcomes) * scenario.draws, record.passes.forwards
    return None if 0 < forwards <= most else f"{forwards} forward passes for {most} positions"


def never_likelier(record: Record, scenario: Scenario) -> str | None:
    """Check that no block is more probable under attack, and that without a change it is as probable as before."""
    if not isinstance(scenario, Attack):
        return None
    outcomes = record.outcomes
    slack = ROUNDING * (1 + outcomes["clean_nll"])
    wrong = outcomes["nll"] < outcomes["clean_nll"] - slack
    wrong |= (outcomes["swaps"] == 0) & (outcomes["nll"] > outcomes["clean_nll"] + slack)
    wrong |= (outcomes["swaps"] < 0) | (outcomes["words"] < 1)
    return first(outcomes, wrong, "nll {nll:.6g} after {swaps} swaps, {clean_nll:.6g} before, of {words} words")


def within_the_rate(record: Record, scenario: Scenario) -> str | None:
    """Check that no more words were replaced than the protocol's share of those that are read."""
    if not isinstance(scenario, Attack):
        return None
    outcomes = record.outcomes
    most = np.array([scenario.threat.swaps(read) for read in outcomes["read"].tolist()], np.int64)
    wrong = (outcomes["swaps"] > most) | (outcomes["read"] < outcomes["words"])
    return first(outcomes, wrong, f"{{swaps}} swaps in {{read}} words, beyond {scenario.threat}")


def _numbered(outcomes: Outcomes, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return a number for every text of a column, in order of appearance."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in outcomes[name].tolist()], np.int64)


def audited_fully(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that an audit has every check of a task whose audits attack nothing."""
    return None if record.audit is None else fault(record.audit, attacked=False)


RULES: Mapping[str, Rule] = {
    **COMMON,
    "audited-fully": audited_fully,
    "possible-losses": possible_losses,
    "whole-blocks": whole_blocks,
    "swaps-fit": swaps_fit,
    "windows-fit": windows_fit,
    "never-likelier": never_likelier,
    "within-the-rate": within_the_rate,
}
