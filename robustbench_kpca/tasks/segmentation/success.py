"""An attack on a segmenter succeeds by degrees: the fewer pixels are right, the better for the attacker."""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from robustbench_kpca.attack_loop.success import Answer, Success
from robustbench_kpca.attacks.shared.losses import mean, pixelwise_margin
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.protocols.scenario import Attack as AttackProtocol
from robustbench_kpca.types import IGNORE, Attack, Labels, Logits, Mask, PerSample


class FewerRight(Success):
    """One label a place of the sample, such as a pixel: some of them are right."""

    graded = True

    def judge(self, logits: Logits, labels: Labels, sign: int = 1) -> tuple[Labels, PerSample]:  # noqa: ARG002
        """Return predictions and scores.

        A place whose logits are NaN or infinite predicts class -1. The score is the number of right places, plus a
        fraction between 0 and 1 that grows with the mean margin, in double precision.
        """
        finite = torch.isfinite(logits).all(1)
        prediction = torch.where(finite, logits.argmax(1), -1)
        average = mean(torch.where(finite, pixelwise_margin(logits, labels), -torch.inf), labels)
        return prediction, right(prediction, labels) + 0.5 + average.double().atan() / math.pi

    def reached(self, predictions: Labels, targets: Labels, *, targeted: bool) -> Mask:  # noqa: ARG002
        """Tell which samples have no right place left."""
        return right(predictions, targets) == 0

    def share(self, predictions: Labels, labels: Labels) -> PerSample:
        """Return the right places, divided by those that count."""
        return right(predictions, labels).double() / right(labels, labels).clamp_min(1)

    def unanswered(self, predictions: Labels) -> Mask:
        """Tell which samples have a logit that is NaN or infinite."""
        return (predictions < 0).flatten(1).any(1)

    def split(self, rows: Labels) -> list[Answer]:
        """Return one map of classes a sample, in 16 bits."""
        return [row.clone() for row in rows.to("cpu", torch.int16)]

    def join(self, answers: Sequence[Answer], device: torch.device | None = None) -> Labels:
        """Stack maps of classes."""
        maps = [answer for answer in answers if isinstance(answer, Tensor)]
        return torch.stack(maps).to(device).long()

    def check_protocol(self, protocol: AttackProtocol, attacks: Mapping[str, Attack]) -> None:
        """Refuse targets, other labels or spaces, the policy `last`, and attacks that need one label a sample."""
        asked = (protocol.labels, protocol.target, protocol.space)
        if asked != ("true", "none", "pixel") or protocol.policy == "last":
            raise BadInputError(
                "labels = '{}', target = '{}', space = '{}' and policy = '{}' for samples with many labels".format(
                    *asked, protocol.policy
                ),
                expected="labels = 'true', target = 'none', space = 'pixel', and policy = 'strongest' or "
                "'stop_at_first'",
            )
        for name, attack in attacks.items():
            if not getattr(attack, "many_labels", False):
                raise BadInputError(
                    f"attack '{name}' needs one label a sample, and these samples have many",
                    fix="choose pgd, segpgd, apgd_shrinking, apgd, mim, fgsm or noise",
                )


def right(predictions: Labels, labels: Labels) -> Int64[Tensor, " batch"]:
    """Count the right places of each sample; those labelled IGNORE do not count."""
    return ((predictions == labels) & (labels != IGNORE)).flatten(1).sum(1)
