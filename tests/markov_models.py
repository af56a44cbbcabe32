"""Language models whose answers are known in closed form: they look a word up in a table, given the words before it."""

import numpy as np
import torch
from torch import nn

from robustbench_kpca.data.sets import grammar
from robustbench_kpca.data.text import Text
from robustbench_kpca.data.vocabulary import Vocabulary

WINDOW = 6


class Table(nn.Module):
    """Logits are log p(next | the last two words), `scale` times; at the first place p(next | the word) alone.

    With `peek` a place also sees the word after it, which no language model may.
    """

    def __init__(self, pairs, window=WINDOW, scale=1.0, peek=0.0):
        super().__init__()
        self.pairs = nn.Parameter(torch.as_tensor(pairs, dtype=torch.float32))  # [a, b, w]
        self.vocab_size, self.window, self.scale, self.peek = len(pairs), window, scale, peek

    def forward(self, x, *, last=False):
        if x.shape[1] > 1:
            raise RuntimeError("no distributions")
        words = x[:, 0, 0].long()
        before = torch.cat([torch.zeros_like(words[:, :1]), words[:, :-1]], 1)
        logits = self.scale * self.pairs[before, words]
        if self.peek:
            logits = logits + self.peek * torch.cat([words[:, 1:], words[:, -1:]], 1)[..., None] * logits
        logits = logits.transpose(1, 2)[:, :, None]
        return logits[..., -1:] if last else logits


def table(words=5, seed=0):
    """Log probabilities of a random source of few words, [a, b, w]."""
    p = np.random.default_rng(seed).dirichlet(np.ones(words), (words, words))
    return np.log(p)


def text(length=61, words=5, seed=1, block=8, article=20, **how):
    """A stream of random words; word 0 ends a line."""
    stream = np.random.default_rng(seed).integers(0, words, length)
    articles = np.arange(length) // article
    vocabulary = Vocabulary(["<eos>", "AAA", *(f"w{number}" for number in range(words - 2))])
    return Text("toy-text", "test", stream, vocabulary, articles=articles, block=block, **how)


def true_log_probabilities():
    """log p(w | a, b) of `grammar` at [a, b, w], where a is before b."""
    return np.log(grammar.source().probabilities)


def of_grammar(scale=1.0):
    return Table(true_log_probabilities(), window=8, scale=scale).eval()


def truth():
    return of_grammar()


def hesitant():
    """The same, less sure."""
    return of_grammar(0.5)


def small():
    return Table(table()).eval()
