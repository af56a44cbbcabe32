"""Resolve the attacks of an audit to protocols; each task lists its attacks (`tasks.audit_plan`)."""

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import parse_fraction
from robustbench_kpca.protocols.scenario import Attack, Override
from robustbench_kpca.protocols.threat import spell_eps
from robustbench_kpca.records.audit import Budget, Level
from robustbench_kpca.tasks.audit_plan import AuditPlan, OfEps
from robustbench_kpca.tasks.prepare import prepare

EPS = "8/255"
"""The eps of an audit for no protocol, and for one that attacks within another ball than an L-infinity one."""
QUICK = ("fgsm", "pgd", "huge-eps")
"""The attacks of a quick audit."""


def eps_of(protocol: Attack) -> str | float:
    """Return the eps of an audit for a protocol: its own; where smaller budgets are attacked first, the smallest."""
    if protocol.norm != "linf":
        return EPS
    eps = min((*protocol.below, protocol.eps))
    text = spell_eps(eps)
    return text if parse_fraction(text) == eps else eps


def eps_for(protocol: str | None) -> str | float:
    """Return the eps of an audit for a protocol, by its name or file; `EPS` without one.

    Raises:
        BadInputError: the protocol is unknown, or no attack.
    """
    if protocol is None:
        return EPS
    label, scenario = prepare(protocol, {})
    if not isinstance(scenario, Attack):
        raise BadInputError(f"protocol '{label}' is not an attack", fix="see: rbk list protocols")
    return eps_of(scenario)


def attacks_of(plan: AuditPlan, level: Level) -> list[str]:
    """Return the attacks of an audit of this level."""
    return [name for name in plan.attacks if level == "full" or name in QUICK]


def budget(plan: AuditPlan, name: str, eps: str | float) -> tuple[str, Attack]:
    """Return label and protocol of an attack of the audit; `eps` applies to attacks that do not set their own."""
    protocol, overrides = plan.attacks[name]
    resolved = {
        name: setting.share * parse_fraction(eps) if isinstance(setting, OfEps) else setting
        for name, setting in overrides.items()
    }
    settings: dict[str, Override] = {"eps": eps, **resolved}
    label, scenario = prepare(protocol, settings)
    assert isinstance(scenario, Attack)
    return label, scenario


def resolved(plan: AuditPlan, eps: str | float, level: Level = "full") -> dict[str, Budget]:
    """Return the budget of every attack of an audit of this level, as the record of the audit stores it."""
    budgets = {name: budget(plan, name, eps) for name in attacks_of(plan, level)}
    return {name: Budget(protocol=label, digest=scenario.digest()) for name, (label, scenario) in budgets.items()}
