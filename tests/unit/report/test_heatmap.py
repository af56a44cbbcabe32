import math

import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import PLAIN
from robustbench_kpca.metrics.shared.error_table import ALEXNET_ERRORS
from robustbench_kpca.report.corruption_figures import heatmap

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


@pytest.mark.parametrize("value", [69.5, -0.1, math.inf])
def test_refusals(value):
    with pytest.raises(BadInputError, match=f"errors {value:g}; expected numbers between 0 and 1"):
        heatmap({"m": {"fog": value}})
