"""Tables of a language model's records: perplexities per cell, and beside the best that is possible."""

import math
from typing import Any, cast

import numpy as np
import pandas as pd

from robustbench_kpca.metrics import PLAIN, metric_for
from robustbench_kpca.metrics.corruption import mean_by_group
from robustbench_kpca.protocols.corruption_names import canonical
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks.language.rules import RULES
from robustbench_kpca.tasks.pages import Pages


class LanguagePages(Pages):
    """Perplexities; lower is better."""

    hub_task = "text-generation"
    samples, resampled = "blocks of words", "articles"
    quantity = error = "perplexity"
    error_title = "Perplexity"
    unit = PLAIN
    rules = RULES

    def cells(self, record: Record) -> list[dict[str, Any]]:
        """Return of each cell the perplexity of all words, of unchanged and of swapped ones, and how many these are."""
        positions = _positions(record).groupby(["corruption", "severity"], sort=False)
        made = []
        for cell, rows in positions:
            name, severity = cast("tuple[str, int]", cell)
            swapped = rows["swapped"] == 1
            made.append(
                {"corruption": name, "severity": int(severity), "perplexity": _perplexity(rows)}
                | {"unchanged": _perplexity(rows[~swapped]), "swapped": _perplexity(rows[swapped])}
                | {"words": len(rows), "swapped_words": int(swapped.sum())}
            )
        return made

    def by_corruption(self, record: Record) -> pd.DataFrame:
        """Return per corruption: the perplexity at each severity, NaN where not measured, and their mean."""
        perplexity = {(cell["corruption"], cell["severity"]): cell["perplexity"] for cell in self.cells(record)}
        names = canonical(name for name, severity in perplexity if severity)
        severities = sorted({severity for _, severity in perplexity} - {0})
        columns = {str(level): [perplexity.get((name, level), math.nan) for name in names] for level in severities}
        table = pd.DataFrame(columns, index=pd.Index(names, name="corruption"), dtype=float)
        return table.assign(mean=table.mean(axis=1))

    def by_group(self, record: Record) -> dict[str, float]:
        """Return the mean perplexity by group of corruptions."""
        return mean_by_group({str(name): value for name, value in self.by_corruption(record)["mean"].items()})

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
            cells = pd.DataFrame(self.cells(record))[columns].set_index("corruption").rename(columns=_spelled)
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


def _spelled(name: str) -> str:
    return name.replace("_", " ")


def _positions(record: Record) -> pd.DataFrame:
    names = ("corruption", "severity", "swapped", "nll")
    return pd.DataFrame({name: record.outcomes[name] for name in names})


def _perplexity(rows: pd.DataFrame) -> float | None:
    """Return exp of the mean loss; None without words."""
    return float(np.exp(rows["nll"].mean())) if len(rows) else None


PAGES = LanguagePages()
