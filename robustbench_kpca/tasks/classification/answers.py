"""Outcomes of a classifier per image: prediction, rank of the label and confidence; and which of them are odd."""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.query import check_clean
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.metrics.accuracy import clean_answers, guessing
from robustbench_kpca.protocols.scenario import Ood, Scenario, Shift, cells_of
from robustbench_kpca.records.estimate import proportion
from robustbench_kpca.records.outcomes import Column, Outcomes
from robustbench_kpca.tasks.classification import TASK
from robustbench_kpca.tasks.classification.requirements import IMAGENET_CLASSES, classes_of
from robustbench_kpca.tasks.classification.success import rank_of
from robustbench_kpca.tasks.results import ModelResults
from robustbench_kpca.types import Images, Labels, Logits

_GIVEN = ("sample", "label", "corruption", "severity")


class Answers(ModelResults):
    """The columns of the outcomes that the model determines; rows are filled from the first to the last.

    Rows wait until they fill a batch, so rows of several cells share one. An answer does not depend on the other rows
    of its batch.
    """

    real: ClassVar[type[np.floating[Any]]] = np.float32

    def __init__(
        self, name: str, runner: Runner, samples: Samples, protocol: Scenario, journal: Journal | None
    ) -> None:
        super().__init__(name, runner, journal)
        self.samples, self.protocol, self.table = samples, protocol, TASK.table(protocol.kind)
        rows = len(cells_of(protocol)) * len(samples)
        self.columns: dict[str, Column] = {
            name: np.zeros(rows, self.real if kind == "float" else np.int64)
            for name, kind in self.table.columns.items()
            if name not in _GIVEN
        }
        self.done = self.queued = self.begun  # number of rows that are answered; that are answered or waiting
        self.waiting: list[tuple[Images, Labels]] = []
        for name, column in self.columns.items() if self.saved else ():
            column[: self.done] = self.saved["rows"][name].numpy()

    @property
    def forwards(self) -> int:
        """Number of forward passes: one per row."""
        return self.done

    def show(self, first: int, batch: tuple[Images, Labels]) -> None:
        """Queue rows `first`, `first` + 1, ..., unless they are finished already; evaluate full batches."""
        finished = max(self.queued - first, 0)
        images, labels = (part[finished:] for part in batch)
        if len(images):
            self.waiting.append((images, labels))
            self.queued += len(images)
        while self.queued - self.done >= self.runner.batch_size:
            self._answer(self.runner.batch_size)

    def finish(self) -> None:
        """Evaluate the rows that still wait for a full batch."""
        if self.waiting:
            self._answer(self.queued - self.done)

    def _answer(self, count: int) -> None:
        """Evaluate the first `count` rows that wait."""
        with self.timed():
            images, labels = (torch.cat(part) for part in zip(*self.waiting, strict=True))
            self.waiting = [(images[count:], labels[count:])] if len(images) > count else []
            rows = slice(self.done, self.done + count)
            for name, values in self.columns_of(self.done, images[:count], labels[:count]).items():
                if name in self.columns:
                    self.columns[name][rows] = values.numpy()
            self.done = rows.stop

    def columns_of(self, first: int, images: Images, labels: Labels) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the columns of rows `first`, `first` + 1, ..., and perhaps others."""
        return answers(self.protocol, self.runner.clean_logits(images.to(self.runner.device)).cpu(), labels)

    def content(self) -> tuple[int, dict[str, Any]]:
        """Return the number of finished rows, and these rows."""
        return self.done, {name: torch.from_numpy(column[: self.done]) for name, column in self.columns.items()}

    def outcomes(self) -> Outcomes:
        """Return one row per image and cell."""
        places, count = cells_of(self.protocol), len(self.samples)
        columns: dict[str, Any] = {
            "sample": np.tile(np.array(self.samples.ids, object), len(places)),
            "label": np.tile(np.array(self.samples.labels), len(places)),
            "corruption": np.repeat(np.array([name for name, _ in places], object), count),
            "severity": np.repeat([severity for _, severity in places], count),
        }
        return Outcomes.from_columns(self.table, columns | self.columns)


def answers(protocol: Scenario, logits: Logits, labels: Labels) -> dict[str, Tensor]:
    """Return the columns of outcomes for these logits.

    Raises:
        BadInputError: logits of a wrong shape or not finite; a model without the 1000 ImageNet classes under a protocol
            that selects some of them.
    """
    check_clean(logits, labels)
    classes = classes_of(protocol) if isinstance(protocol, Shift | Ood) else None
    if classes is not None and logits.shape[1] != IMAGENET_CLASSES:
        raise BadInputError(
            f"the protocol selects 200 ImageNet classes, but the model has {logits.shape[1]} classes",
            expected="a model with the 1000 classes of ImageNet-1K, in their order",
        )
    if isinstance(protocol, Ood):
        return _certainty(logits if classes is None else logits[:, classes])
    masked = logits if classes is None else _mask(logits, classes)
    return _ranked(masked, labels) | {"unmasked_prediction": logits.argmax(1)}


def _mask(logits: Logits, classes: list[int]) -> Logits:
    masked = torch.full_like(logits, -torch.inf)
    masked[:, classes] = logits[:, classes]
    return masked


def _certainty(logits: Logits) -> dict[str, Tensor]:
    """Confidence scores in fp32: max softmax (Hendrycks & Gimpel 2017), max logit, energy (Liu et al. 2020)."""
    largest, total = logits.amax(1), logits.logsumexp(1)
    return {"max_log_softmax": largest - total, "max_logit": largest, "log_sum_exp": total}


def _ranked(logits: Logits, labels: Labels) -> dict[str, Tensor]:
    rank = rank_of(logits, labels)
    return {"prediction": logits.argmax(1), "rank": rank, "confidence": logits.softmax(1).amax(1)}


FEWEST = 8
"""Fewest samples for which one answer to all is a surprise."""
_KINDS = ("clean", "attack", "corruption", "certificate")


def odd_answers(outcomes: Outcomes) -> list[str]:
    """Return flags for a record; not of shifted data, some of which are chosen to be classified wrongly.

    A guesser is right as often as `metrics.accuracy.guessing` says; an accuracy whose 95 % interval is not above that
    is flagged. Labels that number the classes in another way are the usual cause.
    """
    if outcomes.kind not in _KINDS:
        return []
    answers, labels = clean_answers(outcomes)
    if len(labels) < FEWEST or (labels == labels[0]).all():
        return []
    if (answers == answers[0]).all():
        share = 100 * float((labels == answers[0]).mean())
        same = f"the model answers class {answers[0]} to all {len(answers)} clean samples"
        return [f"{same}: its accuracy is the share of that class, {share:.1f} %, whatever the attack"]
    accuracy, chance = proportion(int((answers == labels).sum()), len(labels)), guessing(outcomes)
    if accuracy.low > chance:
        return []
    interval = f"{100 * accuracy.value:.1f} % [{100 * accuracy.low:.1f}, {100 * accuracy.high:.1f}]"
    finding = f"the clean accuracy, {interval}, is not above that of guessing, {100 * chance:.1f} %"
    return [f"{finding}: are the labels numbered as the model numbers its classes?"]
