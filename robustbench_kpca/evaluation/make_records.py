"""Make the records of one step of a plan, from checked models to saved files, and keep images of attacked samples."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.inference.corrupted import frost_of
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca.audit.first_batch import require_apart
from robustbench_kpca.audit.preflight import as_flags, preflight
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.engines import Engine
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.part import make_part
from robustbench_kpca.evaluation.shard_folder import telling
from robustbench_kpca.evaluation.shard_run import IncompleteError, ShardRun
from robustbench_kpca.evaluation.sharded import make_share, outcomes_by
from robustbench_kpca.evaluation.shards import Made
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.images import LIMIT, KeptImages
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
        for evaluation in group:
            stack.enter_context(evaluation.held(wait=options.part is not None))
        open_ones = [pair for pair in zip(group, notes, strict=True) if pair[0].look() is None]
        left = [evaluation for evaluation, _ in open_ones]
        keeper = _keeper(left)
        made: list[tuple[Outcomes, Made] | EvaluationError] = []
        if left and (engine is not None or options.part is not None):
            [evaluation] = left
            try:
                if engine is not None:
                    made = [outcomes_by(engine, evaluation, smaller=known, progress=progress)]
                else:
                    assert options.out is not None, "of a part"
                    made = [ShardRun.of(evaluation, options.out, progress).outcomes(evaluation)]
            except IncompleteError as error:
                return [error]
        elif left:
            made = make_part(
                [evaluation.subject for evaluation in left],
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
                outcome if isinstance(outcome, EvaluationError) else evaluation.finish(*outcome, said, smaller, images)
                for (evaluation, said), outcome in zip(open_ones, made, strict=True)
            ]
        )
        return [evaluation.finished or next(results) for evaluation in group]


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
        return as_flags(preflight(subject.runner, *shown, allow, causal=compute.causal))
    except BadInputError as error:
        if alone:
            raise
        raise BadInputError(f"model '{subject.name}': {error}") from error


class Keeper:
    """Gathers the images of at most `count` samples, spread over the data as `--limit` does.

    With a journal they survive an interruption. `numbers` is how many numbers one image has.

    Raises:
        BadInputError: the task has no single image that decides a sample, or the images are too large.
    """

    def __init__(self, data: Dataset, space: InputSpace, count: int, numbers: int, journal: Journal | None) -> None:
        if task_named(data.task).compute.success.graded:
            raise BadInputError(f"no images are kept for {data.task}", fix="leave --keep-adversarial out")
        self.wanted = set(data.spread(count).ids)
        size = 8 * numbers * len(self.wanted)  # two images of four bytes a number
        if size > LIMIT:
            raise BadInputError(
                f"the images of {len(self.wanted)} samples take {size:,} bytes",
                expected=f"at most {LIMIT:,}",
                fix=f"keep {LIMIT // (8 * numbers)}",
            )
        self.order, self.space = data.ids, space
        self.found: dict[str, tuple[Tensor, Tensor]] = {}
        self.part: Journal | None = None
        if journal is not None:
            self.part = journal.part("images")
            self.part.before_write = []
            saved = self.part.read()
            self.found = dict(saved["rows"]) if saved else {}
            journal.before_write.append(self._save)

    def add(self, sample: Sample) -> None:
        """Take the images of a finished sample, if it is one of those to keep."""
        if sample.id in self.wanted:
            clean, worst = (self.space.leave(image).float().cpu() for image in (sample.clean, sample.worst))
            self.found[sample.id] = clean, worst

    def result(self) -> KeptImages:
        """Return the images, in the order of the data."""
        kept = [self.found[name] for name in self.order if name in self.found]
        assert kept, "every sample is attacked, or found wrong before"
        clean, attacked = (torch.stack([pair[which] for pair in kept]).numpy() for which in (0, 1))
        return KeptImages.of(tuple(name for name in self.order if name in self.found), clean, attacked)

    def _save(self) -> None:
        assert self.part is not None
        self.part.write({"rows": self.found})


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
    """Let the states of the records be written, too."""
    out = evaluations[0].options.out
    folders = {} if out is None else {evaluation.folder(out): evaluation for evaluation in evaluations}
    states = {folder: evaluation.state(folder) for folder, evaluation in folders.items()}
    return telling(progress, states) if states else progress
