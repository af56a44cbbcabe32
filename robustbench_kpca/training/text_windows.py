"""Training windows of a text: contiguous words, each labelled with the next one."""

from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor

from robustbench_kpca._core.errors import AbsentPartError, BadInputError
from robustbench_kpca.data.text import Text
from robustbench_kpca.training.recipe import Recipe
from robustbench_kpca.training.source import Batch, Source
from robustbench_kpca.types import IGNORE, Images, Labels


class TextSource(Source):
    """Windows of the training text as the recipe's `[text]` says; a last smaller batch is dropped."""

    reads = Text

    def __init__(self, recipe: Recipe, folder: Path | None, accelerator: Accelerator) -> None:
        super().__init__(recipe, folder, accelerator)
        assert recipe.text is not None
        self.window = recipe.text.window
        self.scored = recipe.text.scored_words + 1 if recipe.text.scored_words else None  # and the one before them
        text = Text.require(self.part("train"))
        self.stream, self.vocabulary = torch.from_numpy(text.stream), len(text.vocabulary)
        self.vocabulary_sha256, self.data_sha256 = text.vocabulary_sha256, text.digest()
        whole = (len(self.stream) - self.window) // self.window  # windows side by side, wherever the first begins
        self.count = recipe.text.per_epoch or whole
        self.length = self.count // recipe.batch_size * recipe.batch_size
        if whole < 1 or not self.length:
            raise BadInputError(
                f"{len(self.stream)} training words in windows of {self.window}, {self.count} an epoch",
                expected=f"at least {recipe.batch_size} windows, a batch",
                fix="lower batch_size, or give more text",
            )
        self._held_out: dict[str, Tensor] = {}  # read once, used after every epoch

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield this process's share of the windows of one epoch.

        With `per_epoch` they begin at random places. Without, they cover the text once, side by side, in random order;
        the first begins at one of the first words, so that places in a window change from epoch to epoch.
        """
        recipe = self.recipe
        rng = torch.Generator().manual_seed(recipe.seed * 100_003 + number)
        if recipe.text is not None and recipe.text.per_epoch:
            starts = torch.randint(len(self.stream) - self.window, (self.count,), generator=rng)
        else:
            first = torch.randint(self.window, (1,), generator=rng)
            starts = first + self.window * torch.randperm(self.count, generator=rng)
        for batch in starts[: self.length].split(recipe.batch_size):
            own = batch[self.share]
            x, y = self._windows(self.stream, own)
            yield Batch(x, y, [str(start) for start in own.tolist()], len(batch), 1 / self.window)

    def held_out(self, part: str) -> Iterator[tuple[Images, Labels]]:
        """Yield this process's share of `val` or `test`, or of its `scored_words`; nothing if there is no such part.

        Windows overlap by a half. Every word of the text but the first counts once, in the first window that has it: so
        it is predicted from at least half a window of words, or from all there are. Evaluations use more.
        """
        if part not in self._held_out:
            self._held_out[part] = self._stream_of(part)[: self.scored]
        stream = self._held_out[part]
        if len(stream) < 2:
            return
        width = min(self.window, len(stream) - 1)
        ends = [*range(width, len(stream) - 1, max(width // 2, 1)), len(stream) - 1]
        starts = torch.tensor(ends) - width
        counted = torch.tensor([0, *ends[:-1]]) - starts  # labels that an earlier window has
        batches = (places[self.share].split(self.recipe.batch_size) for places in (starts, counted))
        for begin, offset in zip(*batches, strict=True):
            x, y = self._windows(stream, begin, width)
            fresh = torch.arange(width) >= offset.unsqueeze(-1)
            yield x, torch.where(fresh[:, None].to(y.device), y, IGNORE)

    def sample(self) -> tuple[Images, int]:
        """Return a window and the largest number of a word."""
        return self._windows(self.stream, torch.zeros(1, dtype=torch.int64))[0], self.vocabulary - 1

    def _windows(self, stream: Tensor, starts: Tensor, width: int | None = None) -> tuple[Images, Labels]:
        """Return words, (batch, 1, 1, window), and the words after them, (batch, 1, window)."""
        words = stream[starts.unsqueeze(-1) + torch.arange((width or self.window) + 1)].to(self.accelerator.device)
        return words[:, None, None, :-1].float(), words[:, None, 1:].long()

    def _stream_of(self, part: str) -> Tensor:
        try:
            return torch.from_numpy(Text.require(self.part(part)).stream)
        except AbsentPartError:
            if part == "test":  # published, but not everyone has it
                return torch.empty(0, dtype=torch.int32)
            raise
