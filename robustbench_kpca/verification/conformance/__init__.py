"""Whether a member, such as an attack of one's own, keeps what those of the package keep: `rbk doctor`."""

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn

from robustbench_kpca._core import address
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.corruptions import CORRUPTIONS
from robustbench_kpca.metrics import METRICS, Metric
from robustbench_kpca.verification.conformance import attack, attention, corruption, metric
from robustbench_kpca.verification.conformance.finding import Finding as Finding

KINDS = (ATTACKS, CORRUPTIONS, ATTENTIONS, METRICS)


def member_named(name: str) -> Any:
    """Return the attack, corruption, attention or metric of a name or an address, whose code is run.

    Raises:
        UnknownNameError: there is none.
        BadInputError: the code of an address cannot be run.
    """
    if address.is_address(name):
        return address.load(name, "member").member
    members = {each: kind for kind in KINDS for each in kind.names()}
    if name not in members:
        raise unknown_name("attack, corruption, attention or metric", name, members)
    return members[name].get(name)


def check_member(member: Any, **options: Any) -> Iterator[Finding]:
    """Yield the promises of a member, and how it breaks them.

    Args:
        member: an attack, a corruption of images, an attention or a metric: a class or an object, or its name.
        **options: options of an attack or an attention.

    Raises:
        BadInputError: it is none of these, or cannot be built with these options.
    """
    built = member_named(member) if isinstance(member, str) else member
    if isinstance(built, Metric):
        return _without(options, metric.findings(built))
    if all(hasattr(built, name) for name in ("start", "step")):
        return attack.findings(built, options)
    if all(hasattr(built, name) for name in ("parameters", "fast")):
        return _without(options, corruption.findings(built))
    if isinstance(built, type) and issubclass(built, nn.Module):
        return attention.findings(built, options)
    what = "a function" if inspect.isfunction(built) else f"a {type(built).__name__}"
    raise BadInputError(
        f"{member} is {what}",
        expected="an attack, a corruption, an attention or a metric",
        fix="make it one: one_gradient, whole_attack, corruption and metric of robustbench_kpca",
    )


def _without(options: dict[str, Any], findings: Iterator[Finding]) -> Iterator[Finding]:
    if options:
        raise BadInputError(f"option '{next(iter(options))}'", expected="options of an attack or an attention only")
    return findings
