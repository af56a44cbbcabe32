"""Evaluate loaded models under resolved protocols: attack one model, or run several models on the same samples."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from robustbench_kpca.audit.budgets import eps_of
from robustbench_kpca.audit.preflight import as_flags, preflight
from robustbench_kpca.audit.run import audit as audit_model
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.errors import BadInputError, EvaluationError
from robustbench_kpca.evaluation.attacked import attack_all
from robustbench_kpca.evaluation.backend import Backend, IncompleteError
from robustbench_kpca.evaluation.code import algorithms, differing
from robustbench_kpca.evaluation.command import Command
from robustbench_kpca.evaluation.forward_only import show_all
from robustbench_kpca.evaluation.kept import Keeper
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.shard_folder import told_alone
from robustbench_kpca.evaluation.trial import NamedModel, Trial
from robustbench_kpca.inference.corrupted import frost_of
from robustbench_kpca.inference.input_space import InputSpace
from robustbench_kpca.inference.precision import remark
from robustbench_kpca.inference.runner import frozen
from robustbench_kpca.models.source import is_differentiable
from robustbench_kpca.progress import Progress
from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.protocols.threat import parse_fraction
from robustbench_kpca.records.audit import Audit, Level
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record, Spec
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.compute import first_batch
from robustbench_kpca.tasks.prepare import try_cells
from robustbench_kpca.tasks.results import ModelResults
from robustbench_kpca.types import Images, Labels

Announce = Callable[[str], None]
_LOG = logging.getLogger(__name__)


def measure_attack(
    named: NamedModel,
    data: Dataset,
    label: str,
    scenario: Attack,
    options: RunOptions,
    *,
    audit: Audit | Level | None,
    smaller: Record | None = None,
    progress: Progress | None = None,
    command: Command | tuple[str] | None = None,
    backend: Backend | None = None,
    announce: Announce = _LOG.info,
) -> Record:
    """Attack one model; return its record. Arguments as in `evaluate`; `data` must be sorted (`Dataset.in_order`).

    With a `backend`, other processes make the outcomes. `announce` is told why a record is made again.
    """
    if isinstance(audit, str) and not is_differentiable(named.model):
        audit = None
    if isinstance(audit, str):
        finished = Trial.begin(named, data, label, scenario, options).finished
        eps = eps_of(scenario)
        if finished is not None and finished.audit is not None and finished.audit.serves(audit, parse_fraction(eps)):
            return finished
        audit = audit_for(named, data, options, audit, eps, lambda text: announce(f"{named.name}  {text}"), progress)
    trial = Trial.begin(named, data, label, scenario, options, audit, command)
    _say_outdated([trial], announce)
    if trial.finished is not None:
        return trial.finished
    known = None if smaller is None else _smaller_outcomes(trial.spec, scenario, smaller)
    known = None if options.keep_adversarial else known  # its images are not in a record, so it is attacked again
    compute = task_named(data.task).compute
    first = first_batch(compute, trial.data, trial.runner)
    findings = preflight(trial.runner, *first, options.allow, causal=compute.causal)
    if backend is not None:
        with frozen(named.model):
            slower = _slower(trial, scenario, *first)
            notes = [*as_flags(findings), *([slower] if slower else [])]
            return _finish_elsewhere(backend, trial, options, notes, smaller, known, progress)
    with trial.held():
        if (found := trial.look(options)) is not None:
            return found
        keeper = None
        if options.keep_adversarial and options.out is not None:
            space = InputSpace.of(named.model, scenario.space)
            keeper = Keeper(trial.data, space, options.keep_adversarial, first[0][0].numel(), trial.journal)
        started = time.perf_counter()
        with frozen(named.model):
            slower = _slower(trial, scenario, *first)
            notes = [*as_flags(findings), *([slower] if slower else [])]
            outcomes = attack_all(
                trial.runner, trial.data, scenario, seed=options.seed, workers=options.workers or 0,
                journal=trial.journal, progress=_told(progress, [trial]), smaller=known,
                keep=None if keeper is None else keeper.add,
            )  # fmt: skip
        notes += trial.check_again(options.allow)
        images = None if keeper is None else keeper.result()
        return trial.finish(outcomes, time.perf_counter() - started, len(data), notes, smaller, images)


def _say_outdated(trials: Sequence[Trial], announce: Announce) -> None:
    """Say which records are made again since code of the package has changed."""
    for trial in trials:
        if trial.outdated:
            changed = ", ".join(trial.outdated)
            announce(f"{trial.spec.model.name}  {trial.spec.protocol.name}  made again: other code of {changed}")


def _slower(trial: Trial, scenario: Attack, x: Images, labels: Labels) -> str:
    """Return the remark on the precision of the search, where there are gradients: none of words, or outside torch."""
    gradients = scenario.space != "word" and is_differentiable(trial.runner.model)
    return remark(trial.runner, x, labels) if gradients else ""


def _told(progress: Progress | None, trials: Sequence[Trial]) -> Progress | None:
    """Let the states of records that this process makes alone be written, too."""
    out = trials[0].out
    return progress if out is None else told_alone(progress, out, {one.spec.stem(): one.state() for one in trials})


def _finish_elsewhere(
    backend: Backend,
    trial: Trial,
    options: RunOptions,
    notes: Sequence[str],
    smaller: Record | None = None,
    known: Outcomes | None = None,
    progress: Progress | None = None,
) -> Record:
    """Let other processes make the outcomes of a trial; return its record."""
    with trial.held() as lock:
        if (found := trial.look(options)) is not None:
            return found
        outcomes, made = backend.outcomes(trial, options, lock=lock, smaller=known, progress=progress)
        trial.runner.batch_size = min(trial.runner.batch_size, made.batch_size)
        attacked = isinstance(trial.scenario, Attack)
        shown = len(trial.data) if attacked else made.forwards
        return trial.finish(outcomes, made.seconds, shown, [*notes, *made.remarks], smaller)


def audit_for(
    named: NamedModel,
    data: Dataset,
    options: RunOptions,
    level: Level,
    eps: str | float,
    announce: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Audit a model at the eps of its attack records; an existing audit in the output folder is used again."""
    return audit_model(
        named.model, data, eps=eps, seed=options.seed, batch_size=options.batch_size, device=options.device,
        name=named.name, allow=options.allow, out=options.out, fresh=options.fresh, level=level,
        announce=announce, progress=progress,
    )  # fmt: skip


def measure_together(
    models: Sequence[NamedModel],
    data: Dataset,
    label: str,
    scenario: Scenario,
    options: RunOptions,
    progress: Progress | None = None,
    commands: Sequence[Command | tuple[str] | None] = (),
    backend: Backend | None = None,
) -> list[Record]:
    """Evaluate models on the same samples; return one record per model. `data` must be sorted (`Dataset.in_order`).

    `commands` remake the records: none, or one per model. With a `backend`, other processes make the outcomes, model by
    model.

    Raises:
        IncompleteError: shards of a record failed at every attempt; the other records are made.

    """
    every = measure_each(models, data, label, scenario, options, progress, commands, backend)
    for one in every:
        if isinstance(one, IncompleteError):
            raise one
    return [one for one in every if isinstance(one, Record)]


def measure_each(
    models: Sequence[NamedModel],
    data: Dataset,
    label: str,
    scenario: Scenario,
    options: RunOptions,
    progress: Progress | None = None,
    commands: Sequence[Command | tuple[str] | None] = (),
    backend: Backend | None = None,
    announce: Announce = _LOG.info,
) -> list[Record | IncompleteError]:
    """As `measure_together`, but return an error in the place of a record that is incomplete."""
    trials = [
        Trial.begin(named, data, label, scenario, options, None, command)
        for named, command in zip(models, commands or [None] * len(models), strict=True)
    ]
    _say_outdated(trials, announce)
    made: dict[int, Record | IncompleteError] = {}
    for together in _alike([trial for trial in trials if trial.finished is None]):
        found = _measure(together, options, progress, backend)
        made |= {id(trial): one for trial, one in zip(together, found, strict=True)}
    return [trial.finished or made[id(trial)] for trial in trials]


def _alike(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Group trials by their samples: the labels of models that number classes in another way are others."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.data.digest(), []).append(trial)
    return list(groups.values())


def _measure(
    trials: Sequence[Trial], options: RunOptions, progress: Progress | None, backend: Backend | None
) -> list[Record | IncompleteError]:
    data, scenario = trials[0].data, trials[0].scenario
    frost = frost_of(scenario, options.frost_folder)
    try_cells(data, scenario, options.seed, frost)
    compute = task_named(data.task).compute
    allowed = [_preflight(trial, options, alone=len(trials) == 1) for trial in trials]
    if backend is not None:
        return _measure_elsewhere(backend, trials, options, allowed, progress)
    with contextlib.ExitStack() as locks:
        for trial in trials:
            locks.enter_context(trial.held())
        found = [trial.look(options) for trial in trials]
        left = [trial for trial, record in zip(trials, found, strict=True) if record is None]
        if not left:
            return [record for record in found if record is not None]
        results = [compute.results(t.spec.model.name, t.runner, data, scenario, t.journal) for t in left]
        with contextlib.ExitStack() as stack:
            for trial in left:
                stack.enter_context(frozen(trial.runner.model))
            show_all(
                results, data, scenario, batch_size=left[0].spec.batch_size, seed=options.seed,
                workers=options.workers, frost=frost, progress=_told(progress, left),
            )  # fmt: skip
        remarks = [notes for notes, record in zip(allowed, found, strict=True) if record is None]
        made = iter(_finish(left, results, remarks, options))
        return [next(made) if record is None else record for record in found]


def _finish(
    trials: Sequence[Trial],
    results: Sequence[ModelResults],
    allowed: Sequence[Sequence[str]],
    options: RunOptions,
) -> list[Record]:
    """Write the records; a model that changed meanwhile has none, and does not stop the others."""
    records, failures = [], []
    for trial, one, notes in zip(trials, results, allowed, strict=True):
        try:
            remarks = [*notes, *one.remarks, *trial.check_again(options.allow)]
        except EvaluationError as error:  # the records of the other models are kept
            failures.append(error if len(trials) == 1 else EvaluationError(f"model '{one.name}': {error}"))
        else:
            records.append(trial.finish(one.outcomes(), one.seconds, one.forwards, remarks))
    if failures:
        raise failures[0]
    return records


def _measure_elsewhere(
    backend: Backend,
    trials: Sequence[Trial],
    options: RunOptions,
    allowed: Sequence[Sequence[str]],
    progress: Progress | None,
) -> list[Record | IncompleteError]:
    """Let other processes evaluate one model after the other; one that is incomplete does not stop the others."""
    found: list[Record | IncompleteError] = []
    for trial, notes in zip(trials, allowed, strict=True):
        try:
            found.append(_finish_elsewhere(backend, trial, options, notes, progress=progress))
        except IncompleteError as error:
            found.append(error)
    return found


def _preflight(trial: Trial, options: RunOptions, *, alone: bool) -> list[str]:
    """Check that the model can be evaluated at all; return the failed checks that are allowed, as flags."""
    try:
        causal = task_named(trial.data.task).compute.causal
        return as_flags(trial.first.preflight(trial.runner, options.allow, causal=causal))
    except BadInputError as error:
        if alone:
            raise
        raise BadInputError(f"model '{trial.spec.model.name}': {error}") from error


def _smaller_outcomes(spec: Spec, scenario: Attack, smaller: Record) -> Outcomes:
    """Return the outcomes at the next smaller budget; refuse a record that differs in more than the budget."""
    below = scenario.smaller().digest() if scenario.below else ""
    protocol = spec.protocol.model_copy(update={"digest": below})
    expected = spec.model_copy(update={"protocol": protocol})
    met = smaller.spec.model_copy(update={"protocol": protocol})
    if below != smaller.spec.protocol.digest or met.digest() != expected.digest():
        raise BadInputError(
            f"{smaller.spec.stem()} is not the same evaluation at the next smaller budget",
            fix="use the same model, images, seed and batch size, or omit `smaller`",
        )
    if other := differing(smaller.algorithms, algorithms(scenario)):
        raise BadInputError(
            f"{smaller.spec.stem()} was made by other code of {other[0]}", fix="evaluate it again, or omit `smaller`"
        )
    columns = task_named(spec.data.task).table(scenario.kind).columns
    if smaller.outcomes_file.columns != columns:
        raise BadInputError(
            f"the table of {smaller.spec.stem()} has the columns {', '.join(smaller.outcomes_file.columns)}",
            expected=", ".join(columns), fix="evaluate it again, or omit `smaller`",
        )  # fmt: skip
    return smaller.outcomes
