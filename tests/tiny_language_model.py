"""Small language models for tests of attacks on words; logits depend on words and on distributions over words alike."""

import torch
from torch import nn

from robustbench_kpca.types import END_OF_LINE, IGNORE


def rand(seed, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class TinyLanguageModel(nn.Module):
    """The next word from this one and the two before it: logits = sum_d tanh(E_d x_{t-d}) U. Computed row by row.

    With `linear`, without tanh: logits are linear in the distributions.
    """

    def __init__(self, vocab_size, width=6, reach=3, seed=0, dtype=torch.float32, *, linear=False, scale=1.5):
        super().__init__()
        self.vocab_size, self.window, self.linear = vocab_size, 10**6, linear
        self.embed = nn.Parameter(scale * rand(seed, reach, vocab_size, width, dtype=dtype))
        self.out = nn.Parameter(scale * rand(seed + 1, width, vocab_size, dtype=dtype))

    def forward(self, x, *, last=False):
        wide = x if x.shape[1] > 1 else torch.zeros(
            len(x), self.vocab_size, *x.shape[2:], dtype=x.dtype, device=x.device
        ).scatter(1, x.long(), 1.0)  # fmt: skip
        rows = []
        for row in wide[:, :, 0]:
            hidden = sum(
                nn.functional.pad(table.T @ row, (lag, 0))[:, : row.shape[1]] for lag, table in enumerate(self.embed)
            )
            rows.append(self.out.T @ (hidden if self.linear else hidden.tanh()))
        logits = torch.stack(rows)[:, :, None]
        return logits[..., -1:] if last else logits


def some_text(texts, length, vocabulary, dtype=torch.float32, seed=0):
    """Return words (texts, 1, 1, length), with ends of lines among them, and the next words; half of them scored."""
    draw = torch.randint(vocabulary, (texts, length + 1), generator=torch.Generator().manual_seed(seed))
    draw[:, 3] = END_OF_LINE
    labels = draw[:, None, 1:].clone()
    labels[..., : length // 2] = IGNORE
    return draw[:, None, None, :-1].to(dtype), labels
