"""What pages show of a task's records; no torch."""

from abc import ABC, abstractmethod
from typing import Any

import pandas as pd

from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.record import Record


class Pages(ABC):
    """The reporting half of a task.

    Attributes:
        quantity: what curves show, such as `accuracy` or `mIoU`; in [0, 1].
        error: what heat maps show: one minus that, such as `top-1 error`.

    """

    quantity: str
    error: str

    @abstractmethod
    def cells(self, record: Record) -> list[dict[str, Any]]:
        """Return one entry per (corruption, severity) of a record, as `rbk show --json` prints it."""

    @abstractmethod
    def by_corruption(self, record: Record) -> pd.DataFrame:
        """Return one row per corruption, in percent: the error at each severity, and their mean."""

    @abstractmethod
    def by_group(self, record: Record) -> dict[str, float]:
        """Return the mean error in [0, 1] by group of corruptions: noise, blur, weather, digital, extra, other."""

    @abstractmethod
    def along_severity(self, record: Record) -> dict[int, Estimate]:
        """Return the quantity by severity, over the corruptions measured there; 0 is the images as they are."""

    def by_class(self, record: Record) -> pd.DataFrame | None:  # noqa: ARG002
        """Return one row per class, in percent, where the task counts classes apart; else None."""
        return None
