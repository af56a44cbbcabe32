"""What the rows of a pack cost: parameters, time of training, and passes and time of all evaluations."""

from collections.abc import Iterable, Sequence

from robustbench_kpca._core.progress import spell
from robustbench_kpca._core.web.document import Block, Document, Paragraph, Prose, Table
from robustbench_kpca.records.record import Record
from robustbench_kpca.study.reproduction.pack import Cost
from robustbench_kpca.study.reproduction.roles import Model, Roles

HEADS = (
    "Arm", "Trainings done", "Parameters", "Epochs", "Time of a training", "Its processor time", "Evaluations",
    "Their forward passes", "Their backward passes", "Their time",
)  # fmt: skip
UNKNOWN = "–"
NOTE = (
    "Times of trainings are means over those that were timed. Their times are written beside their weights, in "
    "NAME.spent.json; a training from before there were such files was not timed."
)


def rows(item: Cost, roles: Roles, records: Sequence[Record]) -> list[list[str]]:
    """Return one row of texts for each arm that has a training or a record.

    Times of trainings are means over trainings; passes and times of evaluations are sums over `records`, which are
    those that count, of all arms.
    """
    texts = []
    for arm in item.arms:
        models = roles.models(arm)
        arm_records = [record for record in records if record.spec.model.name in {model.name for model in models}]
        evaluated = {record.spec.model.name for record in arm_records}
        trained = [
            model
            for model in models
            if model.training is not None and (model.name in evaluated or roles.ended(model.training))
        ]
        if arm_records or trained:
            texts.append([roles.title(arm), _trainings(models, trained), *_costs(arm_records, trained, roles)])
    return texts


def _trainings(models: Sequence[Model], trained: Sequence[Model]) -> str:
    if all(model.training is None for model in models):
        return "given"  # weights that no recipe of the pack trains
    return f"{len(trained)} of {len(models)}"


def _costs(records: Sequence[Record], trained: Sequence[Model], roles: Roles) -> list[str]:
    sizes = sorted({record.spec.model.parameters for record in records})
    timed = [spent for model in trained if model.training and (spent := roles.spent(model.training)) is not None]
    passes = [sum(getattr(record.passes, kind) for record in records) for kind in ("forwards", "backwards")]
    return [
        ", ".join(f"{size:,}" for size in sizes) or UNKNOWN,
        f"{sum(spent.epochs for spent in timed) / len(timed):.0f}" if timed else UNKNOWN,
        _mean_times(((spent.device, spent.seconds) for spent in timed), len(trained)),
        _mean_times(((spent.device, spent.cpu_seconds) for spent in timed), len(trained)),
        str(len(records)),
        *(f"{number:,}" for number in passes),
        _total_time(records),
    ]


def _by_device(times: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    by_device: dict[str, list[float]] = {}
    for device, seconds in sorted(times):
        by_device.setdefault(device, []).append(seconds)
    return by_device


def _total_time(records: Sequence[Record]) -> str:
    """Spell the total time of evaluations on each device."""
    by_device = _by_device((record.environment.device, record.seconds) for record in records)
    return ", ".join(f"{spell(sum(times))} on {device}" for device, times in by_device.items()) or UNKNOWN


def _mean_times(times_by_training: Iterable[tuple[str, float]], trained: int) -> str:
    """Spell the mean time for each device, and how many of the trainings were timed there if not all were."""
    texts = []
    for device, times in _by_device(times_by_training).items():
        share_timed = "" if len(times) == trained else f" ({len(times)} of {trained} timed)"
        texts.append(f"{spell(sum(times) / len(times))}{f' on {device}' if device else ''}{share_timed}")
    return ", ".join(texts) or UNKNOWN


def document(item: Cost, times_and_passes: Sequence[Sequence[str]], origin: Block) -> Document:
    """Return the page of the table. `origin`: how much is done, and the command that makes the page."""
    blocks: list[Block] = [
        Table(HEADS, times_and_passes),
        Paragraph(NOTE, soft=True),
        Paragraph(Prose(item.intro)),
        origin,
    ]
    return Document(item.title, blocks)
