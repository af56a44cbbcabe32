"""A task says what a sample is, what is right or wrong about it, and what is written down and drawn.

Its two halves are loaded when they are first used: `pages` reads records and needs no torch; `compute` runs models.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.records.outcomes import Table

if TYPE_CHECKING:
    from robustbench_kpca.tasks.compute import Compute
    from robustbench_kpca.tasks.pages import Pages


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: such as `classification`; data sets name their task by it.
        unit: what is right or wrong, in the singular: `image`, `pixel`.
        tables: the columns of its outcomes, by kind of protocol. A kind without a table cannot be measured.
        compute_at: where its computing half is, as `module:NAME`.
        pages_at: where its reporting half is, as `module:NAME`.
        scores: what training computes on held-out data: name -> title. The first is the main one; none where the task
            cannot be trained here.

    """

    name: str
    unit: str
    tables: Mapping[str, Table]
    compute_at: str
    pages_at: str
    scores: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def compute(self) -> "Compute[Any]":
        """The half that runs models; it needs torch."""
        found: Compute[Any] = _at(self.compute_at)
        return found

    @cached_property
    def pages(self) -> "Pages":
        """The half that reads records; it needs no torch."""
        found: Pages = _at(self.pages_at)
        return found

    def describe(self, part: str, scores: Mapping[str, float | str]) -> str:
        """Return the scores of one part of the data as text: `test accuracy 97.5 %`; empty where there is none.

        Args:
            part: `val`, `test` or `ema_val`.
            scores: part and name of a score -> a number in [0, 1], under keys such as `val_accuracy`.

        """
        found = {title: scores[f"{part}_{name}"] for name, title in self.scores.items() if f"{part}_{name}" in scores}
        where = part.replace("_", " ")
        return ", ".join(f"{where} {title} {100 * float(value):.1f} %" for title, value in found.items())

    def table(self, kind: str) -> Table:
        """Return the columns of outcomes under a kind of protocol.

        Raises:
            BadInputError: the task cannot be measured under such protocols.

        """
        if kind not in self.tables:
            raise BadInputError(
                f"a protocol of kind '{kind}' for {self.name}", expected=f"one of {', '.join(self.tables)}",
                fix="choose another protocol, or other data",
            )  # fmt: skip
        return self.tables[kind]


def _at(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
