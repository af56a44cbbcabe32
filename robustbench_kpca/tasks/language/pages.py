"""Tables of a language model's records: perplexities per cell, and beside the best possible; and their rules."""

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pandas as pd

from robustbench_kpca.metrics import PLAIN, metric_for
from robustbench_kpca.protocols.corruption_names import canonical
from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.records.audit_versions import fault
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks.facts import Rule, first
from robustbench_kpca.tasks.pages import Pages
from robustbench_kpca.tasks.rules import COMMON

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
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in outcomes[name].tolist()], np.int64)


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


class LanguagePages(Pages):
    """Perplexities; lower is better."""

    samples, resampled = "blocks of words", "articles"
    quantity = error = "perplexity"
    error_title = "Perplexity"
    unit = PLAIN
    rules = RULES

    def cells(self, record: Record) -> list[dict[str, Any]]:
        """Return of each cell the perplexity of all words, of unchanged and of swapped ones, and how many these are."""
        positions = _positions(record).groupby(["corruption", "severity"], sort=False)
        cells = []
        for cell, rows in positions:
            name, severity = cast("tuple[str, int]", cell)
            swapped = rows["swapped"] == 1
            cells.append(
                {"corruption": name, "severity": int(severity), "perplexity": _perplexity(rows)}
                | {"unchanged": _perplexity(rows[~swapped]), "swapped": _perplexity(rows[swapped])}
                | {"words": len(rows), "swapped_words": int(swapped.sum())}
            )
        return cells

    def by_corruption(self, record: Record) -> pd.DataFrame:
        """Return per corruption: the perplexity at each severity, NaN where not measured, and their mean."""
        perplexity = {(cell["corruption"], cell["severity"]): cell["perplexity"] for cell in self.cells(record)}
        names = canonical(name for name, severity in perplexity if severity)
        severities = sorted({severity for _, severity in perplexity} - {0})
        columns = {str(level): [perplexity.get((name, level), math.nan) for name in names] for level in severities}
        table = pd.DataFrame(columns, index=pd.Index(names, name="corruption"), dtype=float)
        return table.assign(mean=table.mean(axis=1))

    def along_severity(self, record: Record) -> dict[int, Estimate]:
        """Return the perplexity by severity, averaged over the corruptions evaluated there; 0: the text as it is."""
        outcomes = record.outcomes
        clean, corrupted = metric_for("perplexity"), metric_for("corrupted_perplexity")
        levels = sorted(set(outcomes["severity"].tolist()))
        parts = {level: outcomes.where(outcomes["severity"] == level) for level in levels}
        return {level: (corrupted if level else clean).estimate(part) for level, part in parts.items()}

    def tables(self, record: Record) -> list[tuple[str, pd.DataFrame]]:
        """Return the tables of the base class, and two of our own: kinds of words, and the best possible perplexity."""
        titled = super().tables(record)
        if record.kind == "corruption":
            columns = ["corruption", "severity", "words", "swapped_words", "perplexity", "unchanged", "swapped"]
            cells = pd.DataFrame(self.cells(record))[columns].set_index("corruption")
            cells = cells.rename(columns=lambda name: name.replace("_", " "))
            titled.append(("Perplexity of all, of unchanged and of swapped words", cells))
        best = self._excess(record)
        return titled if best is None else [*titled, ("Beside the best that any model can do", best)]

    def details(self, record: Record) -> dict[str, Any]:
        """Return what `rbk records show --json` prints in addition to the record."""
        best = self._excess(record)
        more = {} if best is None else {"best_possible": best.iloc[0].to_dict()}
        return super().details(record) | more

    def _excess(self, record: Record) -> pd.DataFrame | None:
        """Return the perplexity beside exp(entropy rate) and as a multiple of it; None where the rate is unknown."""
        entropy, perplexity = record.spec.data.entropy, record.metrics.get("perplexity")
        if entropy is None or perplexity is None:
            return None
        best = math.exp(entropy)
        row = {"perplexity": perplexity.value, "best possible": best, "ratio": perplexity.value / best}
        return pd.DataFrame([row], index=pd.Index(["text as it is"], name=""))


def _positions(record: Record) -> pd.DataFrame:
    names = ("corruption", "severity", "swapped", "nll")
    return pd.DataFrame({name: record.outcomes[name] for name in names})


def _perplexity(rows: pd.DataFrame) -> float | None:
    """Return exp of the mean loss; None without words."""
    return float(np.exp(rows["nll"].mean())) if len(rows) else None


PAGES = LanguagePages()
