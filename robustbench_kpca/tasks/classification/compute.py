"""Evaluate, attack, audit and train classifiers: one label per image."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.engine import CleanBatch
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.inference.corrupted import cell_of, corrupted
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.loader import in_batches
from robustbench_kpca._engine.inference.runner import Presentation, Runner, call
from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.data.base import Image
from robustbench_kpca.data.cells import CellSamples
from robustbench_kpca.data.io.remembered import Remembered
from robustbench_kpca.data.request import View
from robustbench_kpca.data.samples import ArraySamples, Samples
from robustbench_kpca.protocols.scenario import Certificate, Corruption, Scenario, cells_of
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.table import COUNTS, UNATTACKED
from robustbench_kpca.tasks.audit_plan import SHARED_ATTACKS, SHARED_WHITE_BOX, AuditPlan, OfEps
from robustbench_kpca.tasks.classification.answers import Answers, odd_answers
from robustbench_kpca.tasks.classification.certified import COUNTED, CertifiedAnswers
from robustbench_kpca.tasks.classification.classes import match_classes
from robustbench_kpca.tasks.classification.requirements import at_size, first_cell, require_images
from robustbench_kpca.tasks.classification.success import Misclassified
from robustbench_kpca.tasks.compute import Compute, Row
from robustbench_kpca.tasks.training import Counts, Training, accuracy
from robustbench_kpca.types import Images, Labels, Logits, PerSample

Item = tuple[int, Tensor, int]
_ONE_ROW = Presentation(
    call,
    lambda logits, x: logits.ndim == 2 and len(logits) == len(x),
    expected="one row of logits per image: (batch, classes)",
    fix="a model that returns logits for every pixel needs images with masks, such as --data shapes",
)


class ClassificationTraining(Training):
    """One label per image, or one distribution over the classes per image."""

    def losses(self, logits: Logits, targets: Tensor, smoothing: float) -> PerSample:
        """Return the cross-entropy of each image."""
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)

    def score(self, counts: Counts, loss: float) -> dict[str, float]:  # noqa: ARG002
        """Return the accuracy."""
        return {"accuracy": accuracy(counts)} if counts[1].sum() else {}


class Classification(Compute[Samples]):
    """Image classification: one label per image."""

    success = Misclassified()
    training = ClassificationTraining()
    audit = AuditPlan(
        samples=64,
        attacks={
            **{name: attack for name, attack in SHARED_ATTACKS.items() if name != "order"},
            "square": ("square-linf-8_255", {"queries": 300}),
            "spsa": ("spsa-linf-8_255", {"steps": 10, "samples": 32, "delta": OfEps(1 / 4), "lr": OfEps(1 / 4)}),
            "order": SHARED_ATTACKS["order"],
        },
        strongest=("pgd-doubled", "apgd-doubled", "own-logits"),
        white_box=SHARED_WHITE_BOX,
        black_box=("noise", "square", "spsa"),
        left_out="",
        limits={},
    )

    def require_data(self, data: Samples, protocol: Scenario) -> None:
        """Refuse images on which the protocol cannot be evaluated: see `require_images`."""
        require_images(data, protocol)

    def match_classes(self, data: Samples, classes: int, names: Sequence[str] | None) -> tuple[Samples, str]:
        """Match by name, by WordNet id or by number: see `match_classes`."""
        return match_classes(data, classes, names)

    def at_size(self, data: Samples, view: View | None, *, requested: bool) -> Samples:
        """Resize pictures of a folder, and others on request: see `at_size`."""
        return at_size(data, view, requested=requested)

    def presentation(self, model: nn.Module, kind: str) -> Presentation:  # noqa: ARG002
        """Show images whole."""
        return COUNTED if kind == "certificate" else _ONE_ROW

    def first_inputs(self, model: nn.Module, data: Samples, protocol: Scenario | None, count: int) -> Images:  # noqa: ARG002
        """Return the first images of the first cell."""
        samples = first_cell(data, protocol)
        _, images, _ = next(self.batches(samples, range(min(count, len(samples))), count))
        return images

    def shown(
        self, data: Samples, protocol: Scenario, rows: Sequence[int], *,
        batch_size: int, workers: int | None, seed: int, frost: str,
    ) -> Iterator[tuple[list[int], tuple[Images, Labels]]]:  # fmt: skip
        """Yield (row numbers, (images, labels)) for batches of rows of the grid: see `_Grid`."""
        fetch = _Grid(data, protocol, seed, frost)
        for numbers, images, labels in in_batches(fetch, _collate, rows, batch_size=batch_size, workers=workers):
            yield numbers, (images, labels)

    def results(
        self, name: str, runner: Runner, data: Samples, protocol: Scenario, journal: Journal | None, seed: int
    ) -> Answers:
        """Return an empty container for the results of a model; draws of certificates follow from the seed."""
        kind = partial(CertifiedAnswers, seed=seed) if isinstance(protocol, Certificate) else Answers
        return kind(name, runner, data, protocol, journal=journal)

    def batches(
        self, data: Samples, indices: Sequence[int], batch_size: int, workers: int | None = 0
    ) -> Iterator[CleanBatch]:
        """Yield (indices, images, labels) for batches of samples."""
        if isinstance(data, ArraySamples) and isinstance(data.images, Tensor):  # whole batches, without a loader
            for at in range(0, len(indices), batch_size):
                part = list(indices[at : at + batch_size])
                images = data.images[part].contiguous()
                data.form.check(images)
                yield part, images, torch.tensor([data.labels[index] for index in part])
        elif indices:
            fetch = partial(_fetch, data)
            yield from in_batches(fetch, _collate, indices, batch_size=batch_size, workers=workers)

    def rows(self, sample: Sample, data: Samples, space: InputSpace) -> list[Row]:  # noqa: ARG002
        """Return the one row of an image."""
        clean, adversarial = space.leave(sample.clean[None]), space.leave(sample.worst[None])
        unchanged = sample.worst is sample.clean
        row = {
            "sample": sample.id,
            "label": sample.label,
            "clean_prediction": sample.clean_prediction,
            "prediction": sample.prediction,
            "rank": sample.rank,
            "broken_by": sample.broken_by,
            "linf": 0.0 if unchanged else float(distance(adversarial, clean, "linf")),
            "l2": 0.0 if unchanged else float(distance(adversarial, clean, "l2")),
        }
        row |= {} if sample.unrounded_by is None else {"unrounded_by": sample.unrounded_by}
        return [row | {name: getattr(sample, name) for name in COUNTS}]

    def audited(self, data: Samples, count: int | None) -> Samples:
        """Return the samples of an audit; only images can be audited, since its attacks stay in [0, 1]."""
        if not data.form.box:
            raise BadInputError(
                f"an audit on data '{data.name}', which are {data.form.name}",
                expected="images in [0, 1]",
                fix="add --audit none",
            )
        return super().audited(data, count)

    def is_settled(self, rows: list[Row]) -> bool:
        """Tell whether the image was broken at a smaller budget; then it counts as broken at a larger one."""
        return bool(rows[0]["broken_by"])

    def combined(self, rows: list[Row], smaller: list[Row]) -> list[Row]:
        """Return the row of this attack with the counts at the smaller budgets added."""
        return [rows[0] | {name: rows[0][name] + smaller[0][name] for name in COUNTS}]

    def flags(self, outcomes: Outcomes) -> list[str]:
        """Return the usual remarks, after those on rounding, odd answers and images broken in a gradient pass alone."""
        retracted = int((outcomes["retracted"] > 0).sum()) if outcomes.kind == "attack" else 0
        remark = f"{retracted} samples were misclassified in a gradient pass but not in a plain pass, which decides"
        rounding = _rounded(outcomes) if "unrounded_by" in outcomes.columns else []
        return [*rounding, *odd_answers(outcomes), *([remark] if retracted else []), *super().flags(outcomes)]


def _rounded(outcomes: Outcomes) -> list[str]:
    """Say how many images an attack broke only before, or only after, they were rounded to 8 bits."""
    broken_before, broken_after = (
        ~np.isin(outcomes[name], ["", *UNATTACKED]) for name in ("unrounded_by", "broken_by")
    )
    only_before = int((broken_before & ~broken_after).sum())
    only_after = int((broken_after & ~broken_before).sum())
    ending = f", and {only_after} that held are" if only_after else ""
    broken = f"{only_before} of {broken_before.sum()} broken images"
    return [f"{broken} are no longer broken once they are rounded to 8 bits{ending}"]


COMPUTE = Classification()


def _fetch(samples: Samples, index: int) -> Item:
    return index, samples.form.tensor(_checked(samples, samples.image(index))), samples.labels[index]


def _checked(samples: Samples, image: Image) -> Image:
    if isinstance(image, Tensor):
        samples.form.check(image[None])
    return image


class _Grid:
    """Makes rows of the grid of a protocol's cells and the samples: row c * n + i is sample i of n in cell c."""

    def __init__(self, data: Samples, protocol: Scenario, seed: int, frost: str) -> None:
        self.data, self.protocol, self.seed, self.frost = data, protocol, seed, frost
        self.cells = cells_of(protocol)
        self.clean_image = Remembered(data.image)

    def __call__(self, row: int) -> Item:
        data, form = self.data, self.data.form
        (cell_number, index), protocol = divmod(row, len(data)), self.protocol
        cell = self.cells[cell_number]
        if isinstance(data, CellSamples):
            return row, *_fetch(data.cell(*cell), index)[1:]
        image = _checked(data, self.clean_image(index))
        if isinstance(protocol, Corruption):
            corruption = cell_of(protocol, cell, self.seed, self.frost)
            if corruption is not None:  # None: the cell of clean images
                image = corrupted(form.array(image), corruption, data.ids[index], protocol.storage)
        return row, form.tensor(image), data.labels[index]


def _collate(items: list[Item]) -> CleanBatch:
    index, images, labels = zip(*items, strict=True)
    if len({image.shape for image in images}) > 1:
        raise BadInputError("the images have different sizes", expected="one size")
    return list(index), torch.stack(images), torch.tensor(labels)
