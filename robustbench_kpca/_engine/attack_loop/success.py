"""Interface `Success`: each task defines when an attack on a sample succeeds, and the attack loop calls it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor

from robustbench_kpca.protocols.scenario import Attack as AttackProtocol
from robustbench_kpca.types import Attack, Labels, Logits, Mask, PerSample

Answer: TypeAlias = int | Tensor
"""The label or prediction of one sample: a class, or a map of classes, kept in 16 bits."""


class Success(ABC):
    """Compares predictions with labels, one batch at a time.

    Attributes:
        graded: False: a sample is either broken or not, and later stages attack only samples that are not. True: an
            attack can be more or less successful, so each stage searches for the worst input, from the clean one.
    """

    graded: bool

    @abstractmethod
    def judge(self, logits: Logits, labels: Labels) -> tuple[Labels, PerSample]:
        """Return the prediction and the score of every row; a lower score is better for the attacker.

        Where logits are NaN or infinite, the prediction is class -1.
        """

    @abstractmethod
    def reached(self, predictions: Labels, labels: Labels) -> Mask:
        """Tell in which rows the attack succeeded."""

    def has_reached(self, prediction: Answer, label: Answer) -> bool:
        """Return `reached` of one sample."""
        return bool(self.reached(self.join([prediction]), self.join([label])))

    def rank(self, logits: Logits, labels: Labels) -> Int64[Tensor, " batch"]:  # noqa: ARG002
        """Return per sample the number of classes ranked above its label; 0 where a sample has many labels."""
        return torch.zeros(len(logits), dtype=torch.int64, device=logits.device)

    @abstractmethod
    def share(self, predictions: Labels, labels: Labels) -> PerSample:
        """Return the fraction of each sample's labels that are predicted correctly, in [0, 1], double precision."""

    @abstractmethod
    def unanswered(self, predictions: Labels) -> Mask:
        """Tell which rows have a logit that is NaN or infinite."""

    @abstractmethod
    def split(self, rows: Labels) -> list[Answer]:
        """Return one answer per sample, on the CPU."""

    @abstractmethod
    def join(self, answers: Sequence[Answer], device: torch.device | None = None) -> Labels:
        """Return the answers of several samples as one batch: the inverse of `split`."""

    @abstractmethod
    def check_protocol(self, protocol: AttackProtocol, attacks: Mapping[str, Attack]) -> None:
        """Refuse a protocol, or one of its attacks, that is not defined for this task.

        Raises:
            BadInputError: the protocol or the attack cannot be used.
        """


class ManyLabels(Success):
    """Samples with a label for each place, such as a pixel or a word; an answer is a tensor of classes, `kept` so."""

    graded = True
    kept: torch.dtype

    def unanswered(self, predictions: Labels) -> Mask:
        """Tell which samples have a logit that is NaN or infinite."""
        return (predictions < 0).flatten(1).any(1)

    def split(self, rows: Labels) -> list[Answer]:
        """Return the classes of each sample."""
        return [row.clone() for row in rows.to("cpu", self.kept)]

    def join(self, answers: Sequence[Answer], device: torch.device | None = None) -> Labels:
        """Stack the classes of several samples into one batch."""
        return torch.stack([answer for answer in answers if isinstance(answer, Tensor)]).to(device).long()
