"""An attack on a classifier succeeds if the image is misclassified."""

from collections.abc import Mapping, Sequence

import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.success import Answer, Success
from robustbench_kpca.attacks.shared.losses import margin
from robustbench_kpca.protocols.scenario import Attack as AttackProtocol
from robustbench_kpca.types import Attack, Labels, Logits, Mask, PerSample


class Misclassified(Success):
    """One label per image: a prediction is either correct or wrong."""

    graded = False

    def judge(self, logits: Logits, labels: Labels) -> tuple[Labels, PerSample]:
        """Return prediction and margin; NaN or infinite logits give class -1 and score -inf."""
        finite = torch.isfinite(logits).all(1)
        prediction = torch.where(finite, logits.argmax(1), -1)
        return prediction, torch.where(finite, margin(logits, labels), -torch.inf)

    def reached(self, predictions: Labels, labels: Labels) -> Mask:
        """Tell which images are misclassified; class -1 is a success."""
        return predictions != labels

    def has_reached(self, prediction: Answer, label: Answer) -> bool:
        """Return `reached` of one image, whose classes are plain numbers."""
        return bool(prediction != label)

    def rank(self, logits: Logits, labels: Labels) -> Labels:
        """Return per image the number of classes ranked above its label; if a logit is NaN or infinite, all are."""
        return torch.where(torch.isfinite(logits).all(1), rank_of(logits, labels), logits.shape[1])

    def share(self, predictions: Labels, labels: Labels) -> PerSample:
        """Return 1 where the prediction is correct, else 0."""
        return (predictions == labels).double()

    def unanswered(self, predictions: Labels) -> Mask:
        """Tell which images have a logit that is NaN or infinite."""
        return predictions < 0

    def split(self, rows: Labels) -> list[Answer]:
        """Return one class per image."""
        classes: list[Answer] = rows.tolist()
        return classes

    def join(self, answers: Sequence[Answer], device: torch.device | None = None) -> Labels:
        """Return a tensor of classes, shape (batch,)."""
        return torch.tensor(answers, device=device)

    def check_protocol(self, protocol: AttackProtocol, attacks: Mapping[str, Attack]) -> None:
        """Refuse attacks that are defined by the many labels of a sample, such as SegPGD."""
        for name, attack in attacks.items():
            if not getattr(attack, "one_label", True):
                raise BadInputError(
                    f"attack '{name}' of protocol '{protocol.title}' is for samples with many labels, such as scenes, "
                    "but these have one each",
                    fix="choose an attack for images, such as pgd20-linf-8_255 or autoattack-linf-8_255",
                )


def rank_of(logits: Logits, labels: Labels) -> Labels:
    """Return per image the number of classes ranked above its label; of equal logits, the first class ranks highest."""
    of_label = logits.gather(1, labels[:, None])
    classes = torch.arange(logits.shape[1], device=logits.device)
    tied_before = (logits == of_label) & (classes < labels[:, None])
    return ((logits > of_label) | tied_before).sum(1)
