"""Evaluate several models by forward passes only; each sample is loaded and corrupted once for all models."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from robustbench_kpca._core.errors import BenchmarkError
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.inference.loader import workers_for
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.protocols.scenario import Corruption, Scenario, cells_of
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.results import ModelResults


def show_all(
    results: Sequence[ModelResults],
    data: Dataset,
    protocol: Scenario,
    *,
    batch_size: int,
    seed: int,
    workers: int | None,
    frost: str,
    progress: Progress | None,
) -> None:
    """Run every model on every sample in every cell of the protocol's grid.

    Args:
        results: one per model, filled here; results resumed from a journal skip finished samples.
        data: the samples, sorted (`Dataset.in_order`).
        protocol: a protocol that is not an attack.
        batch_size: number of samples that are loaded together.
        seed: seed of the corruptions.
        workers: number of processes that load and corrupt samples; None: see `workers_for`.
        frost: result of `inference.corrupted.frost_of`.
        progress: called with the samples that are done in all cells, and their number.

    """
    compute = task_named(data.task).compute
    cells = cells_of(protocol)
    rows = range(min(one.begun for one in results), len(cells) * len(data))
    made = time.perf_counter()
    for numbers, batch in compute.shown(
        data,
        protocol,
        rows,
        batch_size=batch_size,
        seed=seed,
        frost=frost,
        workers=workers_for(len(rows), isinstance(protocol, Corruption)) if workers is None else workers,
    ):
        share = (time.perf_counter() - made) / len(results)
        for one in results:
            one.seconds += share
            with _named(one, results):
                one.show(numbers[0], batch)
        made = time.perf_counter()
        if progress is not None:
            last = numbers[-1]
            progress(last + 1, rows.stop, stage=_cell(cells[last // len(data)]))
    for one in results:
        with _named(one, results):
            one.finish()


def _cell(place: tuple[str, int]) -> str:
    """Name a cell of a grid; nothing for the samples as they are."""
    return f"{place[0]} {place[1]}" if place[1] else ""


@contextmanager
def _named(one: ModelResults, results: Sequence[ModelResults]) -> Iterator[None]:
    """If a model fails, save the results of all models so far and add the name of the model to the error."""
    try:
        yield
    except BenchmarkError as error:
        for other in results:
            other.save()
        if len(results) == 1:
            raise
        raise type(error)(f"model '{one.name}': {error}", fix="remove it, or evaluate it alone") from error
