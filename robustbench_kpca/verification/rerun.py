"""Remake records, or a random choice of their samples, and compare the outcomes row by row."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import nn

from robustbench_kpca._core.errors import BadInputError, BenchmarkError
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.inference.acceleration import accelerated
from robustbench_kpca._engine.inference.environment import FOREIGN, environment
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.names import is_outside
from robustbench_kpca.evaluation.command import Command, parse
from robustbench_kpca.evaluation.engines import engine_for, make_record
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import NamedModel, data_for
from robustbench_kpca.evaluation.versions import addresses, libraries
from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.records.differences import Difference, chance_of_finding, differences, only
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.spec import Environment, Spec
from robustbench_kpca.records.spot_check import Entry, SpotCheck
from robustbench_kpca.verification.stated import AS_RECORDED, Conditions, load_for, require_allowed

FORGED = 0.1  # share of forged samples whose discovery is stated


@dataclass(frozen=True)
class Rerun:
    """A record beside what its command gives now.

    Attributes:
        samples: the ids that were evaluated again.
        seed: seed of the choice of samples; None if all were evaluated.
        exact: whether every column had to be equal; otherwise see `records.differences.ROUNDING`.
        why: what differs between the two machines, if the comparison was not exact.
    """

    samples: tuple[str, ...]
    total: int
    seed: int | None
    exact: bool
    why: tuple[str, ...]
    rows: int
    differing: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether no row differs."""
        return not self.differing

    @property
    def power(self) -> float:
        """Probability that this choice holds a forged sample, had a tenth of all samples been forged."""
        return chance_of_finding(max(1, round(FORGED * self.total)), self.total, len(self.samples))


def rerun(
    record: Record,
    model: nn.Module | None = None,
    images: Any = None,
    labels: Any = None,
    *,
    samples: int | None = None,
    seed: int | None = None,
    stated: Sequence[str] = (),
    how: Conditions = AS_RECORDED,
    progress: Progress | None = None,
) -> Rerun:
    """Remake a record and compare it sample by sample.

    The outcome of a sample does not depend on the other samples, so a part of them, evaluated in batches of the same
    size, must give exactly the rows of the record, on the same machine with the same versions.

    Args:
        model: the model; default: see `load_for`. A name of the package's own trained models stands for its bundled
            weights.
        images: the data, as in `evaluate`; default: those that the command names.
        samples: number of samples to evaluate, chosen at random; default: all.
        seed: seed of the choice; default: a new one, so that nobody can know beforehand which samples are looked at.
        stated: a command of a board that shows the record. Its model is remade, whatever the record's command
            names; its data, where the record does not say its command, as older ones do not.

    Raises:
        BadInputError: the record cannot be remade: no command, no weights, no data, other weights or data than those of
            the record, other versions of packages, or code that may not be run.
    """
    recorded_environment = record.environment
    spec = record.spec
    scenario = spec.protocol.scenario
    if scenario.digest() != spec.protocol.digest:
        raise BadInputError(f"the protocol in {spec.stem()} is not the one that its digest names", fix="evaluate again")
    if isinstance(scenario, Attack) and scenario.imported is not None:
        raise BadInputError(f"{spec.stem()} is of images that others found", fix="add --kept-images")
    versions = _versions(recorded_environment, environment(torch.device("cpu")), scenario)
    if versions and not how.other_versions:
        raise BadInputError(
            f"the record was made with {', '.join(versions)}",
            fix="install those versions, or add --other-versions: rows are then compared with a rounding policy",
        )
    require_allowed(addresses(scenario), how)
    model, data, options = asked_for(record, stated, how, model, images=images, labels=labels)
    named = NamedModel(model, spec.model.name, spec.model.source)
    options = how.options(spec, options)
    with engine_for(options) as engine, accelerated([named.model], options.compile, tf32=options.tf32):
        evaluation = Evaluation.begin(named, data, spec.protocol.name, scenario, options)
        why = [*versions, *_machine(recorded_environment, evaluation.surroundings)]
        why += _code(spec, evaluation.spec) if how.other_versions else []
        if how.other_versions and not why and evaluation.spec.model.probe_sha256 != spec.model.probe_sha256:
            why = ["the first batch is answered in other digits"]  # a processor of the same name with other kernels
        require_same(spec, evaluation.spec, exact=not why)
        part, seed = _choice(data, samples, seed)
        again = Evaluation.begin(named, part, spec.protocol.name, scenario, options)
        outcomes = make_record(again, engine, progress).outcomes
        differing = differences(only(record.outcomes, part.ids), outcomes, exact=not why)
    return Rerun(
        tuple(part.ids), len(data), seed, not why, why=tuple(why), rows=len(outcomes), differing=tuple(differing)
    )


def asked_for(
    record: Record, stated: Sequence[str], how: Conditions, model: nn.Module | None, images: Any, labels: Any
) -> tuple[nn.Module, Dataset, RunOptions]:
    """Return model, data and options: those given, else those that the commands name."""
    if model is not None and images is not None:
        return model, data_for(model, images, labels), RunOptions()
    command = _command(record, stated)
    source = command.data.data
    require_allowed([source] if images is None and isinstance(source, str) and is_outside(source) else [], how)
    model = load_for(record, how, stated) if model is None else model
    data = command.data.load_for(model) if images is None else data_for(model, images, labels)
    return model, data.in_order(), command.options


def _command(record: Record, stated: Sequence[str]) -> Command:
    """Return the command of the record, else the stated one."""
    words = record.command
    if len(words) == 1 and not stated:
        raise BadInputError(f"the record was made from Python: {words[0]}", fix="call rerun(record, model, images)")
    return parse(words if len(words) > 1 or not stated else stated)


def _versions(then: Environment, now: Environment, scenario: Scenario) -> list[str]:
    """Say which packages have another version; libraries of attacks matter only where the protocol uses them."""
    unused = set(FOREIGN) - libraries(scenario)
    return [
        f"{name} {version} (here {now.packages.get(name, 'missing')})"
        for name, version in then.packages.items()
        if now.packages.get(name, "missing") != version and name not in unused
    ]


def _machine(then: Environment, now: Environment) -> list[str]:
    """Say what else can change the last digits. Older records have no family and model of the processor."""
    if now.processor.startswith(f"{then.processor} (family "):
        now = now.model_copy(update={"processor": then.processor})
    return [
        f"{name} {getattr(then, name)} (here {getattr(now, name)})"
        for name in ("processor", "device", "threads", "compiled", "float32")
        if getattr(then, name) != getattr(now, name)
    ]


def _code(then: Spec, now: Spec) -> list[str]:
    """Say what from outside the package has other code. Older records name none."""
    return [f"other code of {name}" for name, digest in then.code.items() if now.code.get(name) != digest]


def require_same(then: Spec, now: Spec, *, exact: bool) -> None:
    """Refuse to compare with another model or with other samples.

    Raises:
        BadInputError: weights, options, code, answers on the first batch, or samples differ.
    """
    if now.model.parameters_sha256 != then.model.parameters_sha256:
        raise BadInputError(f"the weights of '{then.model.name}' are not those of the record", fix="find the old ones")
    if not then.model.agrees(now.model.config):
        raise BadInputError(f"the options of '{then.model.name}' are not those of the record", fix="give those")
    if now.data.digest != then.data.digest:
        raise BadInputError(
            f"the samples of '{then.data.name}' ({now.data.n}) are not those of the record ({then.data.n})",
            fix="restore the data, and run in the folder in which the record was made",
        )
    if exact and _code(then, now):
        raise BadInputError(
            f"the record was made with {', '.join(_code(then, now))}",
            fix="find the old code, or add --other-versions: rows are then compared with a rounding policy",
        )
    if exact and now.model.probe_sha256 != then.model.probe_sha256:
        raise BadInputError(
            f"'{then.model.name}' has the weights of the record, and answers otherwise on the first batch",
            fix="check out the code with which the record was made, or add --other-versions: another processor rounds "
            "otherwise",
        )


def _choice(data: Dataset, samples: int | None, seed: int | None) -> tuple[Dataset, int | None]:
    if samples is None or samples >= len(data):
        return data, None
    if samples < 1:
        raise BadInputError(f"{samples} samples", expected="at least 1")
    seed = secrets.randbelow(2**32) if seed is None else seed
    chosen: Sequence[int] = np.random.default_rng(seed).choice(len(data), samples, replace=False).tolist()
    return data.take(sorted(chosen)), seed


def spot_check(
    records: Sequence[tuple[Record, Sequence[str]]],
    check: SpotCheck,
    *,
    save: Callable[[SpotCheck], None],
    report: Callable[[Entry], None],
    how: Conditions = AS_RECORDED,
) -> SpotCheck:
    """Check every record that `check` has no entry of, or that could not be remade; return all entries.

    Args:
        records: each with the command of the board that shows it (`stated` of `rerun`), or an empty one.
        check: how many samples, by which seed, and the entries so far.
        save: called after each record, so that an interrupted check goes on.
        report: called with what came out.
    """
    for record, stated in records:
        before = check.entry(record)
        if before is not None and before.samples:
            continue
        entry = checked_again(record, check.samples, check.seed, stated=stated, how=how)
        check = check.model_copy(update={"records": check.records | {record.spec.stem(): entry}})
        save(check)
        report(entry)
    return check


def checked_again(record: Record, samples: int, seed: int, **asked: Any) -> Entry:
    """Make samples of a record again; say how many rows differ, or why none was made. `asked`: keywords of `rerun`."""
    spec = record.spec
    about = {
        "model": spec.model.name,
        "protocol": spec.protocol.name,
        "outcomes": record.outcomes_file.sha256,
        "checked": f"{datetime.now(UTC):%Y-%m-%d}",
        "total": spec.data.n,
    }
    try:
        done = rerun(record, samples=samples, seed=seed, **asked)
    except BenchmarkError as error:
        return Entry(**about, samples=0, rows=0, differing=0, exact=False, why=str(error))
    return Entry(
        **about,
        samples=len(done.samples),
        rows=done.rows,
        differing=len(done.differing),
        exact=done.exact,
        why="; ".join(done.why),
    )
