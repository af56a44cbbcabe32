"""The page of what the arms of a pack have cost: parameters, times of trainings, passes and times of evaluations."""

from collections.abc import Iterable, Sequence

from robustbench_kpca._core.progress import read_spent, spell
from robustbench_kpca._core.web.document import Block, Document, Paragraph, Prose, Table
from robustbench_kpca.records.record import Record
from robustbench_kpca.study.reproduction.pack import Cost
from robustbench_kpca.study.reproduction.roles import Roles

HEADS = (
    "Arm", "Trainings done", "Parameters", "Epochs", "Time of a training", "Its processor time", "Evaluations",
    "Their forward passes", "Their backward passes", "Their time",
)  # fmt: skip
UNKNOWN = "–"
NOTE = (
    "Times of trainings are means over those that were timed. Their times are written beside their weights, in "
    "NAME.spent.json; a training from before there were such files was not timed."
)


def document(item: Cost, roles: Roles, records: Sequence[Record], origin: Block) -> Document | None:
    """Return the page of the table; None where no arm has a training or a record.

    Args:
        item: of the pack.
        roles: of the pack.
        records: those that count, of all arms.
        origin: how much is done, and the command that makes the page.
    """
    table = [row for arm in item.arms if (row := _row(arm, roles, records))]
    blocks: list[Block] = [Table(HEADS, table), Paragraph(NOTE, soft=True), Paragraph(Prose(item.intro)), origin]
    return Document(item.title, blocks) if table else None


def _row(arm: str, roles: Roles, records: Sequence[Record]) -> list[str]:
    """Return the texts of an arm: means over its trainings, sums over its records; empty where it has neither."""
    models = roles.models[arm]
    records = [record for record in records if record.spec.model.name in {model.name for model in models}]
    evaluated = {record.spec.model.name for record in records}
    given = all(model.training is None for model in models)  # weights that no recipe of the pack trains
    trained = [own for own in models if own.training and (own.name in evaluated or own.training.ended())]
    if not (records or trained):
        return []
    sizes = sorted({record.spec.model.parameters for record in records})
    timed = [spent for own in trained if own.training and (spent := read_spent(own.training.weights)) is not None]
    evaluations = _by_device((record.environment.device, record.seconds) for record in records)
    return [
        roles.arms[arm].title,
        "given" if given else f"{len(trained)} of {len(models)}",
        ", ".join(f"{size:,}" for size in sizes) or UNKNOWN,
        f"{sum(spent.epochs for spent in timed) / len(timed):.0f}" if timed else UNKNOWN,
        _mean_times(((spent.device, spent.seconds) for spent in timed), len(trained)),
        _mean_times(((spent.device, spent.cpu_seconds) for spent in timed), len(trained)),
        str(len(records)),
        f"{sum(record.passes.forwards for record in records):,}",
        f"{sum(record.passes.backwards for record in records):,}",
        ", ".join(f"{spell(sum(times))} on {device}" for device, times in evaluations.items()) or UNKNOWN,
    ]


def _by_device(times: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    by_device: dict[str, list[float]] = {}
    for device, seconds in sorted(times):
        by_device.setdefault(device, []).append(seconds)
    return by_device


def _mean_times(times_by_training: Iterable[tuple[str, float]], trained: int) -> str:
    """Spell the mean time for each device, and how many of the trainings were timed there if not all were."""
    texts = []
    for device, times in _by_device(times_by_training).items():
        share_timed = "" if len(times) == trained else f" ({len(times)} of {trained} timed)"
        texts.append(f"{spell(sum(times) / len(times))}{f' on {device}' if device else ''}{share_timed}")
    return ", ".join(texts) or UNKNOWN
