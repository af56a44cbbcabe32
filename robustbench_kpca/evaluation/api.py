"""`evaluate` and `attack`: from any module that maps images in [0, 1] to logits, to records and adversarial images."""

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca.attack_loop.engine import Sample, build_attack
from robustbench_kpca.audit.preflight import preflight
from robustbench_kpca.corruptions import require_profile
from robustbench_kpca.data.load import as_dataset
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.data.scenes import Scenes
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.compatibility import try_cells
from robustbench_kpca.evaluation.dense import measure_dense, scene_batch
from robustbench_kpca.evaluation.measure import measure_attack
from robustbench_kpca.evaluation.plain import Lane, Progress, cells_of, frost_of, measure_plain
from robustbench_kpca.evaluation.segmentation import SceneLane, measure_scenes
from robustbench_kpca.evaluation.trial import BATCH_SIZE, Trial, first_batch, runner_for
from robustbench_kpca.inference.input_space import Space
from robustbench_kpca.inference.runner import Runner, device_for, frozen
from robustbench_kpca.protocols.scenario import (
    Attack,
    Corruption,
    Override,
    Plain,
    Scenario,
    Segmentation,
    along_curve,
    load_scenario,
)
from robustbench_kpca.protocols.threat import parse_fraction
from robustbench_kpca.records.audit import Audit
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record, Spec
from robustbench_kpca.types import Images, Labels, Mask


@dataclass(frozen=True)
class AttackResult:
    """Per sample, in the order given.

    `images`, in pixel space, are the broken image where there is one, else the worst one found (or the one attacks were
    given, where none was attacked);
    `broken` includes clean errors; passes exclude the one clean forward.
    """

    images: Images
    broken: Mask
    forwards: Tensor
    backwards: Tensor


def prepare(protocol: str, overrides: dict[str, Override]) -> tuple[str, Scenario]:
    """Resolve a protocol, and check that everything it names exists and can be used.

    Raises:
        BadInputError: unknown protocol, attack or corruption; unknown or unusable option.

    """
    label, scenario = load_scenario(protocol, overrides)
    if isinstance(scenario, Attack):
        image, zero = torch.full((1, 3, 32, 32), 0.5), torch.zeros(1, dtype=torch.int64)
        for stage in scenario.stage:
            build_attack(stage).start(image, zero, scenario.threat, zero)  # refuses a norm or target it does not know
    elif isinstance(scenario, Corruption | Segmentation) and scenario.mode != "stored":
        for name in scenario.corruptions:
            require_profile(name, scenario.profile)
    return label, scenario


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
    name: str | None = None,
    source: str = "python",
    out: Path | str | None = None,
    fresh: bool = False,
    allow: Collection[str] = (),
    progress: Progress | None = None,
    smaller: Record | None = None,
    audit: Audit | None = None,
    frost_folder: Path | str | None = None,
    **overrides: Override,
) -> Record:
    """Evaluate a model under a protocol.

    Args:
        model: any module in evaluation mode that maps images in [0, 1] to logits, one row an image or, to be shown
            scenes, one a pixel.
        images: float tensor (batch, channels, height, width) in [0, 1] with `labels`, a loader of such pairs, a data
            name (`"digits"`, `"shapes"`), `Samples` or `Scenes`.
        labels: one integer a sample, where `images` is a tensor.
        protocol: name of a preset (`rbk list protocols`) or path of a TOML file.
        seed: of all randomness.
        batch_size: at which the model always runs; part of the record, since another size may flip a verdict. By
            default 64; fewer windows of scenes, if the logits of all their pixels take much memory.
        workers: processes that decode and corrupt; no influence on the result.
        device: such as "cuda"; by default the model's own.
        name: of the model in the record; by default its class.
        source: where the model came from, for the record.
        out: folder for the record; also makes the run resumable. A finished record of the same specification is
            returned as it is.
        fresh: evaluate again even if such a record is there.
        allow: checks of `evaluation.preflight` that may fail; each that does is a flag of the record.
        progress: called with (done, total).
        smaller: the record of the same at the next smaller budget of `below`, which then is not measured again.
        audit: of this model on this data (`evaluation.audit.audit`), to be kept in the record of an attack.
        frost_folder: of the original frost pictures, for protocols with `frost = "original"`.
        **overrides: fields of the protocol, such as `eps="3/255"`.

    Returns:
        The record; `record.metrics["robust_accuracy"]` has `.value`, `.low`, `.high`, `.n`.

    Raises:
        BadInputError: anything about the input that makes the number meaningless; nothing is written.
        EvaluationError: the evaluation started and could not finish.

    """
    label, scenario = prepare(protocol, overrides)
    data = as_data(images, labels)
    how: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "device": device, "fresh": fresh}
    folder = None if out is None else Path(out)
    trial = Trial.begin(
        model, data, label, scenario, **how, name=name, source=source, out=folder, audit=audit
    )  # fmt: skip
    if trial.finished is not None:
        return trial.finished
    if not isinstance(scenario, Attack):
        return _measure_together([trial], scenario, workers=workers, frost_folder=frost_folder, progress=progress)[0]
    carried = None if smaller is None else _carried(trial.spec, scenario, smaller)
    findings = preflight(trial.runner, *_first(trial.runner, data), allow)
    asked: dict[str, Any] = {"seed": seed, "workers": workers, "journal": trial.journal, "progress": progress}
    started = time.perf_counter()
    with frozen(model):
        if isinstance(data, Scenes):
            outcomes = measure_dense(trial.runner, data, scenario, **asked, carried=carried)
        else:
            outcomes = measure_attack(trial.runner, data, scenario, **asked, carried=carried)
    return trial.finish(outcomes, time.perf_counter() - started, findings, smaller, shown=len(data))


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
    sources: Mapping[str, str] | None = None,
    out: Path | str | None = None,
    fresh: bool = False,
    frost_folder: Path | str | None = None,
    progress: Progress | None = None,
    **overrides: Override,
) -> list[Record]:
    """Evaluate several models on the same pictures, each made once: the same records as one by one, sooner.

    Args:
        models: by name.
        images: and everything else as in `evaluate`; the protocol is no attack.
        labels: see there.
        protocol: see there.
        seed: see there.
        batch_size: see there.
        workers: see there.
        device: see there.
        sources: where each model came from, for its record.
        out: see there.
        fresh: see there.
        frost_folder: see there.
        progress: see there.
        **overrides: see there.

    Returns:
        One record a model, in their order.

    """
    label, scenario = prepare(protocol, overrides)
    if isinstance(scenario, Attack):
        raise BadInputError(f"protocol '{label}' is an attack", fix="evaluate models one by one")
    data = as_data(images, labels)
    how: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "device": device, "fresh": fresh}
    folder, came_from = None if out is None else Path(out), sources or {}
    trials = [
        Trial.begin(model, data, label, scenario, **how, name=name, source=came_from.get(name, "python"), out=folder)
        for name, model in models.items()
    ]
    open_ = [trial for trial in trials if trial.finished is None]
    measured = iter(_measure_together(open_, scenario, workers=workers, frost_folder=frost_folder, progress=progress))
    return [next(measured) if trial.finished is None else trial.finished for trial in trials]


def _first(runner: Runner, data: Samples | Scenes) -> tuple[Images, Labels]:
    """Return the first batch that an attack is made on."""
    if not isinstance(data, Scenes):
        return first_batch(runner, data)
    images, masks = scene_batch(data, runner.batch_size)
    return images.to(runner.device), masks.to(runner.device)


def as_data(images: Any, labels: Any) -> Samples | Scenes:
    """Return images with labels or masks, in the order of outcomes."""
    data = as_dataset(images, labels).in_order()
    return data if isinstance(data, Scenes) else Samples.require(data)


def _measure_together(
    trials: Sequence[Trial],
    scenario: Plain | Segmentation,
    *,
    workers: int,
    frost_folder: Path | str | None,
    progress: Progress | None,
) -> list[Record]:
    """Show every picture to every trial's model; return their records."""
    if not trials:
        return []
    data, spec = trials[0].data, trials[0].spec
    how: dict[str, Any] = {"seed": spec.seed, "workers": workers, "progress": progress}
    how["frost"] = frost_of(scenario, frost_folder)
    if isinstance(scenario, Corruption | Segmentation) and scenario.mode != "stored":
        try_cells(data, scenario, spec.seed, how["frost"])
    with contextlib.ExitStack() as stack:
        for trial in trials:
            stack.enter_context(frozen(trial.runner.model))
        if isinstance(data, Scenes):
            assert isinstance(scenario, Segmentation)
            scene_lanes = [SceneLane(t.spec.model.name, t.runner, scenario, t.journal) for t in trials]
            outcomes = measure_scenes(scene_lanes, data, scenario, **how)
            return [
                trial.finish(found, lane.seconds, shown=lane.forwards)
                for trial, found, lane in zip(trials, outcomes, scene_lanes, strict=True)
            ]
        assert isinstance(scenario, Plain)
        rows = len(cells_of(scenario)) * len(data)
        lanes = [Lane(t.spec.model.name, t.runner, scenario, rows, t.journal) for t in trials]
        outcomes = measure_plain(lanes, data, scenario, batch_size=spec.batch_size, **how)
    return [trial.finish(found, lane.seconds) for trial, found, lane in zip(trials, outcomes, lanes, strict=True)]


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
    samples = Samples.require(as_dataset(images, labels))
    where = device_for(model, device)
    decided: dict[int, Sample] = {}
    runner = runner_for(model, scenario, batch_size, where)
    preflight(runner, *first_batch(runner, samples), allow)
    with frozen(model):
        outcomes = measure_attack(
            runner, samples, scenario,
            seed=seed, workers=0, journal=None, progress=None,
            keep=lambda sample: decided.update({sample.index: sample}),
        )  # fmt: skip
    ordered = [decided[index] for index in range(len(samples))]
    return AttackResult(
        Space.of(model, scenario.space).leave(torch.stack([sample.worst for sample in ordered])),
        torch.from_numpy(~outcomes.correct),
        torch.from_numpy(outcomes["forwards"]),
        torch.from_numpy(outcomes["backwards"]),
    )


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


def _carried(spec: Spec, scenario: Scenario, smaller: Record) -> Outcomes:
    """Return the outcomes at the next smaller budget, having seen that they are of the same run otherwise."""
    below = scenario.smaller().digest() if isinstance(scenario, Attack) and scenario.below else ""
    protocol = spec.protocol.model_copy(update={"digest": below})
    wanted = spec.model_copy(update={"protocol": protocol})
    met = smaller.spec.model_copy(update={"protocol": protocol})
    if below != smaller.spec.protocol.digest or met.digest() != wanted.digest():
        raise BadInputError(
            f"{smaller.spec.stem()} is not the same evaluation at the next smaller budget",
            fix="give it the same model, images, seed and batch size, or leave `smaller` out",
        )
    return smaller.outcomes
