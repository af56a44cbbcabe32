"""Texts as attacks see them: words by number, (batch, 1, 1, length), and distributions over words.

Guo, Sablayrolles, Jegou & Kiela (2021), "Gradient-based Adversarial Attacks against Text Transformers",
arXiv:2104.13733, section 3, search in distributions; Ebrahimi, Rao, Lowd & Dou (2018), "HotFlip: White-Box Adversarial
Examples for Text Classification", arXiv:1712.06751, take gradients at words written as such.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.types import END_OF_LINE, Images

Distributions = Float[Tensor, "batch word 1 place"]
MOST = 2**31
"""Bytes that the distributions of a batch may take. Their gradient takes as many again."""


def is_words(x: Tensor) -> bool:
    """Tell words by number from distributions over words."""
    return x.shape[1] == 1


def fixed(words: Images) -> Bool[Tensor, "batch 1 1 place"]:
    """Tell at which places a line ends: no attack replaces or writes that."""
    return words == END_OF_LINE


def changed(
    words: Float[Tensor, "*batch 1 1 place"], clean: Float[Tensor, "*batch 1 1 place"]
) -> Bool[Tensor, "*batch 1 1 place"]:
    """Tell which words were replaced, in a batch or in one text."""
    return words != clean


def require_vocabulary(vocabulary: int) -> None:
    """Refuse a model of so few words that none can take the place of another.

    Raises:
        BadInputError: fewer than three words.
    """
    if vocabulary < 3:
        raise BadInputError(
            f"a model of {vocabulary} words", expected="three or more: the end of a line, a word, and one in its place"
        )


def distributions(words: Images, vocabulary: int) -> Distributions:
    """Return words as distributions: 1 at the word, else 0.

    Raises:
        BadInputError: they would take more than `MOST` bytes, or the vocabulary is too small.
    """
    require_vocabulary(vocabulary)
    size = 4 * vocabulary * words.numel()
    if size > MOST:
        raise BadInputError(
            f"distributions of {len(words)} texts of {words.shape[3]} words over {vocabulary} ({size / 2**30:.1f} GiB)",
            expected=f"at most {MOST // 2**30} GiB",
            fix=f"set --batch-size {max(1, len(words) * MOST // size)}, or attack shorter texts",
        )
    zeros = words.new_zeros(len(words), vocabulary, *words.shape[2:])
    return zeros.scatter_(1, words.long(), 1.0)


def gains(gradient: Distributions, words: Images) -> Distributions:
    """Return by how much the loss would grow, to first order, with another word at one place.

    The loss grows by g[v, t] - g[w, t] where word w at place t is replaced by v, and g is the gradient with respect to
    the distributions (Ebrahimi et al. 2018, equation 10).
    """
    return gradient - gradient.gather(1, words.long())
