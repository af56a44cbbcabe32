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
    """Return one row of texts for each arm that has a training or a record; times are means over trainings.

    `records`: those that count.
    """
    texts = []
    for arm in item.arms:
        models = roles.models(arm)
        mine = [record for record in records if record.spec.model.name in {model.name for model in models}]
        named = {record.spec.model.name for record in mine}
        trained = [
            model
            for model in models
            if model.training is not None and (model.name in named or roles.ended(model.training))
        ]
        if mine or trained:
            texts.append([roles.title(arm), _trainings(models, trained), *_of_records(mine, trained, roles)])
    return texts


def _trainings(models: Sequence[Model], trained: Sequence[Model]) -> str:
    if all(model.training is None for model in models):
        return "given"
    return f"{len(trained)} of {len(models)}"


def _of_records(records: Sequence[Record], trained: Sequence[Model], roles: Roles) -> list[str]:
    sizes = sorted({record.spec.model.parameters for record in records})
    spent = [training for model in trained if model.training and (training := roles.spent(model.training)) is not None]
    passes = [sum(getattr(record.passes, kind) for record in records) for kind in ("forwards", "backwards")]
    return [
        ", ".join(f"{size:,}" for size in sizes) or UNKNOWN,
        f"{sum(training.epochs for training in spent) / len(spent):.0f}" if spent else UNKNOWN,
        _times(((training.device, training.seconds) for training in spent), len(trained)),
        _times(((training.device, training.cpu_seconds) for training in spent), len(trained)),
        str(len(records)),
        *(f"{number:,}" for number in passes),
        _times_of(records),
    ]


def _by_device(times: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    by_device: dict[str, list[float]] = {}
    for device, seconds in sorted(times):
        by_device.setdefault(device, []).append(seconds)
    return by_device


def _times_of(records: Sequence[Record]) -> str:
    """Spell the time of evaluations for each device."""
    by_device = _by_device((record.environment.device, record.seconds) for record in records)
    return ", ".join(f"{spell(sum(times))} on {device}" for device, times in by_device.items()) or UNKNOWN


def _times(spent: Iterable[tuple[str, float]], trained: int) -> str:
    """Spell the mean time for each device, and how many of the trainings were timed there if not all were."""
    texts = []
    for device, times in _by_device(spent).items():
        timed = "" if len(times) == trained else f" ({len(times)} of {trained} timed)"
        texts.append(f"{spell(sum(times) / len(times))}{f' on {device}' if device else ''}{timed}")
    return ", ".join(texts) or UNKNOWN


def document(item: Cost, times_and_passes: Sequence[Sequence[str]], origin: Block) -> Document:
    """Return the page of the table. `origin`: what is done, and the command that makes it."""
    blocks: list[Block] = [
        Table(HEADS, times_and_passes),
        Paragraph(NOTE, soft=True),
        Paragraph(Prose(item.intro)),
        origin,
    ]
    return Document(item.title, blocks)
