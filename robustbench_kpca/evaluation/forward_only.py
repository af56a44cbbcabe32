"""Every sample is made once and shown to every model: clean, corrupted, shifted or of no known class."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from robustbench_kpca.data.base import Dataset
from robustbench_kpca.errors import BenchmarkError
from robustbench_kpca.evaluation.options import Progress
from robustbench_kpca.protocols.scenario import CLEAN_CELL, Corruption, Scenario
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.results import ModelResults


def show_all(
    results: Sequence[ModelResults],
    data: Dataset,
    protocol: Scenario,
    *,
    batch_size: int,
    seed: int,
    workers: int,
    frost: str,
    progress: Progress | None,
) -> None:
    """Show every sample, in every cell of the protocol's grid, to every model.

    Args:
        results: of one model each; those that went on from a journal skip what they know.
        data: in the order of outcomes.
        protocol: no attack.
        batch_size: samples that are loaded together.
        seed: of corruptions.
        workers: processes that load and corrupt samples.
        frost: what `inference.corrupted.frost_of` returns.
        progress: called with samples done and in all.

    """
    compute = task_named(data.task).compute
    places = protocol.cells if isinstance(protocol, Corruption) else [(CLEAN_CELL, 0)]
    begun, total = min(one.begun for one in results), len(places) * len(data)
    for number, place in enumerate(places):
        start = number * len(data)
        fresh = range(min(max(begun - start, 0), len(data)), len(data))
        made = time.perf_counter()
        for numbers, batch in compute.shown(
            data, protocol, place, fresh, batch_size=batch_size, workers=workers, seed=seed, frost=frost
        ):
            share = (time.perf_counter() - made) / len(results)
            for one in results:
                one.seconds += share
                with _named(one, results):
                    one.show(start + numbers[0], batch)
            made = time.perf_counter()
            if progress is not None:
                progress(start + numbers[-1] + 1, total)
    for one in results:
        with _named(one, results):
            one.finish()


@contextmanager
def _named(one: ModelResults, results: Sequence[ModelResults]) -> Iterator[None]:
    """Say which of several models failed, and save what all of them answered before."""
    try:
        yield
    except BenchmarkError as error:
        for other in results:
            other.save()
        if len(results) == 1:
            raise
        raise type(error)(f"model '{one.name}': {error}", fix="leave it out, or evaluate it alone") from error
