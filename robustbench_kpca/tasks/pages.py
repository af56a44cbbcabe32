"""Interface `Pages`: the tables and figures of a task's records, besides their metrics. Does not import torch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import PERCENT, Unit, metric_for
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks.facts import Rule
from robustbench_kpca.tasks.rules import COMMON

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from robustbench_kpca.records.outcomes import Outcomes


class Pages:
    """The part of a task that reads records.

    A task that is evaluated under corruption overrides `cells`, `by_corruption` and `along_severity`. Other tasks need
    none of the methods.

    Attributes:
        quantity: name of the quantity in curves over severity, such as `accuracy` or `mIoU`.
        error: name of the quantity in heat maps, such as `top-1 error`: one minus `quantity`.
        error_title: the same for titles, such as `Error`.
        unit: unit in which both are written.
        samples: what samples are called, in the plural.
        resampled: what intervals resample and paired tests pair, in the plural.
        rules: what every honest record keeps, by name; see `tasks.rules`.
    """

    quantity: str = "value"
    error: str = "error"
    error_title: str = "Error"
    unit: Unit = PERCENT
    samples: str = "images"
    resampled: str = "images"
    rules: Mapping[str, Rule] = COMMON

    def cells(self, record: Record) -> list[dict[str, Any]]:
        """Return one entry per (corruption, severity), as `rbk records show --json` prints it."""
        raise _no_cells(record)

    def by_corruption(self, record: Record) -> "pd.DataFrame":
        """Return one row per corruption: the error at each severity and their mean, in the unit of the page."""
        raise _no_cells(record)

    def along_severity(self, record: Record) -> dict[int, Estimate]:
        """Return the quantity at each severity, averaged over the corruptions evaluated there; 0: clean images."""
        raise _no_cells(record)

    def by_class(self, record: Record) -> "pd.DataFrame | None":  # noqa: ARG002
        """Return one row per class in the unit of the page, or None if the task has no results per class."""
        return None

    def clean_answers(self, record: Record) -> "tuple[Outcomes, NDArray[np.int64]] | None":  # noqa: ARG002
        """Return rows of clean samples, and a whole number for the answer in each; None if it has none to compare."""
        return None

    def chance(self, record: Record, name: str) -> float | None:
        """Return what guessing gets in a metric of a record; None where that has no meaning, or is zero."""
        of_labels = metric_for(name).chance
        return None if of_labels is None else of_labels(record.outcomes)

    def headline(self, record: Record) -> list[str]:
        """Return the names of the metrics in the one-line summary of a record."""
        return list(record.metrics)

    def tables(self, record: Record) -> "list[tuple[str, pd.DataFrame]]":
        """Return the tables that `rbk records show` prints below the metrics, with their titles."""
        titled = []
        if _is_corrupted(record):
            title = f"{self.error_title} by corruption and severity, {self.unit.name}"
            titled.append((title, self.by_corruption(record)))
        classes = self.by_class(record)
        return titled if classes is None else [*titled, (f"By class, {self.unit.name}", classes)]

    def details(self, record: Record) -> dict[str, Any]:
        """Return what `rbk records show --json` prints in addition to the record; numbers are in [0, 1], not scaled."""
        content: dict[str, Any] = {"cells": self.cells(record)} if _has_cells(record) else {}
        classes = self.by_class(record)
        if classes is not None:
            table = (classes / self.unit.scale).reset_index()
            content["classes"] = table.astype(object).where(table.notna(), None).to_dict("records")
        return content


def _has_cells(record: Record) -> bool:
    return "severity" in record.outcomes.columns


def _is_corrupted(record: Record) -> bool:
    return _has_cells(record) and bool((record.outcomes["severity"] > 0).any())


def _no_cells(record: Record) -> BadInputError:
    return BadInputError(f"{record.spec.stem()} has no numbers by corruption")
