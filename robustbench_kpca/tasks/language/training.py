"""Training of language models: cross-entropy of every word, scored by perplexity and accuracy."""

import math

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.tasks.training import Counts, Training, accuracy
from robustbench_kpca.types import IGNORE, Logits, PerSample


class LanguageTraining(Training):
    """One label per place: the next word."""

    def losses(self, logits: Logits, targets: Tensor, smoothing: float) -> PerSample:
        """Return the sum of the cross-entropy over the places of each window that are not IGNORE.

        Args:
            logits: shape (batch, vocabulary, 1, length).
            targets: shape (batch, 1, length): the next words, or IGNORE.
            smoothing: label smoothing, in [0, 1).

        """
        last = logits.movedim(1, -1).flatten(0, -2)  # the order in which decoders make them, so nothing is copied
        losses = F.cross_entropy(
            last, targets.flatten(), reduction="none", label_smoothing=smoothing, ignore_index=IGNORE
        ).view_as(targets)
        return losses.flatten(1).sum(1)

    def score(self, counts: Counts, loss: float) -> dict[str, float]:
        """Return perplexity, exp(mean cross-entropy), and the share of words that are predicted right."""
        if not counts[1].sum():
            return {}
        return {"perplexity": math.exp(loss) if loss < 700 else math.inf, "accuracy": accuracy(counts)}
