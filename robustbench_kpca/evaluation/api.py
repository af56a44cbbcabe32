"""The functions `evaluate` and `attack`, for any module that maps images in [0, 1] to logits."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from robustbench_kpca.attack_loop.pool import Sample
from robustbench_kpca.audit.budgets import eps_of
from robustbench_kpca.audit.preflight import preflight
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.given import as_dataset
from robustbench_kpca.early_exit import no_early_exit
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.attacked import attack_all
from robustbench_kpca.evaluation.command import call
from robustbench_kpca.evaluation.engines import engine_for
from robustbench_kpca.evaluation.given import data_for, data_for_all, named_model
from robustbench_kpca.evaluation.measure import measure_attack, measure_together
from robustbench_kpca.evaluation.options import STALL_MINUTES, RunOptions
from robustbench_kpca.evaluation.python_reporter import python_reporter
from robustbench_kpca.evaluation.trial import NamedModel, runner_for
from robustbench_kpca.inference.acceleration import Acceleration, accelerated
from robustbench_kpca.inference.input_space import InputSpace
from robustbench_kpca.inference.runner import device_for, frozen, require_module
from robustbench_kpca.models.source import class_names_of
from robustbench_kpca.progress import Progress
from robustbench_kpca.protocols.loading import along_curve
from robustbench_kpca.protocols.scenario import Attack, Override
from robustbench_kpca.protocols.threat import parse_fraction
from robustbench_kpca.records.audit import Audit, Level
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.compute import BATCH_SIZE, first_batch
from robustbench_kpca.tasks.prepare import prepare
from robustbench_kpca.types import Images, Labels, Mask

Protocols = list[str] | list[Path] | list[str | Path] | tuple[str | Path, ...]


@dataclass(frozen=True)
class AttackResult:
    """The result of `attack`, one row per sample in the given order.

    Attributes:
        images: in pixel space: the first image that broke the sample, else the image of lowest margin found; the clean
            image where the sample was not attacked.
        broken: whether the sample is misclassified; includes errors on clean images.
        ranks: number of classes ranked above the true label on that image; at most 4 is correct in the top 5.
        forwards: forward passes, without the one on the clean image.
        backwards: backward passes.

    """

    images: Images
    broken: Mask
    ranks: Tensor
    forwards: Tensor
    backwards: Tensor


@overload
def evaluate(
    model: nn.Module | str, images: Any = None, labels: Any = None, *, protocol: str | Path, **how: Any
) -> Record: ...
@overload
def evaluate(
    model: nn.Module | str, images: Any = None, labels: Any = None, *, protocol: Protocols, **how: Any
) -> list[Record]: ...
@no_early_exit()
def evaluate(
    model: nn.Module | str,
    images: Any = None,
    labels: Any = None,
    *,
    protocol: str | Path | Protocols,
    classes: int | None = None,
    size: int | None = None,
    crop: float | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    workers: int | None = None,
    processes: int | None = None,
    executor: str | None = None,
    stall_minutes: float = STALL_MINUTES,
    device: str | None = None,
    out: Path | str | None = None,
    fresh: bool = False,
    allow: Collection[str] = (),
    frost_folder: Path | str | None = None,
    compile: str | None = None,  # noqa: A002 (torch's name)
    tf32: bool = False,
    name: str | None = None,
    source: str = "python",
    audit: Audit | Level | bool = True,
    keep_adversarial: int = 0,
    smaller: Record | None = None,
    progress: Progress | None = None,
    quiet: bool = False,
    **overrides: Override,
) -> Record | list[Record]:
    """Evaluate a model under one protocol or several.

    Args:
        model: the name of a model, as in `rbk eval --model`; or any module in evaluation mode that maps images in
            [0, 1] to logits: (batch, classes) or, for segmentation, (batch, classes, height, width).
        images: float tensor or array (batch, channels, height, width) in [0, 1], or uint8 array (batch, height, width,
            3), with `labels`; a loader of such pairs; the name of a data set (`"digits"`, `"shapes"`) or a folder; a
            `Dataset` of this package, of torch or of Hugging Face (`data.given.as_dataset`). A named model may do
            without: it is evaluated on the set of its family.
        labels: one integer per image, if `images` is a tensor or array.
        protocol: name of a preset (`rbk list protocols`) or path of a TOML file; or a list of these.
        classes: number of classes of the images, where their labels do not have all of them.
        size: side in pixels to which pictures are resized, without cropping. By default pictures of a folder or of a
            collection are as a named model, or `describe`, states it, or else as they are; arrays always as they are.
        crop: such as 0.875: the short side is resized to size / crop, and the centre cropped. The record says how
            pictures were resized and cropped (`spec.data.resized`).
        seed: see `RunOptions`.
        batch_size: see `RunOptions`.
        workers: see `RunOptions`.
        processes: see `RunOptions`; a model that is an object must be one that can be pickled.
        executor: "serial", "processes", "ray" or "ray:ADDRESS"; see `RunOptions`.
        stall_minutes: see `RunOptions`.
        device: see `RunOptions`.
        out: see `RunOptions`.
        fresh: see `RunOptions`.
        allow: see `RunOptions`.
        frost_folder: see `RunOptions`.
        compile: mode of `torch.compile`, such as "default" or "reduce-overhead" (CUDA graphs); None: not compiled.
        tf32: allow TF32 products on a CUDA device.
        name: name of the model in the record; default: its own, or the name of its class.
        source: where the model came from, for the record.
        audit: the audit for the records of attacks: True or `"full"` makes one first, as `rbk eval` does (about a
            minute, for each eps of the protocols), `"quick"` one of fewer checks; False omits it; or pass an existing
            audit (`audit.run.audit`).
        keep_adversarial: see `RunOptions`; it needs `out`.
        smaller: the record of the same evaluation at the next smaller budget of `below`; it is then not repeated.
        progress: called with the numbers of samples done and of all and, by name, what else is known
            (`progress.Progress`). By default a bar on a terminal or in a notebook, else a line a minute in the log.
        quiet: show nothing; flags are logged. Else audits, records and remarks are shown as `rbk eval` shows them, on a
            terminal or in a notebook, and by the logger `robustbench_kpca` elsewhere.
        **overrides: fields of the protocol to replace, such as `eps="3/255"`.

    Returns:
        The record, or one for each protocol of a list; `record.metrics["robust_accuracy"]` has `.value`, `.low`,
        `.high`, `.n`.

    Raises:
        BadInputError: the input would give a meaningless result; nothing is written.
        EvaluationError: the evaluation started but could not finish.

    """
    options = RunOptions.of(
        seed,
        batch_size,
        workers,
        device,
        out,
        fresh,
        allow,
        frost_folder,
        Acceleration(compile, tf32),
        keep_adversarial,
        processes,
        executor,
        stall_minutes,
    )
    several = isinstance(protocol, (list, tuple))
    asked: Sequence[str | Path] = protocol if isinstance(protocol, (list, tuple)) else [protocol]
    if not asked:
        raise BadInputError("no protocol", expected="the name of one, or several", fix="see: rbk list protocols")
    prepared = [(one, *prepare(one, overrides)) for one in asked]
    if isinstance(audit, Audit) and not any(isinstance(scenario, Attack) for *_, scenario in prepared):
        raise BadInputError(f"an audit for protocol '{prepared[0][1]}', which is no attack", fix="leave it out")
    named = named_model(model, name, source)
    data = data_for(model, named.model, images, labels, classes, size, crop)
    asked_audit: Audit | Level | None = "full" if audit is True else audit or None
    audits: dict[str | float, Audit] = {}
    records: list[Record] = []
    with ExitStack() as stack:
        backend = stack.enter_context(engine_for(options))
        stack.enter_context(accelerated([named.model], options.acceleration))
        reporter = stack.enter_context(python_reporter(progress, quiet=quiet))
        for one, label, scenario in prepared:
            command = _called(named, data, one, options, {"size": size, "crop": crop, **overrides})
            told = reporter.start(f"{named.name}  {label}")
            if not isinstance(scenario, Attack):
                records += measure_together([named], data, label, scenario, options, told, [command], backend)
                reporter.recorded(records[-1])
                continue
            made = measure_attack(
                named, data, label, scenario, options, smaller=smaller, progress=told, command=command,
                backend=backend, audit=audits.get(eps := eps_of(scenario), asked_audit), announce=reporter.announce,
            )  # fmt: skip
            records.append(made)
            reporter.recorded(made)
            if made.audit is not None and isinstance(asked_audit, str):
                audits[eps] = made.audit
                reporter.audited(made.audit, kept=made.created < reporter.begun)
    return records if several else records[0]


@no_early_exit()
def evaluate_together(
    models: Mapping[str, nn.Module],
    images: Any,
    labels: Any = None,
    *,
    protocol: str | Path,
    seed: int = 0,
    batch_size: int | None = None,
    workers: int | None = None,
    device: str | None = None,
    out: Path | str | None = None,
    fresh: bool = False,
    frost_folder: Path | str | None = None,
    compile: str | None = None,  # noqa: A002 (torch's name)
    tf32: bool = False,
    sources: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    quiet: bool = False,
    **overrides: Override,
) -> list[Record]:
    """Evaluate several models on the same samples; each sample is loaded and corrupted only once.

    The records are the same as those of `evaluate` for each model.

    Args:
        models: name -> model.
        images: see `evaluate`.
        labels: see `evaluate`.
        protocol: a protocol that is not an attack.
        seed: see `RunOptions`.
        batch_size: see `RunOptions`.
        workers: see `RunOptions`.
        device: see `RunOptions`.
        out: see `RunOptions`.
        fresh: see `RunOptions`.
        frost_folder: see `RunOptions`.
        compile: mode of `torch.compile`, such as "default" or "reduce-overhead" (CUDA graphs); None: not compiled.
        tf32: allow TF32 products on a CUDA device.
        sources: name -> where the model came from, for the records.
        progress: see `evaluate`.
        quiet: see `evaluate`.
        **overrides: see `evaluate`.

    Returns:
        One record per model, in the order of `models`.

    Raises:
        BadInputError: the protocol is an attack, or as in `evaluate`.

    """
    label, scenario = prepare(protocol, overrides)
    if isinstance(scenario, Attack):
        raise BadInputError(f"protocol '{label}' is an attack", fix="evaluate models one by one")
    options = RunOptions.of(
        seed, batch_size, workers, device, out, fresh, (), frost_folder, Acceleration(compile, tf32)
    )
    came_from = sources or {}
    named = [NamedModel(model, name, came_from.get(name, "python")) for name, model in models.items()]
    data = data_for_all(models.values(), images, labels)
    commands = [_called(one, data, protocol, options, overrides) for one in named]
    with accelerated(models.values(), options.acceleration), python_reporter(progress, quiet=quiet) as reporter:
        told = reporter.start(f"{len(named)} models  {label}")
        records = measure_together(named, data, label, scenario, options, told, commands)
        for record in records:
            reporter.recorded(record)
    return records


def _called(
    named: NamedModel, data: Dataset, protocol: str | Path, options: RunOptions, others: Mapping[str, Any]
) -> tuple[str]:
    """Return the call from Python in short."""
    sizes = {"seed": options.seed, "batch_size": options.batch_size, "allow": options.allow}
    return call(named.name, f"{data.name} {data.split}, {len(data)} samples", str(protocol), **sizes, **others)


def evaluate_curve(
    model: nn.Module,
    images: Any,
    labels: Any = None,
    *,
    protocol: str | Path,
    eps: Sequence[str | float],
    independent: bool = False,
    **how: Any,
) -> list[Record]:
    """Attack at several budgets, from the smallest; a sample broken at one counts as broken at every larger one.

    With `independent`, each budget is attacked alone, as published tables of several budgets usually are.

    Args:
        model: see `evaluate`.
        images: see `evaluate`.
        labels: see `evaluate`.
        protocol: an attack.
        eps: the budgets; the protocol in each record lists the smaller budgets in its field `below`.
        independent: attack each budget alone; `below` is then empty in every record.
        **how: other arguments of `evaluate`.

    Returns:
        One record per budget, ascending; unless `independent`, robust accuracy does not increase with eps.

    """
    records: list[Record] = []
    for overrides in along_curve({parse_fraction(value): value for value in eps}.values(), independent=independent):
        smaller = records[-1] if records and not independent else None
        settings: dict[str, Any] = {"smaller": smaller, **overrides, **how}
        if records and records[0].audit is not None and not independent:
            settings["audit"] = records[0].audit  # one for all budgets: `audit.budgets.eps_of`
        records.append(evaluate(model, images, labels, protocol=protocol, **settings))
    return records


@no_early_exit()
def attack(
    model: nn.Module,
    images: Images,
    labels: Labels,
    protocol: str | Path,
    *,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    device: str | None = None,
    allow: Collection[str] = (),
    **overrides: Override,
) -> AttackResult:
    """Attack a batch of images; arguments as in `evaluate`. The id of sample i is "i"."""
    label, scenario = prepare(protocol, overrides)
    if not isinstance(scenario, Attack):
        raise BadInputError(f"protocol '{label}' is not an attack", fix="see: rbk list attacks, rbk list protocols")
    require_module(model)
    data = as_dataset(images, labels)
    task_named(data.task).compute.require_data(data, scenario)
    decided: dict[int, Sample] = {}
    runner = runner_for(model, data, scenario, batch_size, device_for(model, device))
    compute = task_named(data.task).compute
    logits = runner.logits(first_batch(compute, data, runner)[0])
    data = as_dataset(images, labels, classes=logits.shape[1])  # a batch need not have labels of every class
    data, _ = compute.match_classes(data, logits.shape[1], class_names_of(model))
    preflight(runner, *first_batch(compute, data, runner), allow)
    with frozen(model):
        outcomes = attack_all(
            runner, data, scenario, seed=seed, keep=lambda sample: decided.update({sample.index: sample})
        )
    ordered = [decided[index] for index in range(len(data))]
    return AttackResult(
        InputSpace.of(model, scenario.space).leave(torch.stack([sample.worst for sample in ordered])),
        torch.from_numpy(outcomes["broken_by"] != ""),
        torch.tensor([sample.rank for sample in ordered]),
        torch.from_numpy(outcomes["forwards"]),
        torch.from_numpy(outcomes["backwards"]),
    )
