"""Temperature: softmax(Q K^T / (T sqrt(D))) V with T > 1, on a trained model, against corrupted patches.

Gu, Tresp & Qin (2022), "Are Vision Transformers Robust to Patch Perturbations?", arXiv:2111.10659. With a large T the
gradient of A vanishes, so attack such a model through T = 1, too.
"""

from typing import Any, ClassVar

from robustbench_kpca.attention.shared.heads import Heads
from robustbench_kpca.attention.shared.weights import WeightedAttention, Weights, require_positive


class TemperatureAttention(WeightedAttention):
    """out = proj(softmax(Q K^T / (T sqrt(D))) V); T = 1 is softmax attention, whose parameters it has.

    The default T is a choice of this project: which one the authors use is not verified.
    """

    off: ClassVar[str] = "temperature=1"

    def __init__(self, dim: int, num_heads: int = 8, *, temperature: float = 2.0, **options: Any) -> None:
        require_positive("temperature", temperature)
        super().__init__(dim, num_heads, **options)
        self.temperature = temperature

    def scores(self, q: Heads, k: Heads) -> Weights:
        """Divide by T."""
        return super().scores(q, k) / self.temperature


ATTENTION = TemperatureAttention
