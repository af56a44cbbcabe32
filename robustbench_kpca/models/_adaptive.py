"""The ends of a language model: words become vectors, and vectors become log-probabilities of the next word.

Both ends share one matrix (Press & Wolf 2017, arXiv:1608.05859).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.types import Images

Places = Float[Tensor, "batch length dim"]
Scores = Float[Tensor, "batch length vocabulary"]


def require_numbers(numbers: Tensor, vocabulary: int, option: str) -> None:
    """Refuse words by number that a model does not have; `option` of the model is the size of its vocabulary.

    Raises:
        BadInputError: a number that is no word.
    """
    least, most = (int(end) for end in numbers.aminmax())
    if least < 0 or most >= vocabulary:
        raise BadInputError(
            f"words numbered {least} to {most}",
            expected=f"0 to {vocabulary - 1}, the vocabulary of the model",
            fix=f"give the model the vocabulary of the data ({option})",
        )


class TiedHead(nn.Module):
    """Words to vectors, a row of `weight` each; vectors h to logits, weight h."""

    def __init__(self, words: int, dim: int, std: float = 0.02) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(words, dim))
        nn.init.normal_(self.weight, std=std)

    def embed(self, x: Images) -> Places:
        """Return the vectors of words by number, (batch, 1, 1, length), or the means under distributions over them.

        Raises:
            BadInputError: another shape, or a number that is no word.
        """
        words = len(self.weight)
        if x.ndim != 4 or x.shape[1] not in (1, words) or x.shape[2] != 1:
            raise BadInputError(
                f"an input of shape {tuple(x.shape)}",
                expected=f"words (batch, 1, 1, length), or distributions over words (batch, {words}, 1, length)",
                fix="give the model the vocabulary of the data (vocab_size)",
            )
        if x.shape[1] == words:
            return torch.einsum("bvl,vd->bld", x[:, :, 0].to(self.weight.dtype), self.weight)
        numbers = x[:, 0, 0].long()
        require_numbers(numbers, words, "vocab_size")
        return F.embedding(numbers, self.weight)

    def forward(self, h: Places) -> Scores:
        """Return the logits of every word."""
        return F.linear(h, self.weight)


class AdaptiveHead(TiedHead):
    """Words by frequency in clusters; the log-probability of a word in a tail is that of its cluster plus its own.

    Grave et al. (2017), "Efficient softmax approximation for GPUs", arXiv:1609.04309, section 4, without projections
    (div_val 1) and with the tied matrix, as in Transformer-XL (Dai et al. 2019, arXiv:1901.02860). With c_1 < c_2 < ...
    the first words of the tails, W and b weights and biases of words, and C and d those of clusters,

        log p(w | h) = log softmax([W h + b for words below c_1; C h + d])_w                          w < c_1
        log p(w | h) = the same of cluster n + 1 - i + log softmax(W h + b for words from c_i to c_{i+1})_w
                                                                                        w in tail i of n, from 1

    The released code of Transformer-XL, on which the papers' language models build, counts clusters from the last.

    All log-probabilities are computed, so nothing is saved: the form is the published one, whose models it fits.

    Args:
        words: size of the vocabulary.
        dim: width.
        cutoffs: c_1, c_2, ...; those that are not below `words` are left out.
    """

    def __init__(self, words: int, dim: int, cutoffs: Sequence[int], std: float = 0.02) -> None:
        super().__init__(words, dim, std)
        self.cutoffs = [cutoff for cutoff in cutoffs if cutoff < words]
        self.bias = nn.Parameter(torch.zeros(words))
        self.cluster_weight = nn.Parameter(torch.empty(len(self.cutoffs), dim))
        self.cluster_bias = nn.Parameter(torch.zeros(len(self.cutoffs)))
        nn.init.normal_(self.cluster_weight, std=std)

    def forward(self, h: Places) -> Scores:
        """Return log-probabilities, which are logits, too."""
        scores = F.linear(h, self.weight, self.bias)
        if not self.cutoffs:
            return scores.log_softmax(-1)
        first = self.cutoffs[0]
        head = torch.cat([scores[..., :first], F.linear(h, self.cluster_weight, self.cluster_bias)], -1).log_softmax(-1)
        parts = [head[..., :first]]
        for number, (begin, end) in enumerate(zip(self.cutoffs, [*self.cutoffs[1:], len(self.weight)], strict=True)):
            parts.append(head[..., -1 - number, None] + scores[..., begin:end].log_softmax(-1))
        return torch.cat(parts, -1)
