"""`evaluate` and `attack`: from any module that maps images in [0, 1] to logits, to records and adversarial images."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca.audit import Audit
from robustbench_kpca.corruptions import require_profile
from robustbench_kpca.data._loading import as_samples
from robustbench_kpca.data._samples import Samples
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.engine import Sample, build_attack
from robustbench_kpca.evaluation.environment import environment
from robustbench_kpca.evaluation.journal import Journal
from robustbench_kpca.evaluation.loader import batches
from robustbench_kpca.evaluation.measure import Progress, measure_attack, measure_plain
from robustbench_kpca.evaluation.preflight import Finding, preflight
from robustbench_kpca.evaluation.runner import Runner, device_for, frozen
from robustbench_kpca.evaluation.space import Space
from robustbench_kpca.evaluation.subject import require_subject
from robustbench_kpca.files import require_writable, sha256
from robustbench_kpca.metrics import measure
from robustbench_kpca.models import model_info
from robustbench_kpca.outcomes import Outcomes
from robustbench_kpca.record import (
    SUFFIX,
    DataInfo,
    Environment,
    NewerSchemaError,
    OutcomesFile,
    Passes,
    ProtocolInfo,
    Record,
    Spec,
    load_record,
    outcomes_name,
)
from robustbench_kpca.scenario import Attack, Corruption, Override, Scenario, along_curve, load_scenario
from robustbench_kpca.threat import parse_fraction
from robustbench_kpca.types import Images, Labels, Mask

BATCH_SIZE = 64


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
    elif isinstance(scenario, Corruption):
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
    batch_size: int = BATCH_SIZE,
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
    **overrides: Override,
) -> Record:
    """Evaluate a model under a protocol.

    Args:
        model: any module in evaluation mode that maps images in [0, 1] to logits.
        images: float tensor (batch, channels, height, width) in [0, 1] with `labels`, a loader of such pairs, a data
            name (`"digits"`), or `Samples`.
        labels: one integer a sample, where `images` is a tensor.
        protocol: name of a preset (`rbk list protocols`) or path of a TOML file.
        seed: of all randomness.
        batch_size: at which the model always runs; part of the record, since another size may flip a verdict.
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
        **overrides: fields of the protocol, such as `eps="3/255"`.

    Returns:
        The record; `record.metrics["robust_accuracy"]` has `.value`, `.low`, `.high`, `.n`.

    Raises:
        BadInputError: anything about the input that makes the number meaningless; nothing is written.
        EvaluationError: the evaluation started and could not finish.

    """
    label, scenario = prepare(protocol, overrides)
    seed, batch_size = _whole("seed", seed), _whole("batch_size", batch_size)
    samples = as_samples(images, labels).in_order()
    where = device_for(model, device)
    if out is not None:
        require_writable(Path(out))
    runner = _runner(model, scenario, batch_size, where)
    first, labels_of_first = _first_batch(runner, samples)
    spec = Spec(
        model=model_info(model, name or type(model).__name__, source, runner.logits(first)),
        data=_data_info(samples),
        protocol=ProtocolInfo(name=label, digest=scenario.digest(), resolved=scenario.model_dump(mode="json")),
        seed=seed,
        batch_size=batch_size,
    )
    if audit is not None:
        require_subject(audit, runner, samples)
    surroundings = environment(where)
    journal = None
    if out is not None:
        finished = None if fresh else _finished(Path(out), spec)
        if finished is not None:
            return finished if audit is None or finished.audit == audit else _audited(finished, audit, Path(out))
        key = sha256((spec.digest() + surroundings.model_dump_json()).encode())
        journal = Journal(Path(out) / f".{spec.stem()}.partial", key)
    carried = None if smaller is None else _carried(spec, scenario, smaller)
    findings = preflight(runner, first, labels_of_first, allow) if isinstance(scenario, Attack) else []
    started = time.perf_counter()
    with frozen(model):
        how: dict[str, Any] = {"seed": seed, "workers": workers, "journal": journal, "progress": progress}
        if isinstance(scenario, Attack):
            outcomes = measure_attack(runner, samples, scenario, **how, carried=carried)
        else:
            outcomes = measure_plain(runner, samples, scenario, **how)
    seconds = time.perf_counter() - started + (journal.seconds_before if journal else 0.0)
    record = _record(spec, scenario, outcomes, surroundings, seconds, findings, _halved(runner, batch_size, smaller))
    record = record if audit is None else record.audited(audit)
    if out is not None:
        record.save(Path(out))
    if journal is not None:
        journal.remove()
    return record


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
    samples = as_samples(images, labels)
    where = device_for(model, device)
    decided: dict[int, Sample] = {}
    runner = _runner(model, scenario, batch_size, where)
    preflight(runner, *_first_batch(runner, samples), allow)
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
    if below != smaller.spec.protocol.digest or met != wanted:
        raise BadInputError(
            f"{smaller.spec.stem()} is not the same evaluation at the next smaller budget",
            fix="give it the same model, images, seed and batch size, or leave `smaller` out",
        )
    return smaller.outcomes


def _runner(model: nn.Module, scenario: Scenario, batch_size: int, device: torch.device) -> Runner:
    bf16 = isinstance(scenario, Attack) and scenario.precision == "bf16-search"
    search = torch.bfloat16 if bf16 else torch.float32
    return Runner(model.to(device), batch_size, device, scenario.draws, search)


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInputError(f"{name} = {value!r}", expected="a whole number")
    return value


def _first_batch(runner: Runner, samples: Samples) -> tuple[Images, Labels]:
    """Return the first images: what the model answers on them identifies it, whatever its code."""
    first = range(min(runner.batch_size, len(samples)))
    _, images, labels = next(batches(samples, first, batch_size=runner.batch_size))
    return images.to(runner.device), labels.to(runner.device)


def _data_info(samples: Samples) -> DataInfo:
    return DataInfo(
        name=samples.name, split=samples.split, n=len(samples), classes=samples.classes, digest=samples.digest()
    )


def _finished(out: Path, spec: Spec) -> Record | None:
    """Return the record of exactly this specification, if it is there and whole."""
    path = out / f"{spec.stem()}{SUFFIX}"
    if not path.is_file():
        return None
    try:
        record = load_record(path)
    except NewerSchemaError:
        raise
    except BadInputError:  # damaged: it is made again
        return None
    return record if record.spec.digest() == spec.digest() else None


def _audited(finished: Record, audit: Audit, out: Path) -> Record:
    record = finished.audited(audit)
    record.save(out)
    return record


def _record(
    spec: Spec,
    scenario: Scenario,
    outcomes: Outcomes,
    surroundings: Environment,
    seconds: float,
    allowed: Sequence[Finding],
    halved: tuple[str, ...],
) -> Record:
    attacked = outcomes.kind == "attack"
    return Record(
        spec=spec,
        metrics=measure(outcomes),
        passes=Passes(
            forwards=scenario.draws * len(outcomes) + (int(outcomes["forwards"].sum()) if attacked else 0),
            backwards=int(outcomes["backwards"].sum()) if attacked else 0,
        ),
        outcomes_file=OutcomesFile(file=outcomes_name(spec), sha256=outcomes.digest(), rows=len(outcomes)),
        environment=surroundings,
        citations=scenario.citations,
        flags=tuple(f"preflight, allowed: {finding}" for finding in allowed) + _flags(outcomes) + halved,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
    ).attach(outcomes)


def _halved(runner: Runner, asked: int, smaller: Record | None) -> tuple[str, ...]:
    """Flag that memory ran out, here or at the smaller budgets that were carried over."""
    said = "memory ran out at batch size"
    before = [] if smaller is None else [flag for flag in smaller.flags if flag.startswith(said)]
    now = [f"{said} {asked}: it went on with {runner.batch_size}"] if runner.batch_size < asked else []
    return tuple(dict.fromkeys(before + now))


def _flags(outcomes: Outcomes) -> tuple[str, ...]:
    if outcomes.kind != "attack":
        return ()
    flags = []
    if retracted := int((outcomes["retracted"] > 0).sum()):
        flags.append(f"{retracted} samples looked broken in a gradient pass and were not in a plain one")
    if zero := int((outcomes["zero_gradients"] > 0).sum()):
        flags.append(f"{zero} samples met a gradient that was zero everywhere: the attack may be blind there")
    if nonfinite := int((outcomes["nonfinite"] > 0).sum()):
        flags.append(f"{nonfinite} samples met NaN or infinite logits under attack")
    return tuple(flags)
