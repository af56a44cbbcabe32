"""What a successful attack is: a value that the loop asks, given by the task."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from robustbench_kpca.protocols.scenario import Attack as AttackProtocol
from robustbench_kpca.types import Attack, Labels, Logits, Mask, PerSample

Answer: TypeAlias = int | Tensor
"""The label or prediction of one sample: a class, or a map of classes, kept in 16 bits."""


class Success(ABC):
    """Compares the model's answers with labels, for a whole batch at a time.

    Attributes:
        graded: False: a sample is broken or stands, and later stages attack only those that stand. True: inputs are
            better or worse by degrees, so each stage searches for its own worst input, from the clean one on.

    """

    graded: bool

    @abstractmethod
    def judge(self, logits: Logits, labels: Labels, sign: int = 1) -> tuple[Labels, PerSample]:
        """Return prediction and score of every row; the lower the score, the better for the attacker.

        Labels that are not answered with finite logits are predicted as class -1. `sign` is -1 for targeted attacks.
        """

    @abstractmethod
    def reached(self, predictions: Labels, targets: Labels, *, targeted: bool) -> Mask:
        """Tell which rows are as the attacker wants them; `targets` are the classes to leave or, targeted, to reach."""

    @abstractmethod
    def share(self, predictions: Labels, labels: Labels) -> PerSample:
        """Return the share of each sample's labels that are predicted right, in double precision."""

    @abstractmethod
    def unanswered(self, predictions: Labels) -> Mask:
        """Tell which rows have a logit that is NaN or infinite."""

    @abstractmethod
    def split(self, rows: Labels) -> list[Answer]:
        """Return each sample's own answer, on the CPU."""

    @abstractmethod
    def join(self, answers: Sequence[Answer], device: torch.device | None = None) -> Labels:
        """Return one batch of the answers of several samples: the inverse of `split`."""

    @abstractmethod
    def check_protocol(self, protocol: AttackProtocol, attacks: Mapping[str, Attack]) -> None:
        """Refuse a protocol, or one of its attacks, that has no meaning here.

        Raises:
            BadInputError: what was met, and what was expected.

        """
