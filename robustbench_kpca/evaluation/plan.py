"""Plan evaluations before they run: which model under which protocol, in which order, with which audits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from robustbench_kpca.audit.budgets import eps_of
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
from robustbench_kpca.protocols.loading import along_curve
from robustbench_kpca.protocols.scenario import Attack, Corruption, Override, Scenario
from robustbench_kpca.records.audit import Level
from robustbench_kpca.tasks.prepare import prepare


@dataclass(frozen=True)
class Job:
    """One model and the protocols under which it is evaluated.

    Attributes:
        model: the model.
        protocols: names or TOML files.
        overrides: fields to replace in every protocol.
        curve: values of eps; every attack runs at each of them.
        independent: whether each of these budgets is attacked alone. Otherwise what a smaller budget breaks counts as
            broken at the larger ones. The protocol in each record says which: in its field `below`.

    """

    model: ModelRequest
    protocols: Sequence[str]
    overrides: dict[str, Override] = field(default_factory=dict)
    curve: Sequence[str] = ()
    independent: bool = False


@dataclass(frozen=True)
class Measure:
    """A step: evaluate several models together under one protocol that needs only forward passes.

    `models` are positions in `Plan.models`.
    """

    models: tuple[int, ...]
    label: str
    protocol: str
    scenario: Scenario
    overrides: Mapping[str, Override]
    uses_frost_folder: bool


@dataclass(frozen=True)
class AttackModel:
    """A step: attack one model under one protocol, at each budget of a curve, in ascending order.

    A budget is a label, the protocol, and the fields that were replaced in it. A budget whose protocol lists others in
    `below` starts from the record before it.
    """

    model: int
    protocol: str
    budgets: tuple[tuple[str, Attack, Mapping[str, Override]], ...]


@dataclass(frozen=True)
class AuditModel:
    """A step: audit one model at one eps; its records of attacks for which that is the eps will contain the audit."""

    model: int
    level: Level
    eps: str | float


Step = Measure | AuditModel | AttackModel


@dataclass(frozen=True)
class Plan:
    """A list of steps, with the models, data and options that they use.

    Attributes:
        models: the models; steps refer to them by position.
        data: the data of all models.
        options: the options of all steps.
        steps: in the order of execution.
        order: (model, protocol) of the records, in the order in which they were requested.

    """

    models: tuple[ModelRequest, ...]
    data: DataRequest
    options: RunOptions
    steps: tuple[Step, ...]
    order: tuple[tuple[int, str], ...]


def make_plan(jobs: Sequence[Job], data: DataRequest, options: RunOptions, *, audit: Level | None) -> Plan:
    """Plan jobs: first the evaluations by forward passes, protocol by protocol; then the attacks, model by model.

    Args:
        jobs: one per model.
        data: the data of all models.
        options: the options of all steps.
        audit: how thoroughly each model is audited before its first attack at an eps; None: not at all.

    Raises:
        BadInputError: an unknown protocol or option; two models with the same name; a curve without an attack; a folder
            of frost images that no protocol uses; no data, where the models are of no data set of their own.

    """
    _require_names(jobs)
    settings = [(number, name, job) for number, job in enumerate(jobs) for name in dict.fromkeys(job.protocols)]
    resolved = {(number, name): _resolve(job, name) for number, name, job in settings}
    for number, job in enumerate(jobs):
        attacks = [name for name in job.protocols if isinstance(resolved[number, name][0][1], Attack)]
        if job.curve and not attacks:
            raise BadInputError("--curve needs an attack protocol", fix="see: rbk list protocols")
    steps = [*_measurements(resolved, options), *_attacks(resolved, audit=audit)]
    if options.frost_folder is not None and not any(isinstance(s, Measure) and s.uses_frost_folder for s in steps):
        raise BadInputError(
            f"--frost {options.frost_folder} is not used by any protocol", fix="add --set frost=original"
        )
    if options.keep_adversarial and not any(isinstance(step, AttackModel) for step in steps):
        raise BadInputError(
            f"--keep-adversarial {options.keep_adversarial} is used by no protocol", fix="add an attack, or omit it"
        )
    models = tuple(job.model for job in jobs)
    return Plan(models, data.of(one.model for one in models), options, tuple(steps), tuple(resolved))


Resolved = dict[tuple[int, str], list[tuple[str, Scenario, Mapping[str, Override]]]]
"""(model, protocol) -> label, resolved protocol and replaced fields of each evaluation; a curve has several."""


def _resolve(job: Job, protocol: str) -> list[tuple[str, Scenario, Mapping[str, Override]]]:
    label, scenario = prepare(protocol, job.overrides)
    if not job.curve or not isinstance(scenario, Attack):
        return [(label, scenario, job.overrides)]
    every = [job.overrides | budget for budget in along_curve(job.curve, independent=job.independent)]
    return [(*prepare(protocol, overrides), overrides) for overrides in every]


def _measurements(resolved: Resolved, options: RunOptions) -> list[Step]:
    """Return one step per protocol that is not an attack, for all its models; its label names the replaced fields."""
    found: dict[str, dict[str, Any]] = {}
    for (number, protocol), [(label, scenario, overrides), *_] in resolved.items():
        if not isinstance(scenario, Attack):
            known = found.setdefault(
                label, {"protocol": protocol, "scenario": scenario, "overrides": overrides, "models": []}
            )
            known["models"].append(number)
    return [
        Measure(
            tuple(step["models"]), label, step["protocol"], step["scenario"], step["overrides"],
            _uses(step["scenario"], options),
        )
        for label, step in found.items()
    ]  # fmt: skip


def _uses(scenario: Scenario, options: RunOptions) -> bool:
    original = isinstance(scenario, Corruption) and scenario.frost == "original" and "frost" in scenario.names
    return options.frost_folder is not None and original


def _attacks(resolved: Resolved, *, audit: Level | None) -> list[Step]:
    """Return the steps that audit each model, once for each eps of its attacks, and attack it."""
    steps: list[Step] = []
    for (number, protocol), evaluations in resolved.items():
        budgets = tuple((label, one, overrides) for label, one, overrides in evaluations if isinstance(one, Attack))
        if not budgets:
            continue
        audits = [] if audit is None else [AuditModel(number, audit, eps_of(scenario)) for _, scenario, _ in budgets]
        steps += [one for one in dict.fromkeys(audits) if one not in steps]
        steps.append(AttackModel(number, protocol, budgets))
    return steps


def _require_names(jobs: Sequence[Job]) -> None:
    """Refuse two models with the same name: their records would have the same files."""
    names = [job.model.label for job in jobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInputError(f"model '{twice}' is given twice", fix="give each model once")
