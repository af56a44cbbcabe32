"""What every metric promises: a finite value inside its interval, also where all samples are right, wrong or alike."""

from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
import torch
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.evaluation.api import evaluate
from robustbench_kpca.metrics import Metric
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.verification.conformance.finding import Finding, checked, require

PROTOCOLS = {"clean": "clean", "attack": "fgsm-linf-8_255"}
"""Kinds of protocol, and the one that makes outcomes of this kind."""


def findings(metric: Metric) -> Iterator[Finding]:
    """Yield what was found of a metric of classification, under every kind of protocol that it names.

    Raises:
        BadInputError: it is of another task, or none of its kinds can be tried here.
    """
    kinds = [kind for kind in PROTOCOLS if kind in metric.kinds]
    if not kinds or outcomes(kinds[0], "some").task != metric.task:
        what = f"metric '{metric.name}' of {metric.task} under {', '.join(metric.kinds) or 'no protocol'}"
        expected = f"a metric of classification under {' or '.join(PROTOCOLS)} to be tried here"
        raise BadInputError(what, expected=expected)
    for kind in kinds:
        applies = metric.applies(outcomes(kind, "some"), load_scenario(PROTOCOLS[kind])[1])
        for promise, check in PROMISES.items() if applies else ():
            yield checked(f"{promise} ({kind})", partial(check, metric, kind))


class _Thirds(nn.Module):
    """Three classes, told apart by brightness."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        level = x.flatten(1).mean(1, keepdim=True)
        return -20 * (level - torch.tensor([0.2, 0.5, 0.8])).abs()


@cache
def outcomes(kind: str, labels: str) -> Outcomes:
    """Return outcomes of 12 samples under a protocol of this kind; `labels`: which of them are right."""
    x = torch.linspace(0.05, 0.95, 12).view(-1, 1, 1, 1).expand(-1, 3, 8, 8).clone()
    right = _Thirds()(x).argmax(1)
    y = {"right": right, "wrong": (right + 1) % 3, "some": torch.where(torch.arange(12) % 3 == 0, 0, right)}[labels]
    return evaluate(_Thirds().eval(), x, y, protocol=PROTOCOLS[kind], audit=False, quiet=True).outcomes


def is_defined(metric: Metric, kind: str) -> None:
    """Require a finite value inside its interval: all right, all wrong, some of each, one sample alone."""
    tables = {f"where {labels} labels are right": outcomes(kind, labels) for labels in ("some", "right", "wrong")}
    tables["of one sample"] = tables["where some labels are right"].where(np.array([1]))
    _, scenario = load_scenario(PROTOCOLS[kind])
    for what, table in tables.items():
        if not metric.applies(table, scenario):
            continue
        estimate = metric.estimate(table)
        value, low, high = estimate.value, estimate.low, estimate.high
        require(bool(np.isfinite([value, low, high]).all()), f"{what} it is {value}")
        inside = low - 1e-9 <= value <= high + 1e-9
        require(inside, f"{what} it is {value:g}, outside its interval [{low:g}, {high:g}]")
        shared = not metric.share or (-1e-9 <= value <= 1 + 1e-9)
        require(shared, f"{what} it is {value:g}, but a share lies in [0, 1]")


def refuses_no_sample(metric: Metric, kind: str) -> None:
    """Require that of no sample there is no number: an error, or NaN."""
    nothing = outcomes(kind, "some").where(np.array([], np.intp))
    try:
        estimate = metric.estimate(nothing)
    except Exception:  # noqa: BLE001 (any error is a refusal)
        return
    require(not np.isfinite(estimate.value), f"of no sample it is {estimate.value:g}")


def ignores_order(metric: Metric, kind: str) -> None:
    """Require that the order of samples does not matter."""
    table = outcomes(kind, "some")
    first, second = (metric.estimate(rows).value for rows in (table, table.where(np.arange(len(table))[::-1])))
    require(abs(first - second) < 1e-9, f"it is {first:g}, and {second:g} in the other order")


def compares_with_itself(metric: Metric, kind: str) -> None:
    """Require that a model does not differ from itself."""
    table = outcomes(kind, "some")
    if not metric.needs_reference:
        paired = metric.paired(table, table)
        require(paired.first == paired.second, f"of one model it is {paired.first:g} and {paired.second:g}")


PROMISES: dict[str, Callable[[Metric, str], None]] = {
    "it has a finite value inside its interval": is_defined,
    "of no sample there is no number": refuses_no_sample,
    "the order of samples does not matter": ignores_order,
    "a model does not differ from itself": compares_with_itself,
}
