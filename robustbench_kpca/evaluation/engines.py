"""Make the records of one step of a plan, with the engine that the options name: one process, several, or Ray."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType

import torch

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.attack_loop.passes import takes_gradients
from robustbench_kpca._engine.inference.corrupted import frost_of
from robustbench_kpca._engine.inference.loader import cores_here
from robustbench_kpca.audit.first_batch import require_apart
from robustbench_kpca.audit.model_identity import impostor
from robustbench_kpca.audit.preflight import as_flags, at_edge, preflight
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.part import Part, make_part
from robustbench_kpca.evaluation.processes import Processes
from robustbench_kpca.evaluation.ray_cluster import RayCluster
from robustbench_kpca.evaluation.shard_run import WaitingError
from robustbench_kpca.evaluation.sharded import Engine, Share
from robustbench_kpca.evaluation.worker import THREADS
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.shard_folder import telling
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.compute import first_batch
from robustbench_kpca.tasks.prepare import try_cells

Result = Record | EvaluationError
"""A record, or why there is none."""


class Serial(Engine):
    """This process makes all samples as one part, so batches are refilled across them, of several models at once."""

    shares_samples = True

    def make(
        self, evaluations: Sequence[Evaluation], smaller: Outcomes | None, progress: Progress | None
    ) -> list[Part | EvaluationError]:
        """Make all samples; see `Engine.make`."""
        first = evaluations[0]
        folders = {} if (out := first.options.out) is None else {each.folder(out): each for each in evaluations}
        if folders:
            progress = telling(progress, {folder: each.state() for folder, each in folders.items()})
        subjects = [evaluation.subject for evaluation in evaluations]
        return make_part(subjects, first.data, first.scenario, first.options, smaller=smaller, progress=progress)


def processes_of(options: RunOptions) -> int:
    """Return the number of processes of this machine that the options ask for."""
    if options.part is not None or options.engine[0] != "processes":
        return 1
    on_gpu = (options.device or "").startswith("cuda")
    return options.processes or (torch.cuda.device_count() if on_gpu else cores_here())


@contextmanager
def engine_for(options: RunOptions) -> Iterator[Engine]:
    """Start the engine that the options name, and end it.

    Raises:
        BadInputError: the engine is not installed, or cannot be reached.
    """
    kind, address = options.engine
    if options.part is None and kind == "serial":
        yield Serial()
        return
    on_gpu = (options.device or "").startswith("cuda")
    with _one_thread(), _terminated_like_interrupted():
        if options.part is not None:
            engine: Engine = Share(*options.share)
        elif kind == "processes":
            engine = Processes(processes_of(options))
        else:
            engine = RayCluster(options.processes, address, on_gpu=on_gpu)
        try:
            yield engine
        finally:
            engine.close()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Give this process the threads of a worker."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does: the workers write their journals and end."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:  # another caller listens
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise KeyboardInterrupt


def make_records(
    group: Sequence[Evaluation], engine: Engine, smaller: Record | None = None, progress: Progress | None = None
) -> list[Result]:
    """Make the records of models that are shown the same samples under one protocol; of an attack, of one model.

    Args:
        group: the evaluations, begun; their options are the same.
        engine: who makes the outcomes.
        smaller: the record at the next smaller budget, whose outcomes are gone on from.
        progress: told how far the work is.

    Raises:
        BadInputError: a model cannot be evaluated in a meaningful way; another process makes the same record.
        EvaluationError: the evaluation could not finish.
    """
    data, scenario, options = group[0].data, group[0].scenario, group[0].options
    try_cells(data, scenario, options.seed, frost_of(scenario, options.frost_folder))
    notes = [_preflight(evaluation, alone=len(group) == 1) for evaluation in group]
    below = None if smaller is None or options.keep_adversarial else smaller.outcomes
    try:
        engine.prepare(group[0], below, progress)
    except WaitingError as error:
        return [error]
    with ExitStack() as stack:
        for evaluation in group:
            stack.enter_context(evaluation.holding_lock(wait=engine.waits))
        unfinished = [evaluation for evaluation in group if evaluation.look() is None]
        parts = iter(engine.make(unfinished, below, progress) if unfinished else ())
        results: list[Result] = []
        for evaluation, remarks in zip(group, notes, strict=True):
            made = evaluation.finished or next(parts)
            results.append(
                evaluation.finish(*made, remarks=remarks, smaller=smaller) if isinstance(made, tuple) else made
            )
        return results


def make_record(evaluation: Evaluation, engine: Engine, progress: Progress | None = None) -> Record:
    """Make the record of one evaluation; see `make_records`."""
    [result] = make_records([evaluation], engine, progress=progress)
    if isinstance(result, EvaluationError):
        raise result
    return result


def _preflight(evaluation: Evaluation, *, alone: bool) -> list[str]:
    """Check that the model can be evaluated at all; return what a reader of the record must know."""
    subject, data, allow, spec = evaluation.subject, evaluation.data, evaluation.options.allow, evaluation.spec
    compute = task_named(data.task).compute
    try:
        if evaluation.scenario.kind == "certificate":
            return require_apart(subject.runner, subject.first.images)
        doubts = [] if evaluation.request and "model" not in spec.code else impostor(subject.runner, subject.first)
        if not isinstance(evaluation.scenario, Attack):
            return doubts + as_flags(subject.first.preflight(subject.runner, allow, causal=compute.causal))
        first = first_batch(compute, data, subject.runner)
        notes = doubts + as_flags(preflight(subject.runner, *first, allow, causal=compute.causal))
        return notes + (at_edge(subject.runner, first[0], data.form) if takes_gradients(evaluation.scenario) else [])
    except BadInputError as error:
        if alone:
            raise
        raise BadInputError(f"model '{subject.name}': {error}") from error
