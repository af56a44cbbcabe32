"""What a process of `Processes` does: load the model once, make one shard after the other, stop cleanly if told to."""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustbench_kpca.audit.first_batch import FirstBatch
from robustbench_kpca.errors import BenchmarkError, EvaluationError
from robustbench_kpca.evaluation.attacked import attack_all
from robustbench_kpca.evaluation.backend import Task, Work
from robustbench_kpca.evaluation.forward_only import show_all
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.evaluation.shards import Made, write_shard
from robustbench_kpca.evaluation.trial import runner_for
from robustbench_kpca.files import sha256
from robustbench_kpca.inference.acceleration import accelerated
from robustbench_kpca.inference.corrupted import frost_of
from robustbench_kpca.inference.journal import Journal
from robustbench_kpca.inference.runner import device_for, frozen
from robustbench_kpca.models.checkpoint import parameters_sha256, tensor_sha256
from robustbench_kpca.progress import Progress
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.tasks import task_named

GRACE = 25.0
"""Seconds in which a process that is told to stop must have written its journal."""
_NEWS = 0.5  # seconds between two messages about progress


class _Stopped(SystemExit):
    """The process was told to stop, and has written its journal."""


class _Journal(Journal):
    """A journal that is written at the next batch, and ends the process, once this is told to stop."""

    stopping = False

    def due(self) -> bool:
        return _Journal.stopping or super().due()

    def write(self, content: dict[str, Any]) -> None:
        super().write(content)
        if _Journal.stopping:
            raise _Stopped


class _Bench:
    """A model with the samples of one record, ready to be evaluated."""

    def __init__(self, work: Work, model: nn.Module) -> None:
        spec, data = work.spec, work.data
        self.work, self.compute = work, task_named(data.task).compute
        self.table = task_named(data.task).table(work.scenario.kind)
        self.frost = frost_of(work.scenario, work.options.frost_folder)
        where = device_for(model, work.options.device)
        self.runner = runner_for(model, data, work.scenario, spec.batch_size, where)
        first = self.compute.first_inputs(model, data, work.scenario, spec.batch_size)
        logits = self.runner.logits(first.to(where))
        self.first = FirstBatch.of(self.runner, first, logits)
        found = (parameters_sha256(model), tensor_sha256(logits))
        if found != (spec.model.parameters_sha256, spec.model.probe_sha256):
            raise EvaluationError(
                f"model '{spec.model.name}' has other weights or other answers in another process of this machine",
                expected="a model that is determined by its name, options and weights",
                fix="leave --processes out",
            )

    def make(self, task: Task, progress: Progress) -> Made:
        """Evaluate the samples of a shard and write its file."""
        work, shard, runner = self.work, task.shard, self.runner
        part = work.data.take(range(shard.first, shard.last))
        folder = Path(work.folder)
        journal = _Journal(folder / f".{shard.name}.partial", shard.digest)
        started = time.perf_counter()
        with frozen(runner.model):
            outcomes, forwards, said = self._outcomes(part, journal, task.smaller, progress)
        seconds = round(time.perf_counter() - started + journal.seconds_before, 3)
        try:
            remarks = (*said, *self.first.again(runner, work.options.allow))
        except EvaluationError:
            journal.remove()
            raise
        made = Made(forwards, seconds, runner.batch_size, remarks)
        write_shard(folder, shard, outcomes, made)
        journal.remove()
        return made

    def _outcomes(
        self, part: Any, journal: Journal, smaller: Outcomes | None, progress: Progress
    ) -> tuple[Outcomes, int, tuple[str, ...]]:
        """Return the outcomes of a part, the number of inputs shown without an attack, and remarks."""
        scenario, options, runner = self.work.scenario, self.work.options, self.runner
        if isinstance(scenario, Attack):
            outcomes = attack_all(
                runner, part, scenario, seed=options.seed, workers=options.workers or 0, journal=journal,
                progress=progress, smaller=smaller,
            )  # fmt: skip
            return outcomes, 0, ()
        results = self.compute.results(self.work.spec.model.name, runner, part, scenario, journal)
        show_all(
            [results], part, scenario, batch_size=self.work.spec.batch_size, seed=options.seed,
            workers=options.workers or 0, frost=self.frost, progress=progress,
        )  # fmt: skip
        return results.outcomes(), results.forwards, results.remarks


def serve(pipe: Connection, number: int, threads: int) -> None:
    """Take orders until the pipe is closed: ("work", bytes), then ("shard", Task) any number of times.

    Answers: ("ready", None) at first, ("refused", error) for work, and for a shard ("progress", done) and then
    ("made", Made) or ("failed", why).
    """
    for name in {"SIGINT", "SIGHUP"} & set(signal.Signals.__members__):  # these reach all processes; the first decides
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: setattr(_Journal, "stopping", True))
    threading.Thread(target=_watch_parent, daemon=True).start()
    torch.set_num_threads(threads)
    if torch.cuda.is_available() and torch.cuda.device_count() > 1:  # "cuda" is then another device in each process
        torch.cuda.set_device(number % torch.cuda.device_count())
    models: dict[str, nn.Module] = {}
    bench: _Bench | None = None
    with ExitStack() as stack, suppress(EOFError, OSError):  # the pipe is closed: there is nothing more to do
        pipe.send(("ready", None))
        while not _Journal.stopping:
            kind, content = pipe.recv()
            if kind == "work":
                stack.pop_all().close()
                answer, bench = _begin(content, models, stack)
            else:
                assert bench is not None
                answer = _make(bench, content, pipe)
            if answer is not None:
                pipe.send(answer)


def _begin(
    content: bytes, models: dict[str, nn.Module], stack: ExitStack
) -> tuple[tuple[str, Any] | None, _Bench | None]:
    """Load what a record needs; the last model is kept, since it often meets several protocols."""
    try:
        work: Work = pickle.loads(content)  # noqa: S301 (from our own parent, through a pipe)
        key = sha256(pickle.dumps(work.model))
        if key not in models:
            models.clear()
            models[key] = work.model.load() if isinstance(work.model, ModelRequest) else work.model
        stack.enter_context(accelerated([models[key]], work.options.acceleration))
        return None, _Bench(work, models[key])
    except BenchmarkError as error:
        return ("refused", error), None
    except Exception as error:  # noqa: BLE001 (unpickling the user's model can raise anything)
        return ("refused", EvaluationError(f"a process cannot load what it should evaluate ({_in_short(error)})")), None


def _make(bench: _Bench, task: Task, pipe: Connection) -> tuple[str, Any]:
    try:
        return "made", bench.make(task, _teller(pipe))
    except Exception as error:  # noqa: BLE001 (a shard that fails must not end the run)
        return "failed", str(error) if isinstance(error, BenchmarkError) else _in_short(error)


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _teller(pipe: Connection) -> Callable[..., None]:
    """Return a `Progress` that sends the number of finished rows, twice a second at most."""
    told = time.monotonic()

    def tell(done: int, total: int, /, **news: Any) -> None:  # noqa: ARG001 (the parent adds up what is done)
        nonlocal told
        if time.monotonic() - told >= _NEWS:
            told = time.monotonic()
            try:
                pipe.send(("progress", done))
            except OSError:  # nobody is there any more
                _Journal.stopping = True

    return tell


def _watch_parent() -> None:
    """When the first process is gone, even killed, write the journal at the next batch and end."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        _Journal.stopping = True
        time.sleep(GRACE)
        os._exit(1)
