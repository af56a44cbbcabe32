"""What a worker of any engine does: load the model once, make one shard after the other, stop cleanly if told to."""

import pickle
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from robustbench_kpca._core.errors import BenchmarkError, EvaluationError, reason_of
from robustbench_kpca._core.files import sha256
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.inference.acceleration import accelerated
from robustbench_kpca._engine.inference.environment import environment
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import device_for
from robustbench_kpca.audit.first_batch import FirstBatch
from robustbench_kpca.evaluation.backend import Task, Work
from robustbench_kpca.evaluation.code import algorithms, code_from_outside
from robustbench_kpca.evaluation.evaluation import runner_for
from robustbench_kpca.evaluation.part import Subject, make_shard
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.evaluation.shards import Made
from robustbench_kpca.models.checkpoint import parameters_sha256, tensor_sha256
from robustbench_kpca.tasks import task_named

GRACE = 25.0
"""Seconds in which a worker that is told to stop must have written its journal."""
Answer = tuple[str, Any]
"""What became of a task.

("made", (`Made`, content of the shard's file)); ("failed", why) after a foreseen error; ("crashed", why) after another
one; ("refused", error) where the work as a whole cannot be done here.
"""
_SAME = ("python", "processor", "device", "threads", "deterministic", "packages", "revision", "compiled", "float32")


class Stopped(SystemExit):
    """The process was told to stop, and has written its journal."""


class StoppableJournal(Journal):
    """A journal that is written at the next batch, and ends the process, once this is told to stop."""

    stopping = False

    def due(self) -> bool:
        """Whether it is time to write, which it is at once when the process must stop."""
        return StoppableJournal.stopping or super().due()

    def write(self, content: dict[str, Any]) -> None:
        """Replace the file; end the process if it was told to stop, or another one has finished the record."""
        if not self.path.parent.is_dir():
            raise Stopped
        super().write(content)
        if StoppableJournal.stopping:
            raise Stopped


class WorkerModel:
    """A model with the samples of one record, ready to make parts of it.

    Raises:
        EvaluationError: this process has another environment, other weights or other answers than the first one.

    """

    def __init__(self, work: Work, model: nn.Module) -> None:
        spec, data = work.spec, work.data
        self.work = work
        self.answered: Journal | None = None
        where = device_for(model, work.options.device)
        _require_alike(work, where)
        _require_same_code(work, model)
        runner = runner_for(model, data, work.scenario, spec.batch_size, where)
        first = task_named(data.task).compute.first_inputs(model, data, work.scenario, spec.batch_size)
        logits = runner.logits(first.to(where))
        self.subject = Subject(spec.model.name, runner, FirstBatch.of(runner, first, logits))
        found = (parameters_sha256(model), tensor_sha256(logits))
        if found != (spec.model.parameters_sha256, spec.model.probe_sha256):
            raise EvaluationError(
                f"model '{spec.model.name}' has other weights or other answers in another process",
                expected="a model that is determined by its name, options and weights, and machines of one kind",
                fix="evaluate it in one process",
            )

    def make(self, task: Task, progress: Progress | None = None) -> tuple[Made, bytes]:
        """Evaluate the samples of a shard; return what is known of it, and the content of its file."""
        work, shard = self.work, task.shard
        if self.answered is not None:  # its shard's file is written by now
            self.answered.remove()
        folder, journal, self.answered = Path(work.folder), None, None
        if folder.is_dir():  # a worker on another machine may not see it: then it can lose one shard
            journal = StoppableJournal(folder / shard.journal, shard.digest)
        made = make_shard(
            replace(self.subject, journal=journal), work.data, work.scenario, work.options, shard,
            smaller=task.smaller, progress=progress,
        )  # fmt: skip
        self.answered = journal
        return made


class Hand:
    """What a worker process holds between shards: the work that it was given last, and the last model.

    The model is kept, since the next work is often the same model under another protocol.
    """

    def __init__(self) -> None:
        self.models: dict[str, nn.Module] = {}
        self.ready: WorkerModel | None = None
        self.stack = ExitStack()

    def take_up(self, content: bytes) -> Answer | None:
        """Load what a pickled `Work` needs; return an answer only if it is refused."""
        self.stack.pop_all().close()
        self.ready = None
        try:
            work: Work = pickle.loads(content)  # noqa: S301 (from the first process of this run)
            key = sha256(pickle.dumps(work.model))
            if key not in self.models:
                self.models.clear()
                self.models[key] = work.model.load() if isinstance(work.model, ModelRequest) else work.model
            model = self.models[key]
            self.stack.enter_context(accelerated([model], work.options.compile, tf32=work.options.tf32))
            self.ready = WorkerModel(work, model)
        except BenchmarkError as error:
            return "refused", error
        except Exception as error:  # noqa: BLE001 (unpickling the user's model can raise anything)
            return "refused", EvaluationError(
                f"a process cannot load what it should evaluate ({reason_of(error)})",
                fix="name the model as FILE.py:FACTORY, or evaluate it in one process",
            )
        return None

    def make(self, task: Task, progress: Progress | None = None) -> Answer | None:
        """Make a shard of the work that was loaded last; None where that was refused."""
        if self.ready is None:
            return None
        try:
            return "made", self.ready.make(task, progress)
        except Exception as error:  # noqa: BLE001 (a shard that fails must not end the run)
            return "failed" if isinstance(error, BenchmarkError) else "crashed", reason_of(error)


def _require_alike(work: Work, where: Any) -> None:
    """Refuse to evaluate on a machine that is not what the record says; only for engines with several machines."""
    if work.surroundings is None:
        return
    ours = environment(where)
    for name in _SAME:
        found, expected = getattr(ours, name), getattr(work.surroundings, name)
        if found != expected:
            raise EvaluationError(
                f"a worker has {name} {_short(found)}, and the first process {_short(expected)}",
                expected="machines of one kind with the same packages and the same code",
            )


def _require_same_code(work: Work, model: nn.Module) -> None:
    """Refuse to evaluate with other code than that which the record names, such as a file that was edited meanwhile."""
    ours = code_from_outside(model, work.data.task, work.scenario) | algorithms(work.scenario)
    theirs = {**work.spec.code, **work.algorithms}
    other = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if other:
        raise EvaluationError(
            f"the code of {other[0]} is another one in another process",
            expected="the same files in all processes, unchanged while they run",
            fix="run the same command again",
        )


def _short(value: Any) -> str:
    return str(value)[:200]
