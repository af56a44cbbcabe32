"""Which words every position of a text is predicted from: windows of one length slide over the text.

With n words, windows of w words and stride s, windows begin at 0, s, 2 s, ... and, the last one, at n - 1 - w. The
place at i of a window predicts the word after it. The first window counts all its w places, a later one those that no
earlier window counts. With stride 1 that is the last place only: every position but the first w is predicted from
exactly the w words before it. So it is evaluated in the code of Teo & Nguyen (2024, arXiv:2406.13762), after Dai et al.
(2019), "Transformer-XL", arXiv:1901.02860. A larger stride is an approximation: it is about s times as fast, and some
positions are predicted from as few as w - s + 1 words.

Nothing is kept from one window to the next. With more than one layer of attention, the state of a word depends on the
words before it in its window; the next window lacks the first of them, so all states differ, and keys and values of an
earlier window would be wrong. Only in a single layer whose positions are relative would they be the same. So windows
are shown many at a time instead.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.text import Text
from robustbench_kpca.protocols.scenario import Clean, Corruption, Scenario
from robustbench_kpca.types import LanguageModel

Positions = NDArray[np.int64]
EXAMPLE = "rpc_lm_tiny"


@dataclass(frozen=True)
class Windows:
    """The windows over a text.

    Attributes:
        words: number of words of the text.
        window: number of words that a window holds.
        stride: distance from one window to the next, in words.

    Raises:
        BadInputError: the window is longer than the text, or the stride is longer than the window.
    """

    words: int
    window: int
    stride: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.stride <= self.window:
            raise BadInputError(
                f"window = {self.window}, stride = {self.stride}", expected="0 < stride <= window: every word counts"
            )
        if self.window >= self.words:
            raise BadInputError(
                f"a window of {self.window} words over a text of {self.words}",
                expected=f"a text of at least {self.window + 1} words, the last of them to be predicted",
                fix="give a longer text, or set a shorter window in [inference]",
            )

    def start(self, positions: Positions) -> Positions:
        """Return where the window begins that counts each position, from 1 to `words` - 1."""
        later = -(-(positions - self.window) // self.stride) * self.stride
        starts: Positions = np.clip(later, 0, self.words - 1 - self.window)
        return starts

    def counted(self, start: int) -> tuple[int, int]:
        """Return the first position that the window at `start` counts, and the one after its last."""
        before = (start - 1) // self.stride * self.stride  # where the window before it begins
        return (1 if start == 0 else before + self.window + 1), start + self.window + 1


def windows_of(model: nn.Module, data: Text, protocol: Scenario | None) -> Windows:
    """Return the windows over a text: those of `[inference]`, else of the model's own length, with stride 1.

    In `[inference]`, window 0 is that of the model, and stride 0 the length of the window.

    Raises:
        BadInputError: the window is longer than the text, or than the model can read; or `[inference]` asks for what is
            done to pictures.
    """
    longest = reader(model, data).window
    requested = protocol.inference if isinstance(protocol, Clean | Corruption) else None
    if requested is None:
        return Windows(len(data.stream), longest)
    if requested.resize != "none":
        raise BadInputError(f"resize = '{requested.resize}' for text", expected="resize = 'none'")
    if requested.window > longest:
        raise BadInputError(
            f"window = {requested.window} for a model that reads {longest} words at once", expected=f"at most {longest}"
        )
    window = requested.window or longest
    return Windows(len(data.stream), window, requested.stride or window)


def reader(model: nn.Module, data: Text) -> LanguageModel:
    """Return the model as a language model of the words of these data.

    Raises:
        BadInputError: it is none, or it knows another number of words.
    """
    if not isinstance(model, LanguageModel):
        raise BadInputError(
            f"{type(model).__name__} is no language model, and data '{data.name}' are text",
            expected="a model with `vocab_size` and `window`",
            fix=f"choose one such as {EXAMPLE}",
        )
    require_words(data, model.vocab_size)
    return model


def require_words(data: Text, words: int) -> None:
    """Refuse a model that knows another number of words than the vocabulary of the data has."""
    if words != data.classes:
        raise BadInputError(
            f"the model knows {words} words, but data '{data.name}' has a vocabulary of {data.classes}",
            fix="choose a language model that was trained with this vocabulary",
        )
