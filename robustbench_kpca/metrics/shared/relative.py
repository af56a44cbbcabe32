"""Metrics that divide by the errors of a reference, which another model can take the place of."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from robustbench_kpca.metrics import Mean, Metric, Scores
from robustbench_kpca.metrics.shared.corruption_errors import ALEXNET, ErrorTable
from robustbench_kpca.metrics.shared.grid import grid_of
from robustbench_kpca.protocols.corruption_names import COMMON, SEVERITIES
from robustbench_kpca.protocols.scenario import Corruption
from robustbench_kpca.records.estimate import Estimate, bootstrap_mean
from robustbench_kpca.records.outcomes import Outcomes


@dataclass(frozen=True, kw_only=True)
class RelativeError(Mean):
    """A mean of per-sample scores that depend on a reference's errors: `of(outcomes, reference)`."""

    of: Callable[[Outcomes, ErrorTable], Scores]

    @classmethod
    def by_alexnet(cls, *, of: Callable[[Outcomes, ErrorTable], Scores], **how: Any) -> "RelativeError":
        """Divide by AlexNet's errors on ImageNet-C."""
        return cls(
            of=of, scores=lambda outcomes: of(outcomes, ALEXNET), kinds=("corruption",), lower_is_better=True, **how
        )  # fmt: skip

    def estimate(self, outcomes: Outcomes) -> Estimate:
        """Value and 95 % interval: the bootstrap's, since it is no proportion even where all scores are 0 or 1."""
        return bootstrap_mean(self.scores(outcomes).values)

    def relative_to(self, reference: Outcomes) -> Metric:
        """Divide by the errors of the model with these outcomes."""
        table = grid_of(reference).table("the reference model")
        return replace(self, scores=lambda outcomes: self.of(outcomes, table))


def alexnet_knows(scenario: Corruption) -> bool:
    """Whether a protocol asks for AlexNet's errors on what papers mean by mCE: 15 corruptions at severities 1 to 5.

    On any other grid the mean of ratios would go by a name that it has not: there is the unnormalised mean error.
    """
    whole = set(COMMON) <= set(scenario.corruptions) and set(scenario.severities) == set(SEVERITIES)
    return scenario.reference == "alexnet" and whole
