"""Every picture is made once and shown to every model: clean, corrupted, shifted or of no known class."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from robustbench_kpca.attack_loop.query import check_clean
from robustbench_kpca.corruptions import Cell
from robustbench_kpca.data.cells import CellSamples
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.errors import BadInputError, BenchmarkError
from robustbench_kpca.evaluation.compatibility import cell_of, classes_of
from robustbench_kpca.inference.journal import Journal
from robustbench_kpca.inference.loader import batches
from robustbench_kpca.inference.runner import Runner
from robustbench_kpca.protocols.scenario import CLEAN_CELL, Corruption, Ood, Plain, Segmentation, Shift
from robustbench_kpca.records.outcomes import COLUMNS, Column, Outcomes
from robustbench_kpca.types import Images, Labels, Logits

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all)."""
IMAGENET_CLASSES = 1000
_FLOATS = {"confidence", "max_log_softmax", "max_logit", "log_sum_exp"}


class Lane:
    """One model's way through the pictures: what it answered so far, and its journal.

    `answers` holds one array per column, filled from the front; `done` counts rows; `seconds` is its own time and its
    share of the time that making the pictures took.
    """

    def __init__(self, name: str, runner: Runner, scenario: Plain, rows: int, journal: Journal | None) -> None:
        self.name, self.runner, self.scenario, self.journal = name, runner, scenario, journal
        own = [name for name in COLUMNS[scenario.kind] if name not in ("sample", "label", "corruption", "severity")]
        self.answers: dict[str, Column] = {
            name: np.zeros(rows, np.float32 if name in _FLOATS else np.int64) for name in own
        }
        self.done, self.seconds = 0, 0.0
        saved = journal.read() if journal else None
        if saved:
            runner.batch_size = min(runner.batch_size, int(saved["batch_size"]))
            self.done = int(saved["done"])
            for name, column in self.answers.items():
                column[: self.done] = saved["rows"][name].numpy()

    def show(self, first: int, images: Images, labels: Labels) -> None:
        """Answer rows `first`, `first` + 1, ..., unless they are answered already."""
        if self.done > first:
            return
        started = time.perf_counter()
        logits = self.runner.logits(images.to(self.runner.device)).cpu()
        rows = slice(first, first + len(images))
        for name, values in _answers(self.scenario, logits, labels).items():
            self.answers[name][rows] = values.numpy()
        self.done = rows.stop
        self.seconds += time.perf_counter() - started
        if self.journal and self.journal.due():
            self.save()

    def save(self) -> None:
        """Write down what was answered so far."""
        if self.journal and self.done:
            partial = {name: torch.from_numpy(column[: self.done]) for name, column in self.answers.items()}
            self.journal.write({"rows": partial, "done": self.done, "batch_size": self.runner.batch_size})


def measure_plain(
    lanes: Sequence[Lane],
    samples: Samples,
    scenario: Plain,
    *,
    batch_size: int,
    seed: int,
    workers: int,
    frost: str,
    progress: Progress | None,
) -> list[Outcomes]:
    """Classify every sample (in every cell of the grid) with every model; return the outcomes of each.

    `frost` is what `frost_of` returns.
    """
    places = cells_of(scenario)
    total = len(places) * len(samples)
    for number, place in enumerate(places):
        start = number * len(samples)
        done = min(max(min(lane.done for lane in lanes) - start, 0), len(samples))
        shown = time.perf_counter()
        source, cell, storage = _pictures(samples, scenario, place, seed, frost)
        for index, images, labels in batches(
            source, range(done, len(samples)), batch_size=batch_size, workers=workers, cell=cell, storage=storage
        ):
            share = (time.perf_counter() - shown) / len(lanes)
            for lane in lanes:
                lane.seconds += share
                with told(lane, lanes):
                    lane.show(start + index[0], images, labels)
            shown = time.perf_counter()
            if progress is not None:
                progress(start + index[-1] + 1, total)
    return [_outcomes(lane, samples, places) for lane in lanes]


@runtime_checkable
class Kept(Protocol):
    """One model's way through the pictures: it has a name, and can write down what was answered so far."""

    name: str

    def save(self) -> None:
        """Write it down."""
        ...


@contextmanager
def told(lane: Kept, lanes: Sequence[Kept]) -> Iterator[None]:
    """Say which of several models failed, and keep what all of them answered before."""
    try:
        yield
    except BenchmarkError as error:
        for other in lanes:
            other.save()
        if len(lanes) == 1:
            raise
        raise type(error)(f"model '{lane.name}': {error}", fix="leave it out, or evaluate it alone") from error


def cells_of(scenario: Plain) -> list[tuple[str, int]]:
    """Return every (corruption, severity) that is shown; other scenarios show the images as they are."""
    return scenario.cells if isinstance(scenario, Corruption) else [(CLEAN_CELL, 0)]


def frost_of(scenario: Plain | Segmentation, folder: Path | str | None) -> str:
    """Return where frost pictures come from: "generated", or the folder of the original ones.

    Raises:
        BadInputError: the protocol asks for the original ones, and nobody said where they are; or they were given to
            one that does not use them.

    """
    if not isinstance(scenario, Corruption | Segmentation) or scenario.frost != "original":
        if folder is not None:
            raise BadInputError(
                f"a folder of frost pictures ({folder}) for the protocol '{scenario.title}'",
                fix="set frost = 'original', or leave the folder out",
            )
        return "generated"
    if folder is None and "frost" in scenario.corruptions:
        raise BadInputError("frost = 'original' without a folder of the pictures", fix="give --frost FOLDER")
    return str(folder)


def _pictures(
    samples: Samples, scenario: Plain, place: tuple[str, int], seed: int, frost: str
) -> tuple[Samples, Cell | None, str]:
    """Return what to read, and what to do to it."""
    if isinstance(samples, CellSamples):
        return samples.cell(*place), None, "none"
    if not isinstance(scenario, Corruption):
        return samples, None, "none"
    return samples, cell_of(scenario, place, seed, frost), scenario.storage


def _answers(scenario: Plain, logits: Logits, labels: Labels) -> dict[str, Tensor]:
    """Return the columns of a scenario's outcomes for these logits."""
    check_clean(logits, labels)
    classes = classes_of(scenario) if isinstance(scenario, Shift | Ood) else None
    if classes is not None and logits.shape[1] != IMAGENET_CLASSES:
        raise BadInputError(
            f"a model of {logits.shape[1]} classes for 200 classes of ImageNet",
            expected="the 1000 classes of ImageNet-1K, in their order",
        )
    if isinstance(scenario, Ood):
        return _certainty(logits if classes is None else logits[:, classes])
    masked = logits if classes is None else _mask(logits, classes)
    found = _ranked(masked, labels) | {"unmasked_prediction": logits.argmax(1)}
    return {name: found[name] for name in COLUMNS[scenario.kind] if name in found}


def _mask(logits: Logits, classes: list[int]) -> Logits:
    masked = torch.full_like(logits, -torch.inf)
    masked[:, classes] = logits[:, classes]
    return masked


def _certainty(logits: Logits) -> dict[str, Tensor]:
    """How sure of a class, in fp32: max softmax (Hendrycks & Gimpel 2017), max logit, energy (Liu et al. 2020)."""
    largest, total = logits.amax(1), logits.logsumexp(1)
    return {"max_log_softmax": largest - total, "max_logit": largest, "log_sum_exp": total}


def _ranked(logits: Logits, labels: Labels) -> dict[str, Tensor]:
    own = logits.gather(1, labels[:, None])
    tied_before = (logits == own) & (torch.arange(logits.shape[1]) < labels[:, None])
    rank = ((logits > own) | tied_before).sum(1)
    return {"prediction": logits.argmax(1), "rank": rank, "confidence": logits.softmax(1).amax(1)}


def _outcomes(lane: Lane, samples: Samples, places: Sequence[tuple[str, int]]) -> Outcomes:
    columns: dict[str, Any] = {
        "sample": np.tile(np.array(samples.ids, dtype=object), len(places)),
        "label": np.tile(np.array(samples.labels), len(places)),
        "corruption": np.repeat(np.array([name for name, _ in places], dtype=object), len(samples)),
        "severity": np.repeat([severity for _, severity in places], len(samples)),
    }
    return Outcomes.from_columns(lane.scenario.kind, columns | lane.answers)
