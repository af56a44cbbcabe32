"""What `eval` and `demo` share: running a list of (model, protocol) pairs into a folder, each resumable."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from robustbench_kpca.cli import _console
from robustbench_kpca.errors import BadInputError

if TYPE_CHECKING:
    from torch import nn

    from robustbench_kpca.data.io.folder import View
    from robustbench_kpca.data.samples import Samples
    from robustbench_kpca.data.scenes import Scenes
    from robustbench_kpca.records.audit import Audit
    from robustbench_kpca.records.record import Record

    Start = Callable[[str], Callable[[int, int], None]]


_NO_OPTIONS = ("name", "checkpoint", "untrained", "ema", "resize_positions")


@dataclass(frozen=True)
class Job:
    """One model, as the command line names it, and the protocols it is due."""

    model: str
    protocols: Sequence[str]
    checkpoint: str | None = None
    ema: bool = False
    resize_positions: bool = False
    untrained: bool = False
    name: str | None = None
    model_options: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    curve: Sequence[str] = ()

    def settings(self, kind: str) -> list[dict[str, Any]]:
        """Return the overrides of each evaluation under a protocol: several for an attack along a curve over eps."""
        if not self.curve or kind != "attack":
            return [self.overrides]
        from robustbench_kpca.protocols.scenario import along_curve

        return [self.overrides | budget for budget in along_curve(self.curve)]

    def load(self) -> "nn.Module":
        """Build the model and give it its weights."""
        from robustbench_kpca.models.loading import load_model

        return load_model(
            self.model, self.checkpoint, untrained=self.untrained, ema=self.ema,
            resize_positions=self.resize_positions, **self.model_options,
        )  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Which images, as the command line names them."""

    data: str
    split: str | None = None
    limit: int | None = None
    against: str | None = None
    subset: int | None = None
    bad_images: Literal["fail", "skip"] = "fail"
    cache: Path | None = None

    @property
    def are_scenes(self) -> bool:
        """Whether they come with masks."""
        from robustbench_kpca.data.scenes import SCENES

        return self.data.partition(":")[0] in SCENES.names()

    def load_scenes(self) -> "Scenes":
        """Load images with masks, as they are."""
        from robustbench_kpca.data.scenes import load_scenes

        asked = {"--against": self.against, "--subset": self.subset, "--cache": self.cache}
        for option, value in asked.items():
            if value is not None:
                raise BadInputError(f"{option} with scenes ('{self.data}')", expected="images with labels")
        return load_scenes(self.data, self.split or "val", self.limit, self.bad_images)

    def load(self, view: "View", start: "Start") -> "Samples":
        """Load them as a model wants to see them; their split is `test` unless one is named."""
        from robustbench_kpca.data.io.cache import cached
        from robustbench_kpca.data.io.pair import Pair
        from robustbench_kpca.data.io.subset import published_subset
        from robustbench_kpca.data.load import load_data

        if self.subset is not None and self.limit is not None:
            raise BadInputError(f"--subset {self.subset} with --limit {self.limit}", expected="one of them")
        how: dict[str, Any] = {"view": view, "bad_images": self.bad_images}
        samples = load_data(self.data, self.split or "test", self.limit, **how)
        if self.subset is not None:
            samples = published_subset(samples, self.subset)
        if self.against is not None:
            samples = Pair(samples, load_data(self.against, "test", self.limit, **how))
        return samples if self.cache is None else cached(samples, self.cache, start(f"decoding {samples.name}"))


def run_jobs(
    jobs: Sequence[Job],
    out: Path,
    source: Source,
    *,
    seed: int,
    batch_size: int | None,
    workers: int,
    device: str | None,
    fresh: bool,
    quiet: bool,
    audited: bool,
    allow: Sequence[str] = (),
    frost: Path | None = None,
) -> list["Record"]:
    """Evaluate every job; what is finished already is taken as it is. All names are checked before anything runs.

    What needs forward passes only is shown to all models at once that see images alike; attacks follow, model by model.
    With `audited`, a model that is attacked is audited first, and its records of attacks keep the audit.
    """
    from robustbench_kpca.evaluation.api import prepare
    from robustbench_kpca.files import require_writable
    from robustbench_kpca.models.loading import input_view

    kinds = {protocol: prepare(protocol, {})[1].kind for job in jobs for protocol in job.protocols}
    folders: dict[str, Path | None] = {}
    for job in jobs:
        if job.curve and all(kinds[protocol] != "attack" for protocol in job.protocols):
            raise BadInputError("--curve without an attack", fix="see: rbk list protocols")
        for protocol in job.protocols:
            for overrides in job.settings(kinds[protocol]):
                scenario = prepare(protocol, overrides)[1]
                folders[protocol] = frost if getattr(scenario, "frost", "") == "original" else None
    if frost is not None and not any(folders.values()):
        raise BadInputError(f"--frost {frost} without a protocol that uses it", fix="--set frost=original, say")
    models = [job.load() for job in jobs]
    views = [None if source.are_scenes else input_view(model) for model in models]
    require_writable(out)
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    how: dict[str, Any] = {
        "seed": seed, "batch_size": batch_size, "workers": workers, "device": device or best_device(), "out": out,
        "fresh": fresh,
    }  # fmt: skip
    records: dict[tuple[int, str], list[Record]] = {}
    with _console.progress(quiet=quiet) as start:
        sets = {
            view: source.load_scenes() if view is None else source.load(view, start) for view in dict.fromkeys(views)
        }
        for protocol in [name for name, kind in kinds.items() if kind != "attack"]:
            for view, samples in sets.items():
                asked = [n for n, job in enumerate(jobs) if views[n] == view and protocol in job.protocols]
                made = _together(
                    {n: (jobs[n], models[n]) for n in asked}, protocol, samples, start,
                    frost_folder=folders[protocol], **how,
                )  # fmt: skip
                for number, record in made.items():
                    records[number, protocol] = [record]
                    _say(record, kept=record.created < begun, quiet=quiet)
        for number, (job, model, view) in enumerate(zip(jobs, models, views, strict=True)):
            attacks = [protocol for protocol in job.protocols if kinds[protocol] == "attack"]
            found, data = None, sets[view]
            if audited and attacks:
                found = _audit(job, model, data, allow=allow, **how)
                say_flags(found, quiet=quiet)
            for protocol in attacks:
                records[number, protocol] = []
                for record in _attacked(job, model, data, protocol, found, start, allow=allow, **how):
                    records[number, protocol].append(record)
                    _say(record, kept=record.created < begun, quiet=quiet)
    return [
        record for number, job in enumerate(jobs) for protocol in job.protocols for record in records[number, protocol]
    ]


def _together(
    jobs: dict[int, tuple[Job, "nn.Module"]], protocol: str, data: "Samples | Scenes", start: "Start", **how: Any
) -> dict[int, "Record"]:
    """Evaluate under a protocol without attack, all models that share the protocol's settings at once."""
    from robustbench_kpca.evaluation.api import evaluate_together

    if not jobs:
        return {}
    names = {number: job.name or model_name(job) for number, (job, _) in jobs.items()}
    overrides = next(iter(jobs.values()))[0].overrides  # one command line, one --set
    shown = next(iter(names.values())) if len(names) == 1 else f"{len(names)} models"
    made = evaluate_together(
        {names[number]: model for number, (_, model) in jobs.items()}, data, protocol=protocol,
        sources={names[number]: source_of(job) for number, (job, _) in jobs.items()},
        progress=start(f"{shown}  {protocol}"), **how, **overrides,
    )  # fmt: skip
    return dict(zip(jobs, made, strict=True))


def _attacked(
    job: Job,
    model: "nn.Module",
    data: "Samples | Scenes",
    protocol: str,
    audit: "Audit | None",
    start: "Start",
    **how: Any,
) -> Iterator["Record"]:
    """Evaluate one model under one attack, or along a curve of budgets."""
    from robustbench_kpca.evaluation.api import evaluate

    smaller, name = None, job.name or model_name(job)
    for overrides in job.settings("attack"):
        smaller = evaluate(
            model, data, protocol=protocol, name=name, source=source_of(job),
            progress=start(f"{name}  {protocol}"), smaller=smaller, audit=audit, **how, **overrides,
        )  # fmt: skip
        yield smaller


def _audit(
    job: Job,
    model: "nn.Module",
    samples: Any,
    *,
    workers: int,  # noqa: ARG001
    **how: Any,
) -> "Audit":
    from robustbench_kpca.audit.run import audit

    return audit(model, samples, name=job.name or model_name(job), **how)


def best_device() -> str:
    """Return the device of a command that is told none."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def say_flags(audit: "Audit", *, quiet: bool) -> None:
    """Name the flags of an audit, or say that there are none."""
    flags = ", ".join(check.name for check in audit.flags) or "no flags"
    _console.note(f"{audit.subject.model}  audit  {flags}  ({audit.seconds:.1f} s)", quiet=quiet)


def split_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `--set` pairs: `model.iterations=6` goes to the model, everything else to the protocol."""
    model = {key.removeprefix("model."): value for key, value in settings.items() if key.startswith("model.")}
    odd = next((key for key in model if key in _NO_OPTIONS or not key.isidentifier()), None)
    if odd is not None:
        raise BadInputError(f"'model.{odd}' cannot be set", fix="options of the architecture can")
    return model, {key: value for key, value in settings.items() if not key.startswith("model.")}


def check_unique(jobs: Sequence[Job]) -> None:
    """Refuse two jobs that would write the same records."""
    names = [job.name or model_name(job) for job in jobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInputError(f"model '{twice}' is given twice", fix="give each model once")


def model_name(job: Job) -> str:
    """Return what the model is called in records and file names, unless `--name` says."""
    options = "".join(f"+{key}={value}" for key, value in job.model_options.items())
    stem = "" if job.checkpoint is None else f"@{_checkpoint_name(job.checkpoint, suffix=False)}"
    return f"{job.model}{options}{stem}{'+ema' if job.ema else ''}".replace(":", "-").replace("/", "-")


def source_of(job: Job) -> str:
    """Say where the weights came from and how they were loaded; what they are, the record's hash says."""
    how = [word for word, asked in (("ema", job.ema), ("resize_positions", job.resize_positions)) if asked]
    file = [] if job.checkpoint is None else [_checkpoint_name(job.checkpoint, suffix=True)]
    return f"{job.model}{' with ' if file or how else ''}{', '.join(file + how)}"


def _checkpoint_name(checkpoint: str, *, suffix: bool) -> str:
    from robustbench_kpca.models.checkpoint import HUB

    if checkpoint.startswith(HUB):
        return checkpoint if suffix else checkpoint.removeprefix(HUB)
    return Path(checkpoint).name if suffix else Path(checkpoint).stem


def _say(record: "Record", *, kept: bool, quiet: bool) -> None:
    from robustbench_kpca.metrics import metric_for
    from robustbench_kpca.tasks import task_named

    names = task_named(record.spec.data.task).pages.headline(record)
    numbers = ", ".join(f"{name} {metric_for(name).unit.text(record.metrics[name].value)}" for name in names)
    how = "kept" if kept else f"{record.seconds:.1f} s"
    _console.note(f"{record.spec.model.name}  {record.spec.protocol.name}  {numbers}  ({how})", quiet=quiet)
