"""One evaluation of one model under one protocol: find its record or identify it, and write its record afterwards."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._core.files import require_writable, sha256, write_atomic
from robustbench_kpca._core.lock import locked
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca._engine.attack_loop.passes import passes_of
from robustbench_kpca._engine.inference.environment import environment
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import Runner, device_for
from robustbench_kpca._engine.inference.work import larger, memory_of, work_of
from robustbench_kpca.audit.first_batch import FirstBatch
from robustbench_kpca.audit.model_identity import require_subject
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.command import Command
from robustbench_kpca.evaluation.identity import code_from_outside, model_info, require_readable
from robustbench_kpca.evaluation.kept import samples_to_keep
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.part import Subject
from robustbench_kpca.evaluation.requests import ModelRequest, NamedModel
from robustbench_kpca.evaluation.versions import algorithms, outdated
from robustbench_kpca.metrics import METRICS, measure
from robustbench_kpca.models.certified import require_certifiable
from robustbench_kpca.models.source import class_names_of, is_differentiable, require_words
from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.records.audit import Audit
from robustbench_kpca.records.images import KeptImages, load_images
from robustbench_kpca.records.newest import dated, now
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import SUFFIX, NewerSchemaError, OutcomesFile, Record, load_record
from robustbench_kpca.records.shard_folder import State, discard, folder_of, lock_of, tidy
from robustbench_kpca.records.shards import Made, plan_shards
from robustbench_kpca.records.spec import DataInfo, Environment, Passes, ProtocolInfo, Spec
from robustbench_kpca.tasks import task_named
from robustbench_kpca.types import Images


@dataclass
class Evaluation:
    """One evaluation; `finished` is the existing record of exactly this specification, or None.

    `outdated`: what of an existing record was made in other versions than today's, so that it is made again.
    """

    subject: Subject
    data: Dataset
    scenario: Scenario
    spec: Spec
    surroundings: Environment
    options: RunOptions
    audit: Audit | None
    finished: Record | None = None
    command: tuple[str, ...] = ()
    request: ModelRequest | None = None
    algorithms: dict[str, int] = field(default_factory=dict)
    outdated: tuple[str, ...] = ()

    @classmethod
    def begin(
        cls,
        named: NamedModel,
        data: Dataset,
        label: str,
        scenario: Scenario,
        options: RunOptions,
        audit: Audit | None = None,
        command: Command | tuple[str] | None = None,
    ) -> "Evaluation":
        """Identify model, data and protocol, and look for a finished record; `command` is what remakes it.

        Raises:
            BadInputError: the model cannot be run; the folder is not writable; the audit is of another model or other
                data; model, data and protocol are incompatible.
        """
        task, model, out = task_named(data.task), named.model, options.out
        require_fit(model, data, scenario)
        where = device_for(model, options.device)
        size = options.batch_size
        if size is None:
            size = batch_on(where, task.compute.batch_size(model, data, scenario), model, data, scenario)
        if out is not None:
            require_writable(out)
        runner = runner_for(model, data, scenario, size, where)
        first = task.compute.first_inputs(model, data, scenario, size)
        logits = runner.identify(moved(first, where))
        again = FirstBatch.of(runner, first, logits)
        data, matched = task.compute.match_classes(data, logits.shape[1], class_names_of(model))
        code = code_from_outside(model, data.task, scenario)
        if out is not None:
            require_readable(code)
        spec = Spec(
            model=model_info(model, named.label, named.source, logits),
            data=_data_info(data, matched),
            protocol=ProtocolInfo(name=label, digest=scenario.digest(), resolved=scenario.model_dump(mode="json")),
            seed=options.seed,
            batch_size=size,
            code=code,
        )
        if audit is not None:
            require_subject(audit, runner, data)
        words = command.at_batch_size(size).words() if isinstance(command, Command) else command or ()
        wanted = samples_to_keep(data, scenario, options, numbers=again.images[0].numel())
        evaluation = cls(
            Subject(named.label, runner, again, wanted),
            data,
            scenario,
            spec,
            surroundings=environment(where),
            options=options,
            audit=audit,
            command=words,
            request=named.request,
            algorithms=algorithms(scenario),
        )
        if out is not None:
            if evaluation.look() is not None:
                tidy(out, spec.stem())
            else:
                [whole] = plan_shards(data.ids, evaluation.key, len(data))
                evaluation.subject.journal = Journal(evaluation.folder(out) / whole.journal, whole.digest)
        return evaluation

    @property
    def key(self) -> str:
        """The digest of all that determines what is unfinished: specification, versions, environment, kept images."""
        code = sorted(self.algorithms.items())
        return sha256(f"{self.spec.digest()} {code} {self.surroundings.model_dump_json()} {self.images}".encode())

    @property
    def images(self) -> int:
        """The number of samples whose images are to be kept."""
        return len(self.subject.wanted)

    def look(self) -> Record | None:
        """Look for the finished record of exactly this specification, unless it is to be made afresh.

        One that other versions of algorithms or libraries made is made again.
        """
        out = self.options.out
        if out is None or self.options.fresh:
            return self.finished
        record = _stored_record(out, self.spec, self.scenario, self.images)
        versions = self.algorithms, self.surroundings, self.scenario
        self.outdated = () if record is None else outdated(record, *versions)
        if record is not None:
            self.finished = None if self.outdated else _renewed(dated(record, out), self.scenario, self.audit, out)
        return self.finished

    @contextmanager
    def holding_lock(self, *, wait: bool = False) -> Iterator[None]:
        """Hold the lock of the record until it is written; without a folder do nothing.

        Another process may have finished the record before: `look` again inside.

        Raises:
            BadInputError: another process makes the same record.
        """
        if self.options.out is None:
            yield
            return
        with locked(lock_of(self.options.out, self.spec.stem()), wait=wait):
            yield

    def folder(self, out: Path) -> Path:
        """Return where what is unfinished is kept."""
        return folder_of(out, self.spec.stem(), self.key)

    def state(self, shards: int = 1) -> State:
        """Return what is known of the record before it is begun."""
        spec, data = self.spec, f"{self.spec.data.name} {self.spec.data.split}"
        return State(spec.model.name, data, spec.protocol.name, len(self.data), shards)

    def finish(
        self,
        outcomes: Outcomes,
        work: Made,
        images: KeptImages | None = None,
        remarks: Sequence[str] = (),
        smaller: Record | None = None,
    ) -> Record:
        """Build the record, save it if there is a folder, and delete what was unfinished.

        Args:
            outcomes: outcomes of all samples.
            work: number of passes, seconds, batch size and remarks.
            images: the adversarial images to keep beside the record.
            remarks: flags that are known already, such as failed preflight checks that were allowed.
            smaller: the record at the next smaller budget, if its outcomes were used.
        """
        attacked = isinstance(self.scenario, Attack)
        notes = [*remarks, *work.remarks, *task_named(self.data.task).compute.flags(outcomes)]
        if attacked and not is_differentiable(self.subject.runner.model):
            notes.append("not audited: the checks of an audit need gradients, which the model does not have")
        notes += [*self.data.remarks, *_halved(work.batch_size, self.spec.batch_size, smaller)]
        record = Record(
            spec=self.spec,
            metrics=measure(outcomes, self.scenario),
            passes=Passes(
                forwards=self.scenario.draws * work.forwards + (int(outcomes["forwards"].sum()) if attacked else 0),
                backwards=int(outcomes["backwards"].sum()) if attacked else 0,
            ),
            outcomes_file=OutcomesFile.of(outcomes, self.spec),
            environment=self.surroundings,
            citations=self.scenario.citations,
            flags=tuple(notes),
            created=now(),
            seconds=round(work.seconds, 3),
            command=self.command,
            algorithms=self.algorithms,
        ).attach(outcomes)
        record = record if self.audit is None else record.audited(self.audit)
        if (out := self.options.out) is not None:
            if images is not None:
                content = images.to_file()
                description = images.describe(self.spec.stem(), content)
                record = record.keeping(description)
                write_atomic(out / description.file, content)
            record.save(out)
            discard(out, self.spec.stem())
        return record


def require_fit(model: nn.Module, data: Dataset, scenario: Scenario) -> None:
    """Refuse a model, data and a protocol that do not belong together, before the model is shown anything.

    Raises:
        BadInputError: they do not.
    """
    task = task_named(data.task)
    task.table(scenario.table)
    task.compute.require_data(data, scenario)
    require_gradients(model, scenario)
    require_certifiable(model, scenario)
    require_words(model, data.vocabulary_sha256, data.name)


def require_gradients(model: nn.Module, scenario: Scenario) -> None:
    """Refuse attacks by gradients on a model that has none, such as an ONNX file.

    An attack that does not say what it costs is tried: its first gradient ends it.

    Raises:
        BadInputError: such an attack.
    """
    if is_differentiable(model) or not isinstance(scenario, Attack):
        return
    for stage in scenario.stage:
        passes = passes_of(build_attack(stage), 2)
        if passes is not None and passes[1]:
            raise BadInputError(
                f"attack '{stage.attack}' of protocol '{scenario.title}' needs gradients, but this model has none",
                expected="an attack by queries alone",
                fix="choose square-linf-8_255, spsa-linf-8_255 or noise-linf-8_255",
            )


def batch_on(device: torch.device, usual: int, model: nn.Module, data: Dataset, scenario: Scenario) -> int:
    """Return the default batch size on a device: the usual one, and on an accelerator a larger one if it pays."""
    memory = memory_of(device)
    if memory is None or len(data) <= usual:
        return usual
    row = task_named(data.task).compute.first_inputs(model, data, scenario, 1)
    return larger(usual, work_of(runner_for(model, data, scenario, 1, device), row), memory, len(data))


def moved(images: Images, device: torch.device) -> Images:
    """Return the first batch on the device; the runner halves a batch only once its images are there.

    Raises:
        EvaluationError: they alone need more memory than there is.
    """
    try:
        return images.to(device)
    except torch.OutOfMemoryError:
        raise EvaluationError(
            f"out of memory with the images of one batch alone ({images.nbytes / 2**30:.1f} GiB)",
            fix=f"set a smaller batch size than {len(images)}",
        ) from None


def runner_for(model: nn.Module, data: Dataset, scenario: Scenario, batch_size: int, device: torch.device) -> Runner:
    """Return the runner of the model for these data and this protocol."""
    presentation = task_named(data.task).compute.presentation(model, scenario.kind)
    drawn = scenario.kind == "certificate"  # a certificate draws its noise itself
    return Runner(model.to(device), batch_size, device, scenario.draws, presentation, as_it_is=drawn)


def _data_info(data: Dataset, matched: str) -> DataInfo:
    return DataInfo(
        name=data.name, split=data.split, n=len(data), classes=data.classes, digest=data.digest(), known=data.known,
        class_names=data.class_names, task=data.task, matched=matched or None, resized=data.resized or None,
        entropy=data.entropy,
    )  # fmt: skip


def _halved(used: int, requested: int, smaller: Record | None) -> tuple[str, ...]:
    """Return a flag if memory ran out, in this run or in the run at the smaller budgets."""
    notice = "memory ran out at batch size"
    before = [] if smaller is None else [flag for flag in smaller.flags if flag.startswith(notice)]
    now = [f"{notice} {requested}: it went on with {used}"] if used < requested else []
    return tuple(dict.fromkeys(before + now))


def _stored_record(out: Path, spec: Spec, scenario: Scenario, images: int) -> Record | None:
    """Return the record of a specification from a folder; None if there is none, or it must be made again.

    It is made again if it is damaged, if its table lacks a column of today, or if it keeps the images of fewer samples.

    Raises:
        NewerSchemaError: it was written by a newer version of the package.
    """
    path = out / f"{spec.stem()}{SUFFIX}"
    if not path.is_file():
        return None
    try:
        record = load_record(path)
        samples = () if not images or record.images_file is None else load_images(out, record.images_file).samples
    except NewerSchemaError:
        raise
    except BadInputError:
        return None
    columns = task_named(spec.data.task).table(scenario.table).columns
    same = record.spec.digest() == spec.digest() and record.outcomes_file.columns == columns
    return record if same and len(samples) >= images else None


def _renewed(record: Record, scenario: Scenario, audit: Audit | None, out: Path) -> Record:
    """Return a record with what is made anew of a stored one, which is written if that is something else.

    These are metrics from outside, whose code may have changed, and the audit; but a quick one does not replace a full
    one.
    """
    added = measure(record.outcomes, scenario, METRICS.added) if METRICS.added else {}
    current = record.model_copy(update={"metrics": dict(sorted({**record.metrics, **added}.items()))})
    current = record if current.metrics == record.metrics else current
    levels = tuple(each and each.plan.level for each in (record.audit, audit))
    if audit is not None and levels != ("full", "quick"):
        current = current if record.audit == audit else current.audited(audit)
    if current is not record:
        current.save(out)
    return current
