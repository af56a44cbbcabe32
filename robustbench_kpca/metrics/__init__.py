"""The metrics: functions of outcomes, so that every number can be recomputed without model or torch.

Every file of this folder is a table of related metrics, the constant `METRICS`; files are read when a metric is first
asked for.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from robustbench_kpca._core import address, plugins
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.registry import Family, unknown_name
from robustbench_kpca.metrics.shared.metric import Mean, Metric, Paired, Scores, Statistic, Weighted, aligned, estimates
from robustbench_kpca.metrics.shared.unit import PERCENT, PLAIN, Unit, common_unit
from robustbench_kpca.protocols.scenario import Scenario
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.outcomes import Outcomes

__all__ = [
    "METRICS", "PERCENT", "PLAIN", "Mean", "Metric", "Paired", "Scores", "Statistic", "Unit", "Weighted", "aligned",
    "answers", "common_unit", "leading", "measure", "metric_for", "telling",
]  # fmt: skip
LEADING = (
    "robust_accuracy", "robust_miou", "corruption_accuracy", "corrupted_miou", "shift_accuracy",
    "certified_accuracy", "clean_accuracy", "miou", "attacked_perplexity", "corrupted_perplexity", "perplexity",
)  # fmt: skip
"""Metrics in order of preference: the first one that a record has stands for it."""
TABLES = Family("table of metrics", __name__, "METRICS", by_address=False)


@dataclass
class Catalogue:
    """All metrics by name; `added` are from outside the package."""

    kind: str = "metric"
    added: dict[str, Metric] = field(default_factory=dict)
    _built_in: dict[str, Metric] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plugins.TABLES.append(self.added)

    def add(self, metric: Metric) -> Metric:
        """Add a metric and return it.

        Raises:
            BadInputError: there is another one of that name.
        """
        if self._all().get(metric.name, metric) != metric:
            raise BadInputError(f"metric '{metric.name}' is there already", fix="choose another name")
        self.added[metric.name] = metric
        plugins.note(self.kind, metric.name)
        return metric

    def __contains__(self, name: str) -> bool:
        if name not in self._all():
            plugins.load()
        return name in self._all()

    def names(self) -> list[str]:
        """Names of all metrics, sorted."""
        plugins.load()
        return sorted(self._all())

    def get(self, name: str) -> Metric:
        """Return the metric called `name`, or the one at an address in a file or module that the user uses as a plugin.

        Boards and records name metrics, too: the code of another address is not run.

        Raises:
            UnknownNameError: there is none; the message suggests the closest name.
            BadInputError: the address is of no plugin, or of an object that is no metric or cannot be loaded.
        """
        if address.is_address(name):
            return self._at(name)
        if name not in self:
            raise unknown_name(self.kind, name, self._all())
        return self._all()[name]

    def _at(self, name: str) -> Metric:
        plugins.require_used(name, "a board or record")
        member = address.load(name, self.kind).member
        if not isinstance(member, Metric):
            raise BadInputError(f"metric '{name}' is a {type(member).__name__}", expected="a Mean or Statistic")
        return replace(member, name=name)

    def summary(self, name: str) -> str:
        """One sentence about a metric."""
        metric = self.get(name)
        return " ".join(filter(None, [metric.what or metric.title, plugins.origin(self.kind, name)]))

    def _all(self) -> dict[str, Metric]:
        if not self._built_in:
            tables: list[Iterable[Metric]] = [TABLES.get(name) for name in TABLES.names()]
            self._built_in |= {metric.name: metric for table in tables for metric in table}
        return self._built_in | self.added


METRICS = Catalogue()


def metric_for(name: str) -> Metric:
    """Return the metric called `name`; errors as in `Catalogue.get`."""
    return METRICS.get(name)


def answers(metric: Metric, kind: str) -> bool:
    """Whether a metric can be asked of protocols of this kind."""
    return kind in metric.kinds


def telling(names: Iterable[str], classes: int) -> list[str]:
    """Return the metrics that distinguish models of `classes` classes: not the top-5 accuracy of five."""
    return [name for name in names if not 0 < classes <= metric_for(name).more_than]


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
