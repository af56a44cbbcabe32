"""An attack on a text succeeds by degrees: the less probable the clean next words, the better for the attacker."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.success import ManyLabels
from robustbench_kpca.attacks.shared.losses import pixelwise_cross_entropy
from robustbench_kpca.protocols.scenario import Attack as AttackProtocol
from robustbench_kpca.types import IGNORE, Attack, Labels, Logits, Mask, PerSample


class HigherLoss(ManyLabels):
    """Many labels per sample: the words that follow. The score is the mean of log p of those that are scored."""

    kept = torch.int32

    def judge(self, logits: Logits, labels: Labels) -> tuple[Labels, PerSample]:
        """Return predictions and the mean log p of the labels in nats, in double precision.

        Where logits are NaN or infinite, the prediction is -1 and the mean minus infinity. Places labelled IGNORE do
        not count.
        """
        finite = torch.isfinite(logits).all(1)
        prediction = torch.where(finite, logits.argmax(1), -1)
        log_p = torch.where(finite, -pixelwise_cross_entropy(logits, labels).double(), -torch.inf)
        scored = _scored(labels)
        return prediction, torch.where(scored, log_p, 0).flatten(1).sum(1) / _count(scored)

    def reached(self, predictions: Labels, labels: Labels) -> Mask:  # noqa: ARG002
        """Return False: a text is never broken, it only becomes less probable."""
        return torch.zeros(len(predictions), dtype=torch.bool, device=predictions.device)

    def share(self, predictions: Labels, labels: Labels) -> PerSample:
        """Return the fraction of scored words that are the likeliest ones."""
        scored = _scored(labels)
        return ((predictions == labels) & scored).flatten(1).sum(1).double() / _count(scored)

    def check_protocol(self, protocol: AttackProtocol, attacks: Mapping[str, Attack]) -> None:  # noqa: ARG002
        """Refuse attacks that do not replace words, and those that stop."""
        space, labels, policy = protocol.space, protocol.labels, protocol.policy
        if (space, labels, policy) != ("word", "true", "strongest"):
            raise BadInputError(
                f"space = '{space}', labels = '{labels}' and policy = '{policy}' for a text",
                expected="space = 'word', labels = 'true' and policy = 'strongest'",
                fix="choose hotflip-words-1.5, gbda-words-1.5 or random-swap-words-1.5",
            )


def _scored(labels: Labels) -> Bool[Tensor, " batch *place"]:
    return labels != IGNORE


def _count(scored: Tensor) -> Tensor:
    return scored.flatten(1).sum(1).clamp_min(1)
