"""Table rows of a diagnosis, made from the diagnosis alone, without torch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from robustbench_kpca._core.files import as_csv
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.study.diagnostics.diagnosis import Diagnosis, Judged, Measured
from robustbench_kpca.study.diagnostics.figures import controls

VERDICTS = ("Claim", "Verdict", "Why")
STATISTICS = ("Claim", "Statistic", "Mean", "95 % interval", "Chance", "z", "p", "Heads beyond chance")
CHANCE = ("Unrelated matrices", "Statistic", "Mean", "Deviation")

Row = tuple[str, ...]
LAYERS = ("claim", "statistic", "layer", "heads", "mean", "chance", "least_p_holm")
PROFILES = ("claim", "profile", "layer", "number", "mean", "deviation")

Cell = str | int | float | None


def statistic_rows(diagnosis: Diagnosis) -> list[Row]:
    """Return one row per statistic, over the whole model, with its null model."""
    return [
        (claim, name, number(measured.estimate.value), interval(measured.estimate), *_null_cells(measured, diagnosis))
        for claim, judged in diagnosis.claims.items()
        for name, measured in judged.statistics.items()
    ]


def layer_matrix(judged: Judged) -> tuple[Row, list[Row]]:
    """Return the head and one row per layer: the mean of every statistic over heads, with chance in brackets."""
    names = list(judged.statistics)
    cells: dict[int, dict[str, str]] = {}
    for name, measured in judged.statistics.items():
        for layer, _, mean, chance, _ in by_layer(measured):
            cells.setdefault(layer, {})[name] = number(mean) if chance is None else f"{number(mean)} ({number(chance)})"
    rows = [(str(layer), *(cells[layer].get(name, "") for name in names)) for layer in sorted(cells)]
    return ("Layer", *(name.replace("_", " ") for name in names)), rows


def model_matrix(named: Mapping[str, Diagnosis]) -> tuple[Row, list[Row]]:
    """Return the head and one row per model: the main statistic of every claim, and all that have a null model.

    In brackets stands the chance level, or the first control of a statistic without a null model.
    """
    columns: dict[tuple[str, str], None] = {}
    for diagnosis in named.values():
        for claim, judged in diagnosis.claims.items():
            nulled = [name for name, measured in judged.statistics.items() if measured.null is not None]
            directed = [name for name, measured in judged.statistics.items() if measured.better != "neither"]
            for name in [*(directed or list(judged.statistics))[:1], *nulled]:
                columns[claim, name] = None
    rows = [(model, *(_against(diagnosis, *column) for column in columns)) for model, diagnosis in named.items()]
    return ("Model", *(f"{claim}: {name}".replace("_", " ") for claim, name in columns)), rows


def _against(diagnosis: Diagnosis, claim: str, name: str) -> str:
    if claim not in diagnosis.claims or name not in diagnosis.claims[claim].statistics:
        return ""
    statistics = diagnosis.claims[claim].statistics
    measured, value = statistics[name], number(statistics[name].estimate.value)
    if measured.null is not None:
        return f"{value} ({number(measured.null.chance)})"
    control = next(iter(controls(diagnosis.claims[claim], name)), None)
    return (
        value
        if control is None
        else f"{value} ({control.removeprefix(f'{name}_')} {number(statistics[control].estimate.value)})"
    )


def number(value: float) -> str:
    """Format with three significant digits."""
    return f"{value:.3g}"


def interval(estimate: Estimate) -> str:
    """Format a confidence interval; empty for a single image, which has none."""
    return "" if estimate.n < 2 else f"[{number(estimate.low)}, {number(estimate.high)}]"


def _null_cells(measured: Measured, diagnosis: Diagnosis) -> Row:
    null = measured.null
    if null is None:
        return ("", "", "", "")
    level = diagnosis.protocol.thresholds["SIGNIFICANCE"]
    significant = sum(unit.p_holm is not None and unit.p_holm <= level for unit in measured.units)
    beyond = f"{significant} of {len(measured.units)}"
    return (number(null.chance), "" if null.z is None else f"{null.z:.1f}", number(null.p), beyond)


def layers_csv(diagnosis: Diagnosis) -> str:
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


def profiles_csv(diagnosis: Diagnosis) -> str:
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


def by_layer(measured: Measured) -> Iterator[tuple[int, int, float, float | None, float | None]]:
    """Yield per layer its number, how many heads, the mean over them and images, chance, and the least p."""
    for layer in sorted({unit.layer for unit in measured.units}):
        units = [unit for unit in measured.units if unit.layer == layer]
        chances = [unit.chance for unit in units if unit.chance is not None]
        chance = sum(chances) / len(chances) if chances else None
        p_values = [unit.p_holm for unit in units if unit.p_holm is not None]
        mean = sum(unit.mean for unit in units) / len(units)
        yield layer, len(units), mean, chance, min(p_values, default=None)


def _text(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    lines = ([f"{cell:.8g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    return as_csv([head, *lines])
