"""`evaluate` and `attack`: from any module that maps samples in [0, 1] to logits, to records and adversarial images."""

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca.attack_loop.pool import Sample
from robustbench_kpca.audit.preflight import preflight
from robustbench_kpca.audit.run import audit as audit_model
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.load import as_dataset
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.attacked import attack_all
from robustbench_kpca.evaluation.forward_only import show_all
from robustbench_kpca.evaluation.options import Progress, RunOptions
from robustbench_kpca.evaluation.trial import NamedModel, Trial, runner_for
from robustbench_kpca.inference.corrupted import frost_of
from robustbench_kpca.inference.input_space import InputSpace
from robustbench_kpca.inference.runner import device_for, frozen
from robustbench_kpca.protocols.loading import along_curve
from robustbench_kpca.protocols.scenario import Attack, Override, Scenario
from robustbench_kpca.protocols.threat import parse_fraction
from robustbench_kpca.records.audit import Audit
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record, Spec
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.compute import BATCH_SIZE, first_batch
from robustbench_kpca.tasks.prepare import prepare, try_cells
from robustbench_kpca.types import Images, Labels, Mask


@dataclass(frozen=True)
class AttackResult:
    """Per sample, in the order given.

    `images`, in pixel space, are the broken image where there is one, else the worst one found (or the one attacks were
    given, where none was attacked); `broken` includes clean errors; passes exclude the one clean forward pass.
    """

    images: Images
    broken: Mask
    forwards: Tensor
    backwards: Tensor


def evaluate(
    model: nn.Module,
    images: Any,
    labels: Any = None,
    *,
    protocol: str,
    seed: int = 0,
    batch_size: int | None = None,
    workers: int = 0,
    device: str | None = None,
    out: Path | str | None = None,
    fresh: bool = False,
    allow: Collection[str] = (),
    frost_folder: Path | str | None = None,
    name: str | None = None,
    source: str = "python",
    audit: Audit | bool = True,
    smaller: Record | None = None,
    progress: Progress | None = None,
    **overrides: Override,
) -> Record:
    """Evaluate a model under a protocol.

    Args:
        model: any module in evaluation mode that maps samples in [0, 1] to logits: one row an image or, for scenes, one
            row a pixel.
        images: float tensor (batch, channels, height, width) in [0, 1] with `labels`, a loader of such pairs, a data
            name (`"digits"`, `"shapes"`), or a data set.
        labels: one integer a sample, where `images` is a tensor.
        protocol: name of a preset (`rbk list protocols`) or path of a TOML file.
        seed: and `batch_size`, `workers`, `device`, `out`, `fresh`, `allow`, `frost_folder`: see `RunOptions`.
        batch_size: see there.
        workers: see there.
        device: see there.
        out: see there.
        fresh: see there.
        allow: see there.
        frost_folder: see there.
        name: of the model in the record; by default its class.
        source: where the model came from, for the record.
        audit: of the model, for the record of an attack: True makes one first, as `rbk eval` does (about a minute);
            False leaves it out; or one that was made before (`audit.run.audit`).
        smaller: the record of the same at the next smaller budget of `below`, which then is not measured again.
        progress: called with (done, total).
        **overrides: fields of the protocol, such as `eps="3/255"`.

    Returns:
        The record; `record.metrics["robust_accuracy"]` has `.value`, `.low`, `.high`, `.n`.

    Raises:
        BadInputError: anything about the input that makes the number meaningless; nothing is written.
        EvaluationError: the evaluation started and could not finish.

    """
    options = RunOptions.of(seed, batch_size, workers, device, out, fresh, allow, frost_folder)
    label, scenario = prepare(protocol, overrides)
    named, data = NamedModel.of(model, name, source), as_dataset(images, labels).in_order()
    if not isinstance(scenario, Attack):
        return measure_together([named], data, label, scenario, options, progress)[0]
    return measure_attack(named, data, label, scenario, options, audit=audit, smaller=smaller, progress=progress)


def evaluate_together(
    models: Mapping[str, nn.Module],
    images: Any,
    labels: Any = None,
    *,
    protocol: str,
    seed: int = 0,
    batch_size: int | None = None,
    workers: int = 0,
    device: str | None = None,
    out: Path | str | None = None,
    fresh: bool = False,
    frost_folder: Path | str | None = None,
    sources: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    **overrides: Override,
) -> list[Record]:
    """Evaluate several models on the same samples, each made once: the same records as one by one, sooner.

    Args:
        models: by name.
        images: and every other argument as in `evaluate`.
        labels: see there.
        protocol: no attack.
        seed: see there.
        batch_size: see there.
        workers: see there.
        device: see there.
        out: see there.
        fresh: see there.
        frost_folder: see there.
        sources: where each model came from, for its record.
        progress: see there.
        **overrides: see there.

    Returns:
        One record a model, in their order.

    """
    label, scenario = prepare(protocol, overrides)
    if isinstance(scenario, Attack):
        raise BadInputError(f"protocol '{label}' is an attack", fix="evaluate models one by one")
    options = RunOptions.of(seed, batch_size, workers, device, out, fresh, (), frost_folder)
    came_from = sources or {}
    named = [NamedModel(model, name, came_from.get(name, "python")) for name, model in models.items()]
    return measure_together(named, as_dataset(images, labels).in_order(), label, scenario, options, progress)


def evaluate_curve(
    model: nn.Module, images: Any, labels: Any = None, *, protocol: str, eps: Sequence[str | float], **how: Any
) -> list[Record]:
    """Evaluate at several budgets, from the smallest: what breaks at one counts as broken at every larger one.

    Args:
        model: and `images`, `labels`, `protocol` and every other argument as in `evaluate`.
        images: see there.
        labels: see there.
        protocol: an attack.
        eps: the budgets; each record names the smaller ones in its field `below`.
        **how: see there.

    Returns:
        One record per budget, ascending; robust accuracy never rises.

    """
    records: list[Record] = []
    for overrides in along_curve({parse_fraction(value): value for value in eps}.values()):
        settings: dict[str, Any] = {"smaller": records[-1] if records else None, **overrides, **how}
        records.append(evaluate(model, images, labels, protocol=protocol, **settings))
    return records


def attack(
    model: nn.Module,
    images: Images,
    labels: Labels,
    protocol: str,
    *,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    device: str | None = None,
    allow: Collection[str] = (),
    **overrides: Override,
) -> AttackResult:
    """Attack a batch; arguments as in `evaluate`, sample i being named by its position "i"."""
    label, scenario = prepare(protocol, overrides)
    if not isinstance(scenario, Attack):
        raise BadInputError(f"protocol '{label}' is no attack", fix="see: rbk list attacks, rbk list protocols")
    data = as_dataset(images, labels)
    decided: dict[int, Sample] = {}
    runner = runner_for(model, data, scenario, batch_size, device_for(model, device))
    preflight(runner, *first_batch(task_named(data.task).compute, data, runner), allow)
    with frozen(model):
        outcomes = attack_all(
            runner, data, scenario, seed=seed, keep=lambda sample: decided.update({sample.index: sample})
        )
    ordered = [decided[index] for index in range(len(data))]
    return AttackResult(
        InputSpace.of(model, scenario.space).leave(torch.stack([sample.worst for sample in ordered])),
        torch.from_numpy(outcomes["broken_by"] != ""),
        torch.from_numpy(outcomes["forwards"]),
        torch.from_numpy(outcomes["backwards"]),
    )


def measure_attack(
    named: NamedModel,
    data: Dataset,
    label: str,
    scenario: Attack,
    options: RunOptions,
    *,
    audit: Audit | bool,
    smaller: Record | None = None,
    progress: Progress | None = None,
) -> Record:
    """Attack one model; return its record. Arguments as in `evaluate`, `data` in the order of outcomes."""
    if audit is True:
        finished = Trial.begin(named, data, label, scenario, options).finished
        if finished is not None and finished.audit is not None:
            return finished
        audit = audit_for(named, data, options)
    trial = Trial.begin(named, data, label, scenario, options, audit or None)
    if trial.finished is not None:
        return trial.finished
    carried = None if smaller is None else _carried(trial.spec, scenario, smaller)
    findings = preflight(
        trial.runner, *first_batch(task_named(data.task).compute, data, trial.runner), options.allow
    )  # fmt: skip
    started = time.perf_counter()
    with frozen(named.model):
        outcomes = attack_all(
            trial.runner, data, scenario, seed=options.seed, workers=options.workers, journal=trial.journal,
            progress=progress, smaller=carried,
        )  # fmt: skip
    return trial.finish(outcomes, time.perf_counter() - started, len(data), findings, smaller)


def audit_for(named: NamedModel, data: Dataset, options: RunOptions) -> Audit:
    """Audit a model for its records of attacks on these data; one that is kept in the folder is taken as it is."""
    return audit_model(
        named.model, data, seed=options.seed, batch_size=options.batch_size, device=options.device, name=named.name,
        allow=options.allow, out=options.out, fresh=options.fresh,
    )  # fmt: skip


def measure_together(
    models: Sequence[NamedModel],
    data: Dataset,
    label: str,
    scenario: Scenario,
    options: RunOptions,
    progress: Progress | None = None,
) -> list[Record]:
    """Show every sample, made once, to every model; return their records. `data` are in the order of outcomes."""
    trials = [Trial.begin(named, data, label, scenario, options) for named in models]
    waiting = [trial for trial in trials if trial.finished is None]
    if waiting:
        made = iter(_measure(waiting, options, progress))
        return [next(made) if trial.finished is None else trial.finished for trial in trials]
    return [trial.finished for trial in trials if trial.finished is not None]


def _measure(trials: Sequence[Trial], options: RunOptions, progress: Progress | None) -> list[Record]:
    data, scenario = trials[0].data, trials[0].scenario
    frost = frost_of(scenario, options.frost_folder)
    try_cells(data, scenario, options.seed, frost)
    compute = task_named(data.task).compute
    results = [compute.results(t.spec.model.name, t.runner, data, scenario, t.journal) for t in trials]
    with contextlib.ExitStack() as stack:
        for trial in trials:
            stack.enter_context(frozen(trial.runner.model))
        show_all(
            results, data, scenario, batch_size=trials[0].spec.batch_size, seed=options.seed, workers=options.workers,
            frost=frost, progress=progress,
        )  # fmt: skip
    return [trial.finish(one.outcomes(), one.seconds, one.forwards) for trial, one in zip(trials, results, strict=True)]


def _carried(spec: Spec, scenario: Attack, smaller: Record) -> Outcomes:
    """Return the outcomes at the next smaller budget, having seen that they are of the same run otherwise."""
    below = scenario.smaller().digest() if scenario.below else ""
    protocol = spec.protocol.model_copy(update={"digest": below})
    wanted = spec.model_copy(update={"protocol": protocol})
    met = smaller.spec.model_copy(update={"protocol": protocol})
    if below != smaller.spec.protocol.digest or met.digest() != wanted.digest():
        raise BadInputError(
            f"{smaller.spec.stem()} is not the same evaluation at the next smaller budget",
            fix="give it the same model, images, seed and batch size, or leave `smaller` out",
        )
    return smaller.outcomes
