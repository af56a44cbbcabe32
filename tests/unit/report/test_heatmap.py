import math

import matplotlib as mpl
import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import PLAIN
from robustbench_kpca.metrics.shared.error_table import ALEXNET_ERRORS
from robustbench_kpca.report.corruption_figures import heatmap, readable_on, scale

MEANS = {name: sum(row) / len(row) for name, row in ALEXNET_ERRORS.items()}


def test_cells_have_their_number_and_columns_their_group():
    found = heatmap({"AlexNet": MEANS, "half": {name: value / 2 for name, value in MEANS.items()}})
    for factor, (_, cells) in zip((1, 0.5), found.rows, strict=True):
        assert [text for text, _ in cells] == [f"{100 * factor * MEANS[name]:.1f}" for name in found.columns]
    assert heatmap({"m": {"fog": 0.2}}).legend == [(0, "0"), (5, "20"), (10, "40"), (15, "60"), (20, "80"), (25, "100")]
    without_end = heatmap({"m": {"fog": 120.0, "snow": 60.0}}, unit=PLAIN)
    assert without_end.legend == [(0, "0"), (5, "24"), (10, "48"), (15, "72"), (20, "96"), (25, "120")]
    found = heatmap({"a": {"caustic": 0.1, "pixelate": 0.2}, "b": {"saturate": 0.3, "fog": 0.4, "pixelate": 0.5}})
    assert found.groups == [("weather", 1), ("digital", 1), ("extra", 1), ("other", 1)]
    assert found.columns == ["fog", "pixelate", "saturate", "caustic"]
    assert [[text for text, _ in cells] for _, cells in found.rows] == [
        ["–", "20.0", "–", "10.0"],
        ["40.0", "50.0", "30.0", "–"],
    ]


def test_numbers_are_legible_on_every_colour():
    for step, colour, text in scale():
        rgb = mpl.colors.to_rgb(colour)
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
        luminance = sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
        ink = 1.0 if text == "white" else 0.0
        contrast = (max(ink, luminance) + 0.05) / (min(ink, luminance) + 0.05)
        assert contrast >= 4.5, f"step {step}: WCAG AA asks for 4.5"
    assert readable_on((0.0, 0.0, 0.0)) == "white"
    assert readable_on((1.0, 1.0, 1.0)) == "black"


@pytest.mark.parametrize("value", [69.5, -0.1, math.inf])
def test_refusals(value):
    with pytest.raises(BadInputError, match=f"errors {value:g}; expected numbers between 0 and 1"):
        heatmap({"m": {"fog": value}})
