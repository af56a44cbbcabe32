"""The board of a table in a pack: rows and columns with their names replaced, its records, plan and curves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import read_file
from robustbench_kpca._core.git import History, blob, history_of
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.metrics.corruption import RelativeError
from robustbench_kpca.models.families import task_of
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import BoardSpec, Column, Row
from robustbench_kpca.report.curves import read_curves
from robustbench_kpca.report.matching import fill, shown_metrics
from robustbench_kpca.report.question import Question
from robustbench_kpca.study.reproduction.pack import Claims, Cost, Curves, Epochs, Item, ItemColumn, Table
from robustbench_kpca.study.reproduction.roles import Model, Roles
from robustbench_kpca.tasks import task_named

SEED = 0


def board_spec(table: Table, roles: Roles) -> BoardSpec:
    """Return what `board.toml` would say: one row an arm, and behind each literal column its corrected twin, if any."""
    columns = [twin for column in table.column for twin in _columns(table, column, roles)]
    first = roles.samples(table.column[0].samples)
    return BoardSpec(
        title=table.title, intro=table.intro, data=first.data, split=first.split, limit=first.limit, seed=SEED,
        row=tuple(_row(arm, table, roles) for arm in table.arms), rank_by=table.rank_by, column=tuple(columns),
        question=tuple(_with_titles(question, roles) for question in table.question),
    )  # fmt: skip


def board_of(name: str, table: Table, roles: Roles) -> Board:
    """Fill a table with the records that are there.

    Raises:
        BadInputError: a record or curves are damaged, or the records cannot stand together in one table,
            or the pack has a plan that is younger than a record.
    """
    board = _filled(name, table, roles, roles.records())
    models = [model for model in models_of(table, roles) if model.training is not None]
    files = {model.name: file for model in models if (file := roles.file_at_hand(model)) is not None}
    finished = {run.model for run in board.runs if run.record is not None}
    notes = _lost([model.name for model in models if model.name in finished - set(files)])
    return replace(
        board,
        remarks=overfitted(models),
        others=(*board.others, *notes),
        plan=registered(roles.out, [run.record for run in board.runs if run.record]),
        files=files,
    )


def _lost(models: Sequence[str]) -> tuple[str, ...]:
    """Say of which trained models there are records, and no weights."""
    if not models:
        return ()
    text = (
        f"The weights of {', '.join(models)} are not here: the commands of their cells need the training first, and on "
        "another machine that gives another network."
    )
    return (text,)


def _filled(name: str, table: Table, roles: Roles, records: Sequence[Record]) -> Board:
    command = f"{roles.command} --item {name}"
    digests = ((model.name, roles.digest(model)) for model in models_of(table, roles))
    return fill(
        name,
        board_spec(table, roles),
        records,
        f"{name} of {roles.name}",
        remake=command,
        missing=f"{command} --plan",
        weights={model: digest for model, digest in digests if digest is not None},
    )


def board_or_trouble(name: str, table: Table, roles: Roles) -> tuple[Board, str]:
    """Return the board of a table; where its records cannot be shown, an empty one, and why."""
    try:
        return board_of(name, table, roles), ""
    except BadInputError as error:
        return _filled(name, table, roles, []), f"the records of {name} in {roles.out.name}: {error}"


def overfitted(models: Iterable[Model]) -> tuple[str, ...]:
    """Return a sentence about each of these models whose training shows it: in which epochs, and by how much.

    A training without curves, or of a recipe that does not look for it, has no sentence.

    Raises:
        BadInputError: the file of curves is damaged.
    """
    return tuple(
        f"{model.name} shows catastrophic overfitting in {len(epochs)} of its epochs, the last being {max(epochs)}: "
        f"{epochs[max(epochs)]}"
        for model, epochs in ((model, _epochs(model)) for model in models)
        if epochs
    )


def _epochs(model: Model) -> dict[int, str]:
    """Return epochs, counted from 1, with what is seen in each."""
    if model.training is None or not model.training.weights.with_suffix(".csv").is_file():
        return {}
    recipe = model.training.content
    if recipe.adversarial is None:
        return {}
    score = next(iter(task_named(task_of(recipe.model)).scores))
    notes = {
        int(row["epoch"]) + 1: recipe.adversarial.overfitting(row, score)
        for row in read_curves(model.training.weights).rows
    }
    return {epoch: text for epoch, text in notes.items() if text}


def metrics_of(items: Iterable[Item]) -> frozenset[str]:
    """Return the metrics that the tables of a pack show."""
    return shown_metrics(column.metric for item in items if isinstance(item, Table) for column in item.column)


def models_of(item: Table | Claims | Curves | Epochs | Cost, roles: Roles) -> list[Model]:
    """Return the models of an item: of a table only trainings of the seeds that it names, if it does."""
    seeds = item.seeds if isinstance(item, Table) else ()
    models = [model for arm in item.arms for model in roles.models[arm]]
    return [model for model in models if not seeds or model.seed is None or model.seed in seeds]


def _row(arm: str, table: Table, roles: Roles) -> Row:
    models = [model for model in models_of(table, roles) if model.arm == arm]
    seeds = tuple(model.seed for model in models if model.seed is not None)
    return Row(title=roles.arms[arm].title, models=tuple(model.name for model in models), seeds=seeds)


def _with_titles(question: Question, roles: Roles) -> Question:
    arms = {name: getattr(question, name) for name in ("subject", "baseline", "ablation")}
    arms = {name: roles.arms[arm].title for name, arm in arms.items() if arm is not None}
    return question.model_copy(update=arms)


def _reference(table: Table, column: ItemColumn, roles: Roles) -> str | None:
    """Return the model whose errors a column divides by; None: AlexNet's, or the metric divides by nothing."""
    relative = isinstance(metric_for(column.metric), RelativeError) and roles.chosen.reference in table.arms
    arm = column.reference or (roles.chosen.reference if relative else None)
    return None if arm is None else roles.models[arm][0].name


def _columns(table: Table, column: ItemColumn, roles: Roles) -> list[Column]:
    samples = roles.samples(column.samples)
    title, *corrected = column.titles
    literal = Column(
        title=title, protocol=roles.protocols(column.protocol), metric=column.metric, data=samples.data,
        split=samples.split, limit=samples.limit, eps=column.eps, draws=column.draws,
        corruption=column.corruption, reference=_reference(table, column, roles),
        against=None if column.against is None else roles.samples(column.against).data,
    )  # fmt: skip
    twins = [{"title": twin, "protocol": roles.protocols(column.corrected)} for twin in corrected]
    return [literal, *(literal.model_copy(update=twin) for twin in twins)]


PLAN = "plan.md"
MOST = 2**20
"""Bytes of a plan."""


def registered(folder: Path, records: Iterable[Record]) -> str:
    """Say in which commit the plan of a pack was last changed, and that its records are younger.

    It is the maker's word: a history can be forged, and a record's revision is the record's own text. Empty where
    `folder` has no `plan.md`. Where a history is not here, or a revision is not in it, it says so: a copy without
    `.git` cannot tell. A revision counts only as a whole commit: `HEAD` would always be young enough.

    Raises:
        BadInputError: the plan has changes that are not committed, or a record's revision does not have it.
    """
    plan = folder / PLAN
    if not plan.is_file():
        return ""
    models = {(record.environment.revision or "").removesuffix("+"): record.spec.model.name for record in records}
    with history_of(folder) as history:
        return f"{_UNTOLD}: no git history." if history is None else _age_of_plan(plan, history, models)


_UNTOLD = f"There is a plan ({PLAN}); whether it is older than the records cannot be told here"


def _age_of_plan(plan: Path, history: History, models: Mapping[str, str]) -> str:
    """Say it of a plan with a history, and of models by the revision at which a record of them was made."""
    path = plan.parent.resolve().relative_to(history.top).joinpath(PLAN).as_posix()
    if history.blob(path) != blob(read_file(plan, most=MOST)):
        raise BadInputError(f"{plan} has changes that are not committed", fix=f"git restore {PLAN}, or commit it first")
    commit = history.last_change(path)
    revisions = [revision for revision in models if history.has(revision)]
    if commit is None or (models and not revisions):
        why = "is not whole" if commit is None else "has none of their revisions"
        return f"{_UNTOLD}: this history {why}."
    for revision in revisions:
        if not history.is_ancestor(commit, revision):
            raise BadInputError(
                f"{plan} was changed in {commit[:8]}, after a record of {models[revision]} was made "
                f"(revision {revision[:8]})",
                expected="a plan that is older than its records; deviations go into another file",
            )
    unknown = len(models) - len(revisions)
    rest = f"; this history does not have {unknown} of their revisions" if unknown else ""
    named = f"the plan of this pack ({PLAN}, commit {commit[:8]})"
    return f"By its maker's history, {named} is older than the records{rest}."
