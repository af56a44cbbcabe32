"""An attack on a segmenter succeeds by degrees: the fewer pixels are correct, the better for the attacker."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Int64
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.success import ManyLabels
from robustbench_kpca.attacks.shared.losses import mean, pixelwise_margin
from robustbench_kpca.protocols.scenario import Attack as AttackProtocol
from robustbench_kpca.types import IGNORE, Attack, Labels, Logits, Mask, PerSample


class FewerRight(ManyLabels):
    """Many labels per sample, such as one per pixel; the score counts the correct ones."""

    kept = torch.int16

    def judge(self, logits: Logits, labels: Labels) -> tuple[Labels, PerSample]:
        """Return predictions and scores.

        Where logits are NaN or infinite, the prediction is class -1. The score is the number of correct places plus a
        number in (0, 1) that increases with the mean margin, in double precision.
        """
        finite = torch.isfinite(logits).all(1)
        prediction = torch.where(finite, logits.argmax(1), -1)
        average = mean(torch.where(finite, pixelwise_margin(logits, labels), -torch.inf), labels)
        return prediction, right(prediction, labels) + 0.5 + average.double().atan() / math.pi

    def reached(self, predictions: Labels, labels: Labels) -> Mask:
        """Tell which samples have no correct place left."""
        return right(predictions, labels) == 0

    def share(self, predictions: Labels, labels: Labels) -> PerSample:
        """Return the fraction of correct places among those not labelled IGNORE."""
        return right(predictions, labels).double() / right(labels, labels).clamp_min(1)

    def check_protocol(self, protocol: AttackProtocol, attacks: Mapping[str, Attack]) -> None:
        """Refuse predicted labels, normalised space, policy `last`, and attacks for one label."""
        labels, space, policy = protocol.labels, protocol.space, protocol.policy
        if (labels, space) != ("true", "pixel") or policy == "last":
            raise BadInputError(
                f"labels = '{labels}', space = '{space}' and policy = '{policy}' for samples with many labels",
                expected="labels = 'true', space = 'pixel', and policy = 'strongest' or 'stop_at_first'",
            )
        for name, attack in attacks.items():
            if not getattr(attack, "many_labels", False):
                raise BadInputError(
                    f"attack '{name}' needs one label per sample, but these samples have many",
                    fix="choose pgd, segpgd, apgd_shrinking, apgd, mim, fgsm or noise",
                )


def right(predictions: Labels, labels: Labels) -> Int64[Tensor, " batch"]:
    """Count the correct places of each sample; places labelled IGNORE are excluded."""
    return ((predictions == labels) & (labels != IGNORE)).flatten(1).sum(1)
