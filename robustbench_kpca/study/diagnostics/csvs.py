"""All numbers of a diagnosis by layer, as CSV files beside its pages; made from the diagnosis alone, without torch."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from robustbench_kpca.study.diagnostics.diagnosis import Diagnosis, Measured

LAYERS = ("claim", "statistic", "layer", "heads", "mean", "chance", "least_p_holm")
PROFILES = ("claim", "profile", "layer", "number", "mean", "deviation")

Cell = str | int | float | None


def layers(diagnosis: Diagnosis) -> str:
    """Return one line per claim, statistic and layer: the mean over heads and images, chance, and the least p."""
    return _text(
        LAYERS,
        (
            (claim, name, *row)
            for claim, judged in diagnosis.claims.items()
            for name, measured in judged.statistics.items()
            for row in by_layer(measured)
        ),
    )


def profiles(diagnosis: Diagnosis) -> str:
    """Return one line per claim, profile, layer and number, such as that of an axis; they count from 1.

    The layer `all` is the mean over layers, which has no deviation; that of a layer is over the heads of all images.
    """
    rows: list[tuple[Cell, ...]] = []
    for claim, judged in diagnosis.claims.items():
        for name, profile in judged.profiles.items():
            rows += [(claim, name, "all", number, mean, None) for number, mean in enumerate(profile.mean, 1)]
            for layer in profile.layers:
                pairs = zip(layer.mean, layer.deviation, strict=True)
                rows += [(claim, name, layer.layer, number, *pair) for number, pair in enumerate(pairs, 1)]
    return _text(PROFILES, rows)


def by_layer(measured: Measured) -> Iterator[tuple[int, int, float | None, float | None, float | None]]:
    """Yield per layer its number, how many heads, the mean over them and images, chance, and the least p."""
    for layer in sorted({unit.layer for unit in measured.units}):
        units = [unit for unit in measured.units if unit.layer == layer]
        chance = _mean([unit.chance for unit in units if unit.chance is not None])
        p_values = [unit.p_holm for unit in units if unit.p_holm is not None]
        yield layer, len(units), _mean([unit.mean for unit in units]), chance, min(p_values, default=None)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _text(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([f"{cell:.8g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    return buffer.getvalue()
