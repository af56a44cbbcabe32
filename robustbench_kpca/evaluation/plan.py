"""Plan evaluations before they run: which models under which protocol, in which order, with which audits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from robustbench_kpca._core import plugins
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.audit.budgets import eps_of
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest, NamedModel
from robustbench_kpca.protocols.loading import along_curve, is_attack
from robustbench_kpca.protocols.scenario import Attack, Corruption, Override, Scenario
from robustbench_kpca.records.audit import Audit, Level
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

    model: ModelRequest | NamedModel
    protocols: Sequence[str | Path]
    overrides: dict[str, Override] = field(default_factory=dict)
    curve: Sequence[str] = ()
    independent: bool = False


@dataclass(frozen=True)
class Evaluate:
    """A step: evaluate models under one protocol. Models share the samples that they take alike.

    Attributes:
        models: positions in `Plan.models`; of an attack a single one.
        protocol: its name or TOML file.
        label: its name in records, which names the replaced fields.
        scenario: what it is.
        overrides: the fields that were replaced in it.
    """

    models: tuple[int, ...]
    protocol: str
    label: str
    scenario: Scenario
    overrides: Mapping[str, Override]

    @property
    def goes_on(self) -> bool:
        """Whether it goes on from what smaller budgets broke: from the record of the step before."""
        return isinstance(self.scenario, Attack) and bool(self.scenario.below)

    @property
    def uses_frost_folder(self) -> bool:
        """Whether it makes frost from the original images."""
        scenario = self.scenario
        return isinstance(scenario, Corruption) and scenario.frost == "original" and "frost" in scenario.names


@dataclass(frozen=True)
class AuditModel:
    """A step: audit one model at one eps; its records of attacks for which that is the eps will contain the audit.

    `audit` is how thoroughly, or an audit that exists; True: as thoroughly as the number of samples suggests.
    """

    model: int
    audit: Audit | Level | Literal[True]
    eps: str | float


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

    models: tuple[ModelRequest | NamedModel, ...]
    data: DataRequest
    options: RunOptions
    steps: tuple[Evaluate | AuditModel, ...]
    order: tuple[tuple[int, str], ...]


def make_plan(jobs: Sequence[Job], data: DataRequest, options: RunOptions, *, audit: Audit | Level | bool) -> Plan:
    """Plan jobs: first the evaluations by forward passes, protocol by protocol; then the attacks, model by model.

    Args:
        jobs: one per model.
        data: the data of all models.
        options: the options of all steps.
        audit: how thoroughly each model is audited before its first attack at an eps, or an audit that exists; True:
            quickly where there are fewer than 256 samples, else fully; False: not at all.

    Raises:
        BadInputError: an unknown protocol or option; two models with the same name; a curve without an attack; a folder
            of frost images that no protocol uses; no data, where the models are of no data set of their own.
    """
    if not isinstance(audit, (Audit, bool)) and audit not in ("full", "quick"):
        raise BadInputError(f"audit = {audit!r}", expected="'full', 'quick', True, False for none, or an audit")
    plugins.load()  # metrics are listed at the end, so a plugin must fail before
    _require_names(jobs)
    requested = {
        (number, str(name)): _steps(number, job, name) for number, job in enumerate(jobs) for name in job.protocols
    }
    for number, job in enumerate(jobs):
        attacks = [name for name in job.protocols if isinstance(requested[number, str(name)][0].scenario, Attack)]
        if job.curve and not attacks:
            raise BadInputError("a curve without an attack protocol", fix="see: rbk list protocols")
    every = [step for budgets in requested.values() for step in budgets]
    attacked = any(isinstance(step.scenario, Attack) for step in every)
    if options.frost_folder is not None and not any(step.uses_frost_folder for step in every):
        raise BadInputError(
            f"the folder of frost images {options.frost_folder} is used by no protocol",
            fix="set frost = 'original' with the corruption 'frost', or leave out the folder",
        )
    if options.keep_adversarial and not attacked:
        raise BadInputError(
            f"images of {options.keep_adversarial} samples to keep, but no protocol is an attack",
            fix="add an attack, or leave keep_adversarial out",
        )
    if isinstance(audit, Audit) and not attacked:
        raise BadInputError(f"an audit for protocol '{every[0].label}', which is no attack", fix="leave it out")
    models = tuple(job.model for job in jobs)
    steps = (*_measurements(requested), *_attacks(requested, audit))
    names = [model.model if isinstance(model, ModelRequest) else model.label for model in models]
    return Plan(models, data.of(names), options, steps, tuple(requested))


_Every = Mapping[tuple[int, str], Sequence[Evaluate]]
"""(model, protocol) -> its requested evaluations; a curve has one for each budget."""


def _steps(number: int, job: Job, protocol: str | Path) -> list[Evaluate]:
    """Return the evaluations of one model under one protocol."""
    every = [job.overrides]
    if job.curve and is_attack(protocol):
        every = [job.overrides | budget for budget in along_curve(job.curve, independent=job.independent)]
    return [Evaluate((number,), str(protocol), *prepare(protocol, overrides), overrides) for overrides in every]


def _measurements(requested: _Every) -> list[Evaluate]:
    """Return one step per protocol that is not an attack, for all its models; its label names the replaced fields."""
    shared: dict[str, Evaluate] = {}
    for [step, *_] in requested.values():
        if not isinstance(step.scenario, Attack):
            before = shared.get(step.label)
            shared[step.label] = step if before is None else replace(before, models=before.models + step.models)
    return list(shared.values())


def _attacks(requested: _Every, audit: Audit | Level | bool) -> list[Evaluate | AuditModel]:
    """Return the steps that audit each model, once for each eps of its attacks, and attack it."""
    steps: list[Evaluate | AuditModel] = []
    for (number, _), budgets in requested.items():
        for step in budgets:
            if not isinstance(step.scenario, Attack):
                continue
            first = None if audit is False else AuditModel(number, audit, eps_of(step.scenario))
            steps += [] if first is None or first in steps else [first]
            steps.append(step)
    return steps


def _require_names(jobs: Sequence[Job]) -> None:
    """Refuse two models with the same name: their records would have the same files."""
    names = [job.model.label for job in jobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInputError(f"model '{twice}' is given twice", fix="give each model once")
