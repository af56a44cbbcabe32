"""Evaluate language models by a sliding window, attack them by changing words that they read, and train them."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.engine import CleanBatch
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.loader import in_batches
from robustbench_kpca._engine.inference.runner import Presentation
from robustbench_kpca._engine.inference.sliding_window import BATCH_VALUES
from robustbench_kpca.attacks.shared.words import changed
from robustbench_kpca.corruptions import require_profile
from robustbench_kpca.corruptions.words import PROFILE, WORD_CORRUPTIONS, swapped_words
from robustbench_kpca.data.text import Stream, Text
from robustbench_kpca.protocols.grid import check_severity
from robustbench_kpca.protocols.scenario import Attack, Corruption, Scenario, cells_of
from robustbench_kpca.records.table import COUNTS
from robustbench_kpca.tasks.audit_plan import AuditPlan
from robustbench_kpca.tasks.compute import BATCH_SIZE, Compute, Row
from robustbench_kpca.tasks.language.positions import EVERY_PLACE, LAST_PLACE, PositionResults, Shown
from robustbench_kpca.tasks.language.success import HigherLoss
from robustbench_kpca.tasks.language.windows import require_words, windows_of
from robustbench_kpca.tasks.prepare import require_form
from robustbench_kpca.tasks.training import Counts, Training, accuracy
from robustbench_kpca.types import IGNORE, Images, Logits, PerSample

Item = tuple[int, Tensor, Tensor]


class LanguageTraining(Training):
    """One label per place: the next word."""

    def losses(self, logits: Logits, targets: Tensor, smoothing: float) -> PerSample:
        """Return the sum of the cross-entropy over the places of each window that are not IGNORE.

        Args:
            logits: shape (batch, vocabulary, 1, length).
            targets: shape (batch, 1, length): the next words, or IGNORE.
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


class Language(Compute[Text]):
    """Language modelling: every word of a text is predicted from the words before it."""

    success = HigherLoss()
    container = PositionResults
    training = LanguageTraining()
    causal = True
    audit = AuditPlan(
        samples=16,
        attacks={},
        strongest=(),
        white_box=(),
        black_box=(),
        left_out="attacks of an audit change pixels, and words are not changed by a little",
        limits={},
    )

    def require_data(self, data: Text, protocol: Scenario) -> None:
        """Refuse corruptions of pictures and signals, and attacks in their spaces."""
        require_form(data, protocol)

    def match_classes(self, data: Text, classes: int, names: Sequence[str] | None) -> tuple[Text, str]:  # noqa: ARG002
        """Refuse a model that knows another number of words."""
        require_words(data, classes)
        return data, f"{classes} words, by number"

    def presentation(self, model: nn.Module, kind: str) -> Presentation:  # noqa: ARG002
        """Under attack, ask for the next word at every place; otherwise at the last place of a window."""
        return EVERY_PLACE if kind == "attack" else LAST_PLACE

    def batch_size(self, model: nn.Module, data: Text, protocol: Scenario | None) -> int:
        """Return 64, or fewer if the logits of a batch exceed 256 MiB."""
        attacked = protocol is None or isinstance(protocol, Attack)
        windows = windows_of(model, data, protocol)
        places = windows.window if attacked or windows.stride > 1 else 1
        return max(1, min(BATCH_SIZE, BATCH_VALUES // (data.classes * places)))

    def first_inputs(self, model: nn.Module, data: Text, protocol: Scenario | None, count: int) -> Images:
        """Return the first windows of the text as it is; in attacks and audits the first blocks with their context."""
        windows = windows_of(model, data, protocol)
        if protocol is None or isinstance(protocol, Attack):
            group = self.groups(data, range(min(count, len(data))))[0]
            words = next(self.batches(data, group, count))[1]
            _require_room(2 * data.block, windows.window, data)
            return words
        starts: list[int] = []
        for index in range(min(count, len(data))):
            wanted = windows.start(np.arange(*data.span(index))).tolist()
            starts += [start for start in wanted if start not in starts[-1:]]
            if len(starts) >= count:
                break
        cut = [data.stream[start : start + windows.window].astype(np.float32) for start in starts[:count]]
        return torch.from_numpy(np.stack(cut))[:, None, None]

    # --- forward passes only ---

    def try_corruption(self, data: Text, protocol: Corruption, place: tuple[str, int], seed: int, frost: str) -> None:  # noqa: ARG002
        """Swap words of the first blocks."""
        start = Text(data.name, data.split, data.stream[: 2 * data.block + 1], data.vocabulary)
        swapped_stream(start, *place, seed)

    def shown(
        self, data: Text, protocol: Scenario, rows: Sequence[int], *,
        batch_size: int, workers: int | None, seed: int, frost: str,  # noqa: ARG002 (windows of all blocks share batches)
    ) -> Iterator[tuple[list[int], Shown]]:  # fmt: skip
        """Yield blocks one by one, with the text of their cell: the words that are read and predicted."""
        places = cells_of(protocol)
        for cell, of_cell in groupby(rows, lambda row: row // len(data)):
            text = swapped_stream(data, *places[cell], seed)
            for row in of_cell:
                yield [row], text

    # --- attacks ---

    def batches(
        self, data: Text, indices: Sequence[int], batch_size: int, workers: int | None = 0
    ) -> Iterator[CleanBatch]:
        """Yield blocks with the words before them; labels are the next words, IGNORE outside the block."""
        if indices:
            fetch = partial(_before, data)
            yield from in_batches(fetch, _stack, indices, batch_size=batch_size, workers=workers)

    def groups(self, data: Text, indices: Sequence[int]) -> list[list[int]]:
        """Group blocks that have equally many words before and in them: all but the first and the last are alike."""
        groups: dict[tuple[int, int], list[int]] = {}
        for index in indices:
            first, start, stop = _around(data, index)
            groups.setdefault((start - first, stop - start), []).append(index)
        return list(groups.values())

    def rows(self, sample: Sample, data: Text, space: InputSpace) -> list[Row]:  # noqa: ARG002 (words have one space)
        """Return the one row of a block; where nothing worse was found it is as clean, without swaps."""
        assert isinstance(sample.label, Tensor)
        assert sample.given is not None
        row = {
            "sample": sample.id,
            "article": int(data.articles[data.span(sample.index)[0]]),
            "words": int((sample.label != IGNORE).sum()),
            "read": sample.clean.numel(),
            "clean_nll": -sample.given[1],
            "nll": -sample.worst_margin,
            "swaps": int(changed(sample.worst, sample.clean).sum()),
            "attack": sample.worst_by,
        }
        return [row | {name: getattr(sample, name) for name in COUNTS}]

    def combined(self, rows: list[Row], smaller: list[Row]) -> list[Row]:
        """Return the row of higher loss, at this rate or at a smaller one, with the passes of both."""
        (row,), (smaller_row,) = rows, smaller
        worse = row if row["nll"] > smaller_row["nll"] else smaller_row
        return [worse | {name: row[name] + smaller_row[name] for name in COUNTS}]


COMPUTE = Language()


def _require_room(words: int, window: int, data: Text) -> None:
    if words > window:
        raise BadInputError(
            f"blocks of {data.block} words, each read with the one before it, for a model that reads {window} at once",
            expected=f"a model that reads at least {words} words, or a text in blocks of at most {window // 2}",
        )


def _around(data: Text, index: int) -> tuple[int, int, int]:
    """Return the first word that is shown under attack, the first position of a block, and the one after its last.

    Shown are the block before and the block itself; so a block does not depend on the window of a model.
    """
    start, stop = data.span(index)
    return max(start - 1 - data.block, 0), start, stop


def _before(data: Text, index: int) -> Item:
    """Return a block's number, the words that are read, (1, 1, length), and those to be predicted, (1, length)."""
    first, start, stop = _around(data, index)
    words = torch.from_numpy(data.stream[first:stop].astype(np.int64))
    labels = words[1:].clone()
    labels[: start - 1 - first] = IGNORE
    return index, words[:-1].float()[None, None], labels[None]


def _stack(items: list[Item]) -> CleanBatch:
    index, words, labels = zip(*items, strict=True)
    return list(index), torch.stack(words), torch.stack(labels)


def swapped_stream(text: Text, corruption: str, severity: int, seed: int) -> tuple[Stream, NDArray[np.bool_]]:
    """Return the corrupted stream of a text, as long as the clean one, and where it differs; severity 0: the clean one.

    It is a function of the whole stream and the other arguments, so it is the same for every part of the text.

    Raises:
        BadInputError: an unknown corruption or one of other data, a severity outside 1 to 5, or a vocabulary that has
            neither the new words nor `<unk>`.
    """
    if severity == 0:
        return text.stream, np.zeros(len(text.stream), np.bool_)
    check_severity(severity)
    require_profile(corruption, PROFILE)
    parameter = WORD_CORRUPTIONS.get(corruption).parameters[PROFILE][severity - 1]
    vocabulary = text.vocabulary
    swapped = swapped_words(text.stream, vocabulary.words, vocabulary.end, corruption, parameter=parameter, seed=seed)
    return swapped, swapped != text.stream
