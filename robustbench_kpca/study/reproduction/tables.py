"""The board of a table in a pack: its rows and columns, once the names have been replaced."""

from collections.abc import Iterable

from robustbench_kpca.metrics import metric_for
from robustbench_kpca.metrics.corruption import RelativeError
from robustbench_kpca.report.board_spec import BoardSpec, Column, Question, Row
from robustbench_kpca.report.matching import shown_metrics
from robustbench_kpca.study.reproduction.pack import Claims, Cost, Curves, Epochs, Item, ItemColumn, Table
from robustbench_kpca.study.reproduction.roles import Model, Roles

SEED = 0


def board_spec(table: Table, roles: Roles) -> BoardSpec:
    """Return what `board.toml` would say: one row an arm, and behind each literal column its corrected twin, if any."""
    columns = [made for column in table.column for made in _columns(table, column, roles)]
    first = roles.samples(table.column[0].samples)
    return BoardSpec(
        title=table.title, intro=table.intro, data=first.data, split=first.split, limit=first.limit, seed=SEED,
        row=tuple(_row(arm, table, roles) for arm in table.arms), rank_by=table.rank_by, column=tuple(columns),
        question=tuple(_asked(question, roles) for question in table.question),
    )  # fmt: skip


def metrics_of(items: Iterable[Item]) -> frozenset[str]:
    """Return the metrics that the tables of a pack show."""
    return shown_metrics(column.metric for item in items if isinstance(item, Table) for column in item.column)


def models_of(item: Table | Claims | Curves | Epochs | Cost, roles: Roles) -> list[Model]:
    """Return the models of an item: of a table only trainings of the seeds that it names, if it does."""
    seeds = item.seeds if isinstance(item, Table) else ()
    models = [model for arm in item.arms for model in roles.models(arm)]
    return [model for model in models if not seeds or model.seed is None or model.seed in seeds]


def _row(arm: str, table: Table, roles: Roles) -> Row:
    names = tuple(model.name for model in models_of(table, roles) if model.arm == arm)
    return Row(title=roles.title(arm), models=names)


def _asked(question: Question, roles: Roles) -> Question:
    arms = {name: roles.title(getattr(question, name)) for name in ("subject", "baseline", "ablation")}
    return question.model_copy(update=arms)


def _reference(table: Table, column: ItemColumn, roles: Roles) -> str | None:
    """Return the model whose errors a column divides by; None: AlexNet's, or the metric divides by nothing."""
    relative = isinstance(metric_for(column.metric), RelativeError) and roles.reference in table.arms
    arm = column.reference or (roles.reference if relative else None)
    return None if arm is None else roles.models(arm)[0].name


def _columns(table: Table, column: ItemColumn, roles: Roles) -> list[Column]:
    samples = roles.samples(column.samples)
    literal = Column(
        title=column.title, protocol=roles.protocol(column.protocol), metric=column.metric, data=samples.data,
        split=samples.split, limit=samples.limit, eps=column.eps, draws=column.draws,
        corruption=column.corruption, reference=_reference(table, column, roles),
        against=None if column.against is None else roles.samples(column.against).data,
    )  # fmt: skip
    if not column.corrected:
        return [literal]
    twin = {"title": f"{column.title}, corrected", "protocol": roles.protocol(column.corrected)}
    return [literal.model_copy(update={"title": f"{column.title}, literal"}), literal.model_copy(update=twin)]
