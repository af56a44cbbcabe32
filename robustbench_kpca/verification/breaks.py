"""Breaks: adversarial images that somebody else found are checked, shown to the model once, and written as a record.

The record names who found them. No record of the row changes: a board takes the worst case, image by image.
"""

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.attack_loop.threat import threat_for
from robustbench_kpca._engine.inference.acceleration import accelerated
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.requests import NamedModel
from robustbench_kpca.protocols.scenario import IMPORTED, Attack, parse_scenario
from robustbench_kpca.records.images import KeptImages
from robustbench_kpca.records.names import mistakable
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.shards import Made
from robustbench_kpca.records.table import CLEAN
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.breaks import standing, unbroken
from robustbench_kpca.report.commands import command
from robustbench_kpca.tasks import task_named
from robustbench_kpca.types import Images
from robustbench_kpca.verification.image_files import places_of, read_images, require_fit
from robustbench_kpca.verification.rerun import asked_for, require_same
from robustbench_kpca.verification.stated import AS_RECORDED, Conditions


@dataclass(frozen=True)
class Target:
    """A number that images may lower.

    Attributes:
        title: of its column.
        records: those of our own attacks, which name model, samples and perturbation set, then earlier breaks.
        stated: the command of the board for the first record; empty: that of the record.
    """

    title: str
    records: Sequence[Record]
    stated: Sequence[str] = ()

    @property
    def left(self) -> set[str]:
        """The samples that nobody has broken."""
        return standing(self.records)


def target_on(board: Board, row: str, title: str | None = None) -> Target:
    """Return the number of a row in the column that counts what others found.

    Args:
        row: title of a row of one model, or the name of a model.
        title: of the column, where several count it.

    Raises:
        BadInputError: no such row, column or record.
    """
    models = next((each.models for each in board.spec.rows if each.title == row), (row,))
    if len(models) > 1 or models[0] not in board.spec.all_models:
        others = models if len(models) > 1 else board.spec.all_models
        raise BadInputError(f"'{row}' is no model of board '{board.name}'", expected=f"one of {', '.join(others)}")
    columns = [column for column in board.spec.column if column.imported]
    chosen = [column for column in columns if title in (None, column.title)]
    if len(chosen) != 1:
        raise BadInputError(
            f"{len(chosen)} columns of board '{board.name}' are titled {title or 'so'} and count images of others",
            expected=f"--column with one of {', '.join(column.title for column in columns) or 'none'}",
            fix="" if columns else "write imported = true into a [[column]] of its board.toml",
        )
    [column] = chosen
    needed = board.spec.needed(column)
    run = next((run for run in board.runs_of_model(models[0]) if run.record and run.evaluation in needed), None)
    records = board.records(models[0], column)
    if run is None or not records:
        raise BadInputError(f"'{row}' has no number in column '{column.title}'", fix=f"see: {board.missing}")
    return Target(column.title, records, shlex.split(command(board.spec, [run])))


def record_break(
    file: Path, target: Target, *, by: str, method: str, out: Path, how: Conditions = AS_RECORDED
) -> tuple[Record, int, int]:
    """Check the images of a file, show them to the model of a number, and write a record of what they break.

    Args:
        by: who found the images.
        method: how, in words.
        out: folder of the new record. It keeps the images that break, for `rbk records verify --kept-images`.

    Returns:
        The record, and how many samples stand without it and with it.

    Raises:
        BadInputError: as `read_images`, `places_of` and `require_fit`; a name that can be mistaken for another; the
            number is not of an attack in pixel space on images with one label each; model or samples are not those of
            its record; the images break nothing that is not broken.
    """
    ours = target.records[0]
    spec = ours.spec
    our_protocol = spec.protocol.scenario
    task = task_named(spec.data.task)
    if not isinstance(our_protocol, Attack) or our_protocol.space != "pixel" or task.compute.success.graded:
        raise BadInputError(
            f"{spec.stem()} is of {our_protocol.kind} of {task.name}",
            expected="a record of an attack in pixel space on images with one label each",
        )
    if why := mistakable(by):
        raise BadInputError(why, expected="a name that cannot be mistaken for another")
    images, names, digest = read_images(file)
    imported = {"by": by, "method": method, "sha256": digest}
    fixed = {"policy": "strongest", "labels": "true", "precision": "fp32", "below": [], "stage": [], "citations": []}
    titled = {"title": f"Images found by {by}", "imported": imported, "storage": None}
    stated = our_protocol.model_dump(mode="json") | fixed | titled
    scenario = parse_scenario(stated, "imported images")
    assert isinstance(scenario, Attack)
    model, data, options = asked_for(ours, target.stated, how, None, images=None, labels=None)
    samples = Samples.require(data)
    places = places_of(names, samples.ids)
    clean, _ = samples.tensors()
    require_fit(images, clean[places], [samples.ids[place] for place in places], threat_for(scenario, model))
    options = replace(how.options(spec, options), out=out)
    found = dict(zip(places, images, strict=True))
    with accelerated([model], options.compile, tf32=options.tf32):
        named = NamedModel(model, spec.model.name, spec.model.source)
        label, words = f"{IMPORTED}-{digest[:12]}", (f"rbk board break, of {file.name}",)
        evaluation = Evaluation.begin(named, data, label, scenario, options=options, command=words)
        require_same(spec, evaluation.spec, exact=False)
        with evaluation.holding_lock():
            record = evaluation.finished or _record_of(evaluation, scenario, target, clean, found)
    before = standing(each for each in target.records if each.spec.digest() != record.spec.digest())  # of a first call
    return record, len(before), len(before & unbroken(record.outcomes))


def _record_of(
    evaluation: Evaluation, scenario: Attack, target: Target, clean: Images, found: dict[int, Tensor]
) -> Record:
    """Show clean and found images to the model; samples that it gets wrong before count as wrong, as in any attack.

    found: images by the place of their sample. Where there is none, the clean image decides.
    """
    runner, data, started = evaluation.subject.runner, Samples.require(evaluation.data), time.perf_counter()
    compute = task_named(data.task).compute
    labels = torch.tensor(data.labels)

    def judged(pictures: Images, labels: Tensor) -> list[tuple[int, float, int]]:
        answers: list[tuple[int, float, int]] = []
        for first in range(0, len(pictures), runner.batch_size):
            rows = slice(first, first + runner.batch_size)
            logits = runner.logits(pictures[rows].to(runner.device)).cpu()
            parts = (*compute.success.judge(logits, labels[rows]), compute.success.rank(logits, labels[rows]))
            answers += zip(*(part.tolist() for part in parts), strict=True)
        return answers

    places = list(found)
    with frozen(runner.model):
        before = judged(clean, labels)
        after = dict(zip(places, judged(torch.stack(list(found.values())), labels[places]), strict=True))
    samples: list[Sample] = []
    for at, label in enumerate(data.labels):
        wrong = before[at][0] != label
        prediction, margin, rank = before[at] if wrong else after.get(at, before[at])
        how: dict[str, Any] = {"before": CLEAN if wrong else "", "forwards": 0 if wrong else scenario.draws}
        how["broken_by"] = CLEAN if wrong else "" if prediction == label else IMPORTED
        how |= {"worst": clean[at] if wrong else found.get(at, clean[at]), "worst_margin": margin}
        how |= {"prediction": prediction, "rank": rank, "target": label}
        samples.append(Sample(at, data.ids[at], label, clean[at], before[at][0], **how))
    space = InputSpace.of(runner.model, scenario.space)
    rows = [row for sample in samples for row in compute.rows(sample, data, space)]
    outcomes = Outcomes.from_rows(task_named(data.task).table(scenario.table), rows)
    if target.left <= unbroken(outcomes):
        raise BadInputError(
            f"the {len(found)} images break nothing in '{target.title}' that is not broken ({len(target.left)} stand)",
            expected="an image that changes a right answer",
        )
    remarks = evaluation.subject.first.again(runner, evaluation.options.allow)
    work = Made(len(data), time.perf_counter() - started, runner.batch_size, tuple(remarks))
    broken = [sample for sample in samples if sample.broken_by == IMPORTED]
    both = (torch.stack([getattr(sample, name) for sample in broken]).numpy() for name in ("clean", "worst"))
    return evaluation.finish(outcomes, work, images=KeptImages.of(tuple(sample.id for sample in broken), *both))
