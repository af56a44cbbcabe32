"""Kernel density attention: softmax over distances to keys of length 1, the base of the robust estimators.

Han et al. (2023), "Designing Robust Transformers using Robust Kernel Density Estimation", arXiv:2210.05794.
"""

from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attention.shared.heads import Heads
from robustbench_kpca.attention.shared.weights import WeightedAttention, Weights

LEAST = 1e-12  # length that keys are divided by


class KDEAttention(WeightedAttention):
    """out = proj(softmax_j(-||q_i - k_j / ||k_j|| ||^2 / sqrt(D)) V); the parameters are those of softmax attention.

    Since keys have length 1, that is softmax(2 Q K^T / sqrt(D)): normalised keys, and the doubled scale.
    """

    def scores(self, q: Heads, k: Heads) -> Weights:
        """Leave out what is the same for all keys."""
        return 2 * super().scores(q, F.normalize(k, dim=-1, eps=LEAST))


ATTENTION = KDEAttention
