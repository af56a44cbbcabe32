"""The metrics: functions of outcomes, so that every number can be recomputed without model or torch.

Every file of this folder is a table of related metrics, the constant `METRICS`; files are read when a metric is first
asked for.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.registry import Family, unknown_name
from robustbench_kpca.metrics.shared.metric import Mean, Metric, Paired, Scores, Statistic, Weighted, aligned, estimates
from robustbench_kpca.metrics.shared.unit import PERCENT, PLAIN, Unit, common_unit
from robustbench_kpca.protocols.scenario import Scenario
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.outcomes import Outcomes

__all__ = [
    "METRICS", "PERCENT", "PLAIN", "Mean", "Metric", "Paired", "Scores", "Statistic", "Unit", "Weighted", "aligned",
    "answers", "common_unit", "leading", "measure", "metric_for",
]  # fmt: skip
LEADING = (
    "robust_accuracy", "robust_miou", "corruption_accuracy", "corrupted_miou", "shift_accuracy", "clean_accuracy",
    "miou", "attacked_perplexity", "corrupted_perplexity", "perplexity",
)  # fmt: skip
"""Metrics in order of preference: the first one that a record has stands for it."""
TABLES = Family("table of metrics", __name__, "METRICS")


@dataclass
class Catalogue:
    """All metrics by name; `added` are from outside the package."""

    kind: str = "metric"
    added: set[str] = field(default_factory=set)
    _members: dict[str, Metric] = field(default_factory=dict)
    _read: bool = False

    def add(self, metric: Metric) -> Metric:
        """Add a metric and return it.

        Raises:
            BadInputError: there is another one of that name.

        """
        if self._known().get(metric.name, metric) != metric:
            raise BadInputError(f"metric '{metric.name}' is there already", fix="choose another name")
        self._members[metric.name] = metric
        self.added.add(metric.name)
        return metric

    def names(self) -> list[str]:
        """Names of all metrics, sorted."""
        return sorted(self._known())

    def get(self, name: str) -> Metric:
        """Return the metric called `name`.

        Raises:
            UnknownNameError: there is none; the message suggests the closest name.

        """
        if name not in self._known():
            raise unknown_name(self.kind, name, self._known())
        return self._known()[name]

    def summary(self, name: str) -> str:
        """One sentence about a metric."""
        metric = self.get(name)
        return metric.what or metric.title

    def _known(self) -> dict[str, Metric]:
        if not self._read:
            tables: list[Iterable[Metric]] = [TABLES.get(name) for name in TABLES.names()]
            self._members = {metric.name: metric for table in tables for metric in table} | self._members
            self._read = True
        return self._members


METRICS = Catalogue()


def metric_for(name: str) -> Metric:
    """Return the metric called `name`.

    Raises:
        UnknownNameError: there is none; the message suggests the closest name.

    """
    return METRICS.get(name)


def answers(metric: Metric, kind: str) -> bool:
    """Whether a metric can be asked of protocols of this kind."""
    return kind in metric.kinds


def leading(names: Collection[str]) -> str:
    """Return the metric that stands for a record with these metrics: see `LEADING`; else the first."""
    return next((name for name in LEADING if name in names), next(iter(names), ""))


def measure(outcomes: Outcomes, scenario: Scenario, only: Collection[str] | None = None) -> dict[str, Estimate]:
    """Return every metric of the outcomes' task and kind that applies to them and has a meaning under the protocol.

    `only` these names, where they are given.
    """
    metrics = [METRICS.get(name) for name in METRICS.names() if only is None or name in only]
    meant = [
        metric
        for metric in metrics
        if metric.task == outcomes.task
        and answers(metric, outcomes.kind)
        and metric.applies(outcomes, scenario)
        and not metric.objection(scenario)
    ]
    return estimates(meant, outcomes)
