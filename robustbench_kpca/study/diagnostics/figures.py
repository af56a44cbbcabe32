"""Figures of a diagnosis as self-contained SVG text; made from the diagnosis alone, without torch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from robustbench_kpca._core.web.figures import INK, drawing, svg_of
from robustbench_kpca.study.diagnostics.diagnosis import Diagnosis, Judged, Profile
from robustbench_kpca.study.diagnostics.epochs import TERMS, Trajectory

STYLE: dict[str, Any] = {"font.size": 8, "axes.labelsize": 8, "axes.grid": True, "grid.color": INK, "grid.alpha": 0.12}
_WIDE = 30.0  # profiles with a larger ratio of maximum to median get a logarithmic axis
_FEW = 30  # profiles with more values are drawn without marks
_COLUMNS = 3
_CONTROLS = ("random", "shuffled", "unpursued", "untrained", "true", "paper", "signs", "textbook")


def criterion(judged: Judged) -> str | None:
    """Return a claim's main statistic: the first one with a direction; None if nothing was measured."""
    directed = [name for name, measured in judged.statistics.items() if measured.better != "neither"]
    return next(iter(directed or judged.statistics), None)


def controls(judged: Judged, name: str) -> list[str]:
    """Return the control statistics of `name`, such as `name_random`."""
    return [f"{name}_{kind}" for kind in _CONTROLS if f"{name}_{kind}" in judged.statistics]


def by_layer(judged: Judged) -> str:
    """Plot a claim's main statistic for every head by layer, with its chance level and the means of its controls."""
    name = criterion(judged)
    if name is None:
        return ""
    measured = judged.statistics[name]

    def draw(axis: Any) -> None:
        layers = [unit.layer for unit in measured.units]
        chance = [unit.chance for unit in measured.units]
        axis.scatter(layers, [unit.mean for unit in measured.units], s=18, color="C0", label="heads", zorder=3)
        if all(value is not None for value in chance):
            axis.scatter(layers, chance, s=18, facecolors="none", edgecolors="0.5", label="by chance")
        for number, other in enumerate(controls(judged, name)):
            label = other.removeprefix(f"{name}_").replace("_", " ")
            value = judged.statistics[other].estimate.value
            axis.axhline(value, color=f"C{1 + number % 9}", linestyle="--", linewidth=1, label=f"{label} (mean)")
        axis.set(xlabel="layer", ylabel=name)
        axis.set_xticks(range(max(layers) + 1))
        axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))

    return _svg({"": draw}, width=5.6)


def profiles(judged: Judged) -> str:
    """Plot every profile of a claim, such as eigenvalues by rank; a profile and its control share a panel."""
    panels = {
        name.replace("_", " "): _curves(name, {key: profile.mean for key, profile in family.items()})
        for name, family in _families(judged).items()
    }
    return _svg(panels) if panels else ""


def profiles_by_layer(judged: Judged) -> dict[str, str]:
    """Plot every profile with its controls, one panel per layer; nothing if there is only one layer."""
    by_title = {}
    for name, family in _families(judged).items():
        by_layer: dict[int, dict[str, Sequence[float]]] = {}
        for key, profile in family.items():
            for curve in profile.layers:
                by_layer.setdefault(curve.layer, {})[key] = curve.mean
        if len(by_layer) > 1:
            log = _is_wide(value for curves in by_layer.values() for means in curves.values() for value in means)
            panels = {f"layer {number}": _curves(name, by_layer[number], log=log) for number in sorted(by_layer)}
            by_title[name.replace("_", " ")] = _svg(panels, columns=4)
    return by_title


def across_models(named: Mapping[str, Diagnosis]) -> str:
    """Plot every claim's main statistic for all models, with 95 % confidence intervals and chance levels."""
    claims = list(dict.fromkeys(claim for diagnosis in named.values() for claim in diagnosis.claims))
    panels = {}
    for claim in claims:
        judged = {name: diagnosis.claims[claim] for name, diagnosis in named.items() if claim in diagnosis.claims}
        keys = [key for diagnosis in judged.values() if (key := criterion(diagnosis)) is not None]
        if keys:
            panels[f"{claim}: {keys[0]}".replace("_", " ")] = _forest(list(named), judged, keys[0])
    return _svg(panels, width=3.6, height=0.8 + 0.28 * len(named)) if panels else ""


def profiles_across_models(named: Mapping[str, Diagnosis]) -> str:
    """Plot every profile for all models that have it; claims that name a profile alike share a panel.

    So the singular values of a Primal model stand beside those of its twin with softmax attention.
    """
    panels: dict[str, dict[str, Sequence[float]]] = {}
    for model, diagnosis in named.items():
        for claim, judged in diagnosis.claims.items():
            for name in _families(judged):
                panels.setdefault(name, {})[f"{model}: {claim}"] = judged.profiles[name].mean
    several = {name: curves for name, curves in panels.items() if len(curves) > 1}
    drawn = {name.replace("_", " "): _curves("", curves, whole_names=True) for name, curves in several.items()}
    height = 0.6 + 0.17 * max((len(curves) for curves in several.values()), default=0)  # for the names beside
    return _svg(drawn, width=6.5, height=max(2.2, height), columns=2) if drawn else ""


def trajectory(measured: Trajectory) -> str:
    """Plot the terms of the projection loss over training: means over layers, one curve per split."""

    def curves(name: str) -> Callable[[Any], None]:
        def draw(axis: Any) -> None:
            drawn = []
            for number, course in enumerate(measured.courses):
                epochs, values = course.curve(name)
                axis.plot(epochs, values, marker="o", markersize=2.5, color=f"C{number}", label=course.data.split)
                drawn += values
            sizes = sorted(abs(value) for value in drawn if value)
            if sizes and min(drawn) > 0 and sizes[-1] > _WIDE * sizes[0]:
                axis.set_yscale("log")
            elif sizes and sizes[-1] > _WIDE * sizes[0]:
                axis.set_yscale("symlog", linthresh=sizes[0])
            axis.set_xlabel("epoch")
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.legend(frameon=False)

        return draw

    return _svg({title.replace("$", ""): curves(name) for name, title in TERMS.items()})


def _families(judged: Judged) -> dict[str, dict[str, Profile]]:
    """Group profiles with their controls, such as `name_random`."""
    names = judged.profiles
    firsts = [name for name in names if not any(name != other and name.startswith(f"{other}_") for other in names)]
    return {
        first: {name: names[name] for name in names if name == first or name.startswith(f"{first}_")}
        for first in firsts
    }


def _is_wide(values: Iterable[float]) -> bool:
    """Return whether values need a logarithmic axis."""
    drawn = sorted(values)
    return bool(drawn) and drawn[0] > 0 and drawn[-1] > _WIDE * drawn[len(drawn) // 2]


def _curves(
    name: str,
    family: Mapping[str, Sequence[float]],
    *,
    log: bool | None = None,
    whole_names: bool = False,
) -> Callable[[Any], None]:
    def draw(axis: Any) -> None:
        for number, (key, values) in enumerate(family.items()):
            label = key if whole_names else key.removeprefix(name).replace("_", " ").strip() or "own"
            style: dict[str, Any] = {"color": f"C{number}", "linestyle": "-" if number == 0 else "--"}
            if len(values) <= _FEW:
                style |= {"marker": "o", "markersize": 2.5}
            axis.plot(range(1, len(values) + 1), values, label=label, **style)
        if _is_wide(value for values in family.values() for value in values) if log is None else log:
            axis.set_yscale("log")
        if len(family) > 1:
            beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)} if whole_names else {}
            axis.legend(frameon=False, **beside)
        axis.xaxis.get_major_locator().set_params(integer=True)

    return draw


def _forest(names: Sequence[str], judged: Mapping[str, Judged], key: str) -> Callable[[Any], None]:
    def draw(axis: Any) -> None:
        for row, name in enumerate(names):
            measured = judged[name].statistics.get(key) if name in judged else None
            if measured is None:
                continue
            estimate, null = measured.estimate, measured.null
            reach = [[estimate.value - estimate.low], [estimate.high - estimate.value]]
            axis.errorbar([estimate.value], [row], xerr=reach, fmt="o", markersize=3.5, color="C0")
            if null is not None:
                axis.plot([null.chance], [row], marker="|", markersize=9, color="0.4", linestyle="none")
        axis.set(yticks=range(len(names)), ylim=(len(names) - 0.5, -0.5))
        axis.locator_params(axis="x", nbins=4)
        axis.set_yticklabels(names, parse_math=False)  # a name may contain any characters

    return draw


def _svg(
    panels: Mapping[str, Callable[[Any], None]], *, width: float = 3.0, height: float = 2.2, columns: int = _COLUMNS
) -> str:
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    with drawing((width * columns, height * rows), **STYLE) as (figure, buffer):
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        for axis, (title, draw) in zip(axes, panels.items(), strict=False):
            draw(axis)
            axis.set_title(title, fontsize=8)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
    return svg_of(buffer, "; ".join(title for title in panels if title) or "figure")
