"""Median of means: kernel density attention on one of several random subsets of tokens, that of the median score.

Han et al. (2023), "Designing Robust Transformers using Robust Kernel Density Estimation", arXiv:2210.05794.
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.kde import KDEAttention
from robustbench_kpca.attention.shared.heads import Heads
from robustbench_kpca.attention.shared.weights import Gradient, Weights, require_choice, require_count

Blocks = Bool[Tensor, "#batch blocks tokens"]


class MedianOfMeansAttention(KDEAttention):
    """out = proj(softmax(g restricted to the keys of one block) V), g the scores of `kde`.

    Each of `blocks` subsets has the share 1 - `outliers` of the tokens. In every image, the layer takes the block whose
    sum of g over heads, queries and keys is the median. The choice is piecewise constant, so it has no gradient.

    Args:
        dim: width of the tokens.
        num_heads: number of heads.
        blocks: number of subsets.
        outliers: share of the tokens that a subset leaves out.
        gradient: `released`: blocks are drawn anew in each pass, so passes differ; `restored`: the mean over `draws`
            fixed draws. Unlike in the released code, blocks come from torch's generator, and each image has its own
            choice.
        draws: number of draws of `restored`.
        **options: options of `WeightedAttention`.
    """

    off: ClassVar[str] = "outliers=0"

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        blocks: int = 5,
        outliers: float = 0.1,
        gradient: Gradient = "restored",
        draws: int = 8,
        **options: Any,
    ) -> None:
        require_choice("gradient", gradient, Gradient)
        require_count("blocks", blocks, least=1)
        require_count("draws", draws, least=1)
        if not 0 <= outliers < 1:
            raise BadInputError(f"outliers = {outliers!r}", expected="a share, at least 0 and less than 1")
        super().__init__(dim, num_heads, **options)
        self.blocks, self.outliers, self.gradient, self.draws = blocks, outliers, gradient, draws
        self.stochastic = gradient == "released" and self.mixing == "own"

    def attend(self, q: Heads, k: Heads, v: Heads) -> Heads:  # type: ignore[override] # of tokens that all see all
        """Mix the values of one block, or the mean over draws."""
        if self.mixing == "identity":
            return self.mixed(self.attn_drop(self.weights(q, k)), v)
        scores = self.scores(q, k)
        if self.gradient == "released":
            return self._mixed(scores, v, _drawn(len(k), self.blocks, k.shape[-2], None).to(k.device))
        fixed = torch.Generator().manual_seed(0)
        draws = [_drawn(1, self.blocks, k.shape[-2], fixed).to(k.device) for _ in range(self.draws)]
        return torch.stack([self._mixed(scores, v, ranks) for ranks in draws]).mean(0)

    def _mixed(self, scores: Weights, v: Heads, ranks: Tensor) -> Heads:
        """Attend to the keys of the chosen block; `ranks` are random orders of the tokens, one a block."""
        block: Blocks = ranks < max(1, int(ranks.shape[-1] * (1 - self.outliers)))
        chosen = _median_block(scores.detach(), block)
        return self.mixed(self.attn_drop(scores.masked_fill(~chosen, -torch.inf).softmax(-1)), v)


def _drawn(images: int, blocks: int, tokens: int, generator: torch.Generator | None) -> Tensor:
    """Draw orders on the CPU, so that they are the same on every device."""
    return torch.rand(images, blocks, tokens, generator=generator).argsort(-1)


def _median_block(scores: Weights, block: Blocks) -> Bool[Tensor, "batch 1 1 tokens"]:
    """Return the keys of every image's block of median score, the lower one of two."""
    of_keys = scores.sum((1, 2)).unsqueeze(1)
    chosen = (of_keys * block).sum(-1).median(-1).indices
    return block.expand(len(scores), -1, -1)[torch.arange(len(scores), device=scores.device), chosen][:, None, None]


ATTENTION = MedianOfMeansAttention
