"""One model under one protocol, on its way to a record: what identifies it is known before anything is measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import nn

from robustbench_kpca.audit.model_identity import require_subject
from robustbench_kpca.audit.preflight import Finding
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.data.scenes import Scenes
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.compatibility import first_shown, require_data
from robustbench_kpca.evaluation.segmentation import windowing_of
from robustbench_kpca.files import require_writable, sha256
from robustbench_kpca.inference.environment import environment
from robustbench_kpca.inference.journal import Journal
from robustbench_kpca.inference.loader import batches
from robustbench_kpca.inference.runner import Runner, device_for, own_window
from robustbench_kpca.inference.sliding_window.windows import Windowing, batch_size_for, first_window
from robustbench_kpca.metrics import measure
from robustbench_kpca.models import model_info
from robustbench_kpca.protocols.scenario import Attack, Scenario, Segmentation
from robustbench_kpca.records.audit import Audit
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import (
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
from robustbench_kpca.types import Images, Labels, Logits

BATCH_SIZE = 64


@dataclass
class Trial:
    """What is to be measured. `finished` is the record, where one of exactly this specification is there already."""

    runner: Runner
    data: Samples | Scenes
    scenario: Scenario
    spec: Spec
    surroundings: Environment
    audit: Audit | None
    out: Path | None
    journal: Journal | None
    finished: Record | None

    @classmethod
    def begin(
        cls,
        model: nn.Module,
        data: Samples | Scenes,
        label: str,
        scenario: Scenario,
        *,
        seed: int,
        batch_size: int | None,
        device: str | None,
        name: str | None,
        source: str,
        out: Path | None,
        fresh: bool,
        audit: Audit | None = None,
    ) -> "Trial":
        """Identify model, data and protocol; look for a finished record.

        Raises:
            BadInputError: the model cannot be run, the folder cannot be written, the audit is of something else; model,
                data and protocol do not fit each other.

        """
        _require_kind(data, label, scenario)
        if isinstance(data, Samples):
            assert not isinstance(scenario, Segmentation)
            require_data(data, scenario)
        batch_size = _batch_size(model, data, scenario) if batch_size is None else batch_size
        seed, batch_size = whole("seed", seed), whole("batch_size", batch_size)
        where = device_for(model, device)
        if out is not None:
            require_writable(out)
        window = own_window(model) if isinstance(data, Scenes) and isinstance(scenario, Attack) else 0
        runner = runner_for(model, scenario, batch_size, where, window)
        spec = Spec(
            model=model_info(model, name or type(model).__name__, source, _probe(runner, data, scenario)),
            data=_data_info(data),
            protocol=ProtocolInfo(name=label, digest=scenario.digest(), resolved=scenario.model_dump(mode="json")),
            seed=seed,
            batch_size=batch_size,
        )
        if audit is not None:
            require_subject(audit, runner, data)
        trial = cls(runner, data, scenario, spec, environment(where), audit, out, None, None)
        if out is not None:
            trial.finished = None if fresh else trial._find(out)
            if trial.finished is None:
                key = sha256((spec.digest() + trial.surroundings.model_dump_json()).encode())
                trial.journal = Journal(out / f".{spec.stem()}.partial", key)
        return trial

    def finish(
        self,
        outcomes: Outcomes,
        seconds: float,
        allowed: Sequence[Finding] = (),
        smaller: Record | None = None,
        shown: int | None = None,
    ) -> Record:
        """Make the record, save it where there is a folder, and forget the journal.

        `shown` is how often the model was shown something as it is; by default every row is of one such showing.
        """
        attacked = "forwards" in outcomes.columns
        shown = len(outcomes) if shown is None else shown
        notes = [f"preflight, allowed: {finding}" for finding in allowed]
        notes += [*_flags(outcomes), *_missing(self.data), *_halved(self.runner, self.spec.batch_size, smaller)]
        record = Record(
            spec=self.spec,
            metrics=measure(outcomes, self.scenario),
            passes=Passes(
                forwards=self.scenario.draws * shown + (int(outcomes["forwards"].sum()) if attacked else 0),
                backwards=int(outcomes["backwards"].sum()) if attacked else 0,
            ),
            outcomes_file=OutcomesFile(file=outcomes_name(self.spec), sha256=outcomes.digest(), rows=len(outcomes)),
            environment=self.surroundings,
            citations=self.scenario.citations,
            flags=tuple(notes),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(seconds + (self.journal.seconds_before if self.journal else 0.0), 3),
        ).attach(outcomes)
        record = record if self.audit is None else record.audited(self.audit)
        if self.out is not None:
            record.save(self.out)
        if self.journal is not None:
            self.journal.remove()
        return record

    def _find(self, out: Path) -> Record | None:
        """Return the record of exactly this specification, if it is there and whole, with the audit that was given."""
        path = out / f"{self.spec.stem()}{SUFFIX}"
        if not path.is_file():
            return None
        try:
            record = load_record(path)
        except NewerSchemaError:
            raise
        except BadInputError:  # damaged: it is made again
            return None
        if record.spec.digest() != self.spec.digest():
            return None
        if self.audit is not None and record.audit != self.audit:
            record = record.audited(self.audit)
            record.save(out)
        return record


def runner_for(model: nn.Module, scenario: Scenario, batch_size: int, device: torch.device, window: int = 0) -> Runner:
    """Return what runs the model as the scenario asks, through windows if there is one."""
    bf16 = isinstance(scenario, Attack) and scenario.precision == "bf16-search"
    search = torch.bfloat16 if bf16 else torch.float32
    return Runner(model.to(device), batch_size, device, scenario.draws, search, window)


def whole(name: str, value: object) -> int:
    """Refuse what is no whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInputError(f"{name} = {value!r}", expected="a whole number")
    return value


def first_batch(runner: Runner, samples: Samples) -> tuple[Images, Labels]:
    """Return the first images: what the model answers on them identifies it, whatever its code."""
    first = range(min(runner.batch_size, len(samples)))
    _, images, labels = next(batches(samples, first, batch_size=runner.batch_size))
    return images.to(runner.device), labels.to(runner.device)


def _data_info(data: Samples | Scenes) -> DataInfo:
    known = data.labels.count(0) if isinstance(data, Samples) and data.is_pair else None
    return DataInfo(
        name=data.name, split=data.split, n=len(data), classes=data.classes, digest=data.digest(), known=known,
        class_names=data.class_names if isinstance(data, Scenes) else None,
    )  # fmt: skip


def _require_kind(data: Samples | Scenes, label: str, scenario: Scenario) -> None:
    """Refuse a protocol for classifiers on scenes, and the other way round."""
    if isinstance(scenario, Attack) or isinstance(data, Scenes) == isinstance(scenario, Segmentation):
        return
    what, instead = ("scenes", "segmentation") if isinstance(data, Scenes) else ("images with labels", "clean")
    raise BadInputError(
        f"data '{data.name}' ({what}) for protocol '{label}' ({scenario.kind})",
        expected="scenes for a protocol of segmentation, and images with labels for the others",
        fix=f"choose protocol '{instead}', say, or other data",
    )


def _batch_size(model: nn.Module, data: Samples | Scenes, scenario: Scenario) -> int:
    """Return the batch size of who names none: smaller where every pixel has logits."""
    if not isinstance(data, Scenes):
        return BATCH_SIZE
    if isinstance(scenario, Segmentation):
        side = windowing_of(model, scenario).window
    else:
        side = max(own_window(model), *data.size(0))
    return batch_size_for(data.classes, side, BATCH_SIZE)


def _probe(runner: Runner, data: Samples | Scenes, scenario: Scenario) -> Logits:
    """Return what the model says of the first images; refuse a model that is not for such data."""
    if isinstance(data, Samples):
        assert not isinstance(scenario, Segmentation)
        logits = runner.logits(first_batch(runner, first_shown(data, scenario))[0])
        if logits.ndim != 2:
            raise BadInputError(
                f"the model returned {(runner.batch_size, *logits.shape[1:])}",
                expected="one row of logits an image",
                fix="segmenters are for scenes: --data shapes -p segmentation",
            )
        return logits
    logits = runner.logits(_first_windows(runner, data, scenario))
    if logits.ndim != 4:
        raise BadInputError(
            f"the model returned {(runner.batch_size, *logits.shape[1:])}",
            expected="logits for every pixel",
            fix=f"data '{data.name}' are scenes: choose a segmenter, such as symvit_shapes",
        )
    if logits.shape[1] != data.classes:
        raise BadInputError(
            f"a model of {logits.shape[1]} classes for the {data.classes} of data '{data.name}'",
            fix="choose a segmenter that was trained on such scenes",
        )
    return logits


def _first_windows(runner: Runner, scenes: Scenes, scenario: Scenario) -> Images:
    """Return windows of the first scenes; attacks know none, so there a window has the first scene's shorter side."""
    first = [scenes.image(index) for index in range(min(runner.batch_size, len(scenes)))]
    if isinstance(scenario, Segmentation):
        windowing = windowing_of(runner.model, scenario)
    else:
        side = min(first[0].shape[:2])
        windowing = Windowing(side, side)
    return torch.stack([first_window(image, windowing) for image in first]).to(runner.device)


def _missing(samples: Samples | Scenes) -> list[str]:
    """Flag what the data lack."""
    notes = []
    if samples.skipped:
        how = "used" if isinstance(samples, Scenes) else "read"
        which = "; ".join(samples.skipped[:3]) + ("; ..." if len(samples.skipped) > 3 else "")
        notes.append(f"{len(samples.skipped)} images of the data cannot be {how} and were left out: {which}")
    if samples.expected is not None and len(samples) < samples.expected:
        notes.append(f"{len(samples)} of the {samples.expected} images that were published as {samples.name}")
    return notes


def _halved(runner: Runner, asked: int, smaller: Record | None) -> tuple[str, ...]:
    """Flag that memory ran out, here or at the smaller budgets that were carried over."""
    said = "memory ran out at batch size"
    before = [] if smaller is None else [flag for flag in smaller.flags if flag.startswith(said)]
    now = [f"{said} {asked}: it went on with {runner.batch_size}"] if runner.batch_size < asked else []
    return tuple(dict.fromkeys(before + now))


def _flags(outcomes: Outcomes) -> tuple[str, ...]:
    if "zero_gradients" not in outcomes.columns:
        return ()
    flags = []
    if outcomes.kind == "attack" and (retracted := int((outcomes["retracted"] > 0).sum())):
        flags.append(f"{retracted} samples looked broken in a gradient pass and were not in a plain one")
    if zero := int((outcomes["zero_gradients"] > 0).sum()):
        flags.append(f"{zero} samples met a gradient that was zero everywhere: the attack may be blind there")
    if nonfinite := int((outcomes["nonfinite"] > 0).sum()):
        flags.append(f"{nonfinite} samples met NaN or infinite logits under attack")
    return tuple(flags)
