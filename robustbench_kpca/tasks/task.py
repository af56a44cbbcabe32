"""A task defines what a sample is, when a prediction is correct, and what records and pages contain.

Its two parts are imported on first use: `compute` runs models; `pages` reads records and does not need torch.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.records.table import Table

if TYPE_CHECKING:
    from robustbench_kpca.tasks.compute import Compute
    from robustbench_kpca.tasks.pages import Pages


@dataclass(frozen=True)
class Score:
    """A score on held-out data during training.

    Attributes:
        percent: whether it is a share, shown in percent; if not, it is shown as it is.
    """

    title: str
    percent: bool = True

    def text(self, value: float) -> str:
        """Return title and value, such as `accuracy 97.5 %` or `perplexity 12.34`."""
        return f"{self.title} {100 * value:.1f} %" if self.percent else f"{self.title} {value:.2f}"


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: such as `classification`; data sets refer to their task by it.
        unit: the thing that has one label, in the singular: `image` or `pixel`.
        tables: the columns of its outcomes, by kind of protocol. Kinds without a table are not supported.
        compute_at: location of its `Compute`, as `module:NAME`.
        pages_at: location of its `Pages`, as `module:NAME`.
        scores: scores on held-out data during training by name, the main one first; empty if the task has no training.
    """

    name: str
    unit: str
    tables: Mapping[str, Table]
    compute_at: str
    pages_at: str
    scores: Mapping[str, Score] = field(default_factory=dict)

    @cached_property
    def compute(self) -> "Compute[Any]":
        """The part that runs models; it needs torch."""
        part: Compute[Any] = _at(self.compute_at)
        return part

    @cached_property
    def pages(self) -> "Pages":
        """The part that reads records; it does not need torch."""
        part: Pages = _at(self.pages_at)
        return part

    def describe(self, part: str, scores: Mapping[str, float | str]) -> str:
        """Return the scores on one part of the data as text, such as `test accuracy 97.5 %`; empty if there are none.

        Args:
            part: `val`, `test` or `ema_val`.
            scores: `PART_NAME`, such as `val_accuracy` -> its value.
        """
        keys = {name: f"{part}_{name}" for name in self.scores if f"{part}_{name}" in scores}
        where = part.replace("_", " ")
        return ", ".join(f"{where} {self.scores[name].text(float(scores[key]))}" for name, key in keys.items())

    def table(self, kind: str) -> Table:
        """Return the columns of outcomes for a kind of protocol, or for one of its variants (`Common.table`).

        Raises:
            BadInputError: the task does not support this kind of protocol.
        """
        if kind not in self.tables:
            raise BadInputError(
                f"protocols of kind '{kind}' are not defined for {self.name}",
                expected=f"one of {', '.join(self.tables)}",
                fix="choose another protocol, or other data",
            )
        return self.tables[kind]


def _at(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
