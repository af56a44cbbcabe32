"""Make the records of one step of a plan: check the models, hold the locks, let the outcomes be made, and finish."""

from collections.abc import Sequence
from contextlib import ExitStack

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._core.lock import Lock
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.inference.corrupted import frost_of
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.precision import remark
from robustbench_kpca._engine.inference.runner import frozen
from robustbench_kpca.audit.first_batch import require_apart
from robustbench_kpca.audit.preflight import as_flags, preflight
from robustbench_kpca.evaluation.adversarial_images import Keeper
from robustbench_kpca.evaluation.engines import Engine
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.part import make_part
from robustbench_kpca.evaluation.shard_folder import told_alone
from robustbench_kpca.evaluation.shard_run import IncompleteError, ShardRun
from robustbench_kpca.evaluation.sharded import make_share, outcomes_by
from robustbench_kpca.evaluation.shards import Made
from robustbench_kpca.models.source import is_differentiable
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.compute import first_batch
from robustbench_kpca.tasks.prepare import try_cells

Result = Record | EvaluationError
"""A record, or why there is none."""


def make_records(
    group: Sequence[Evaluation],
    engine: Engine = None,
    *,
    smaller: Record | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """Make the records of models that are shown the same samples under one protocol; of an attack, of one model.

    Args:
        group: the evaluations, begun; their options are the same.
        engine: who makes the outcomes; of one model, unless it is this process.
        smaller: the record at the next smaller budget, whose outcomes are gone on from.
        progress: told how far the work is.

    Raises:
        BadInputError: a model cannot be evaluated in a meaningful way; another process makes the same record.
        EvaluationError: the evaluation could not finish.

    """
    data, scenario, options = group[0].data, group[0].scenario, group[0].options
    try_cells(data, scenario, options.seed, frost_of(scenario, options.frost_folder))
    notes = [_preflight(evaluation, alone=len(group) == 1) for evaluation in group]
    known = None if smaller is None or options.keep_adversarial else smaller.outcomes
    if options.part is not None:
        try:
            make_share(group[0], known, progress)
        except IncompleteError as error:
            return [error]
    with ExitStack() as stack:
        locks = [stack.enter_context(evaluation.held(wait=options.part is not None)) for evaluation in group]
        open_ones = [one for one in zip(group, notes, strict=True) if one[0].look() is None]
        left = [evaluation for evaluation, _ in open_ones]
        keeper = _keeper(left)
        if left and (engine is not None or options.part is not None):
            made = [_elsewhere(engine, left[0], locks[0], smaller=known, progress=progress)]
        elif left:
            made = make_part(
                [one.subject for one in left],
                data,
                scenario,
                options,
                smaller=known,
                keep=None if keeper is None else keeper.add,
                progress=_told(progress, left),
            )
        images = None if keeper is None else keeper.result()
        results = iter(
            [
                one if isinstance(one, EvaluationError) else evaluation.finish(*one, said, smaller, images)
                for (evaluation, said), one in zip(open_ones, made if left else [], strict=True)
            ]
        )
        return [evaluation.finished or next(results) for evaluation in group]


def _elsewhere(
    engine: Engine,
    evaluation: Evaluation,
    lock: Lock | None,
    smaller: Outcomes | None,
    progress: Progress | None,
) -> tuple[Outcomes, Made] | EvaluationError:
    try:
        if engine is None:
            assert evaluation.options.out is not None, "of a part"
            return ShardRun.of(evaluation, evaluation.options.out, progress, lock).outcomes(evaluation)
        return outcomes_by(engine, evaluation, lock=lock, smaller=smaller, progress=progress)
    except IncompleteError as error:
        return error


def _preflight(evaluation: Evaluation, *, alone: bool) -> list[str]:
    """Check that the model can be evaluated at all; return what a reader of the record must know of it."""
    subject, data, allow = evaluation.subject, evaluation.data, evaluation.options.allow
    compute = task_named(data.task).compute
    try:
        if evaluation.scenario.kind == "certificate":
            return require_apart(subject.runner, subject.first.images)
        if not isinstance(evaluation.scenario, Attack):
            return as_flags(subject.first.preflight(subject.runner, allow, causal=compute.causal))
        shown = first_batch(compute, data, subject.runner)
        notes = as_flags(preflight(subject.runner, *shown, allow, causal=compute.causal))
        if evaluation.scenario.space == "word" or not is_differentiable(subject.runner.model):
            return notes
        with frozen(subject.runner.model):
            slower = remark(subject.runner, *shown)
        return [*notes, *([slower] if slower else [])]
    except BadInputError as error:
        if alone:
            raise
        raise BadInputError(f"model '{subject.name}': {error}") from error


def _keeper(evaluations: Sequence[Evaluation]) -> Keeper | None:
    """Return what keeps the adversarial images of an attack, if some are to be kept."""
    if not evaluations or not evaluations[0].images:
        return None
    [evaluation] = evaluations
    assert isinstance(evaluation.scenario, Attack), "Evaluation.images"
    space = InputSpace.of(evaluation.subject.runner.model, evaluation.scenario.space)
    numbers = evaluation.subject.first.images[0].numel()
    return Keeper(evaluation.data, space, evaluation.images, numbers, evaluation.subject.journal)


def _told(progress: Progress | None, evaluations: Sequence[Evaluation]) -> Progress | None:
    """Let the states of records that this process makes alone be written, too."""
    out = evaluations[0].options.out
    states = {evaluation.spec.stem(): evaluation.state() for evaluation in evaluations}
    return progress if out is None else told_alone(progress, out, states)
