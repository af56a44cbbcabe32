import math
import re
import warnings
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pandas as pd
import pytest

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics.shared.alexnet import ALEXNET_ERRORS
from robustbench_kpca.records.estimate import Estimate, proportion
from robustbench_kpca.report.heatmap import COLOURS, against_severity, heatmap, readable_on

HOSTILE = "</text><script>alert('&')</script> $\\frac{1}$ \x00\x1b\n模 _x"
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


def fills(svg):
    """Colours of the cells, in the order drawn."""
    found = []
    for node in ET.fromstring(svg).iter(f"{SVG}path"):
        style = node.get("style", "")
        if "stroke: #ffffff" in style and (colour := re.search(r"fill: (#\w{6})", style)):
            found.append(colour[1])
    return found


def frame(cells):
    return pd.DataFrame(cells, index=[1, 2, 3, 4, 5]).T


def estimate(value):
    return Estimate(value, value - 0.05, value + 0.05, 100, "wilson")


def test_every_cell_is_labelled_with_its_number():
    shown = texts(heatmap(frame(ALEXNET_ERRORS), "AlexNet on ImageNet-C"))
    for name, row in ALEXNET_ERRORS.items():
        assert name in shown
        assert all(f"{100 * error:.1f}" in shown for error in row)
    assert shown.count("99.5") == sum(f"{100 * e:.1f}" == "99.5" for row in ALEXNET_ERRORS.values() for e in row)
    assert "AlexNet on ImageNet-C" in shown
    assert [text for text in shown if text in ("0", "20", "40", "60", "80", "100")] == [
        "0",
        "20",
        "40",
        "60",
        "80",
        "100",
    ]


def test_rows_are_grouped_and_columns_sorted():
    errors = frame({"caustic": [0.1] * 5, "pixelate": [0.2] * 5, "saturate": [0.3] * 5, "fog": [0.4] * 5})
    shown = texts(heatmap(errors[[5, 1, 3, 2, 4]], ""))
    names = ["weather", "fog", "digital", "pixelate", "extra", "saturate", "other", "caustic"]
    order = [shown.index(name) for name in names]
    assert order[1::2] == sorted(order[1::2])
    assert order[::2] == sorted(order[::2])
    levels = [shown.index(str(level)) for level in range(1, 6)]
    assert levels == sorted(levels)
    assert not {"noise", "blur"} & set(shown)


def test_numbers_stand_in_their_own_cells():
    errors = pd.DataFrame({2: [0.11, 0.22], 1: [0.33, 0.44]}, index=["fog", "snow"])
    svg = heatmap(errors, "")
    places = {}
    for node in ET.fromstring(svg).iter(f"{SVG}text"):
        text = "".join(node.itertext())
        if found := re.search(r"translate\(([\d.]+) ([\d.]+)\)", node.get("transform", "")):
            places.setdefault(text, (float(found[1]), float(found[2])))
        elif node.get("x"):
            places.setdefault(text, (float(node.get("x")), float(node.get("y"))))
    assert places["33.0"][0] == pytest.approx(places["44.0"][0], abs=1)
    assert places["33.0"][0] < places["11.0"][0]
    assert places["11.0"][1] == pytest.approx(places["33.0"][1], abs=1)
    assert places["22.0"][1] < places["11.0"][1], "snow stands above fog"


def test_a_colour_means_the_same_error_on_every_page():
    low = fills(heatmap(pd.DataFrame({1: [0.1, 0.2]}, index=["snow", "fog"]), "low"))
    high = fills(heatmap(pd.DataFrame({1: [0.9, 0.2]}, index=["snow", "fog"]), "high"))
    assert len(low) == len(high) == 2
    assert set(low) & set(high) == {mpl.colors.to_hex(mpl.colormaps[COLOURS](0.2))}
    assert len(set(low) | set(high)) == 3


def test_numbers_are_legible_on_every_colour():
    for step in range(1001):
        colour = mpl.colormaps[COLOURS](step / 1000)[:3]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
        luminance = sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
        ink = 1.0 if readable_on(colour) == "white" else 0.0
        contrast = (max(ink, luminance) + 0.05) / (min(ink, luminance) + 0.05)
        assert contrast >= 4.5, f"error {step / 10} %: WCAG AA asks for 4.5"
    assert readable_on((0.0, 0.0, 0.0)) == "white"
    assert readable_on((1.0, 1.0, 1.0)) == "black"


def test_what_was_not_measured_has_a_dash_and_no_colour():
    svg = heatmap(pd.DataFrame({1: [0.5], 2: [math.nan]}, index=["fog"]), "")
    assert "–" in texts(svg)
    assert "nan" not in svg
    assert "#e6e6e6" in fills(svg)


def test_both_are_drawings_without_pictures_scripts_or_dates():
    for svg in (heatmap(frame(ALEXNET_ERRORS), "x"), against_severity({"m": [estimate(0.5)] * 6})):
        assert svg.startswith("<svg")
        assert ET.fromstring(svg).tag == f"{SVG}svg"
        assert not re.search(r"<image|<script|dc:date|href=\"(?!#)", svg)


@pytest.mark.parametrize(
    "draw",
    [
        lambda name: heatmap(pd.DataFrame({1: [0.5]}, index=[name]), name),
        lambda name: against_severity({name: [estimate(0.5)] * 3}),
    ],
    ids=["heatmap", "curves"],
)
def test_hostile_names_are_text(draw):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = draw(HOSTILE)
    expected = HOSTILE.replace("\x00\x1b\n", "\N{REPLACEMENT CHARACTER}" * 3)
    assert "".join(expected.split()) in "".join("".join(texts(svg)).split())  # titles are wrapped
    assert "<script" not in svg
    assert not [node for node in ET.fromstring(svg).iter() if "script" in node.tag]


@pytest.mark.parametrize("name", ["_softmax", "$a$b", "", "x" * 90])
def test_odd_model_names_stay_in_the_legend(name):
    shown = texts(against_severity({name: [estimate(0.5)] * 6, "other": [estimate(0.4)] * 6}))
    assert name in shown or not name
    assert "other" in shown


def test_the_same_bytes_twice():
    errors = frame(ALEXNET_ERRORS)
    assert heatmap(errors, "x") == heatmap(errors.copy(), "x")
    curves = {"a": [estimate(0.9), None, estimate(0.5)], "b": [estimate(0.3)] * 3}
    assert against_severity(curves) == against_severity(dict(curves))


def test_settings_are_left_as_they_were():
    before = dict(mpl.rcParams)
    heatmap(frame(ALEXNET_ERRORS), "x")
    against_severity({"m": [estimate(0.5)]})
    assert dict(mpl.rcParams) == before


def test_curves_begin_at_the_clean_images_and_show_their_bands():
    svg = against_severity({"m": [proportion(round(100 * (0.9 - 0.1 * s)), 100) for s in range(6)]})
    shown = texts(svg)
    assert shown[:6] == ["clean", "1", "2", "3", "4", "5"]
    assert {"severity", "accuracy (%)", "m"} <= set(shown)
    assert "opacity: 0.12" in svg


def test_an_unmeasured_severity_breaks_the_line():
    def markers(curve):
        return against_severity({"m": curve}).count("<use ")

    whole = [estimate(0.9 - 0.1 * s) for s in range(6)]
    assert markers([*whole[:2], None, *whole[3:]]) < markers(whole)
    lines = [
        path.get("d").count("M ")
        for path in ET.fromstring(against_severity({"m": [*whole[:2], None, *whole[3:]]})).iter(f"{SVG}path")
        if "stroke: #1f77b4" in path.get("style", "") and "fill: none" in path.get("style", "")
    ]
    assert 2 in lines


def test_nothing_to_draw():
    assert heatmap(pd.DataFrame(), "x") == ""
    assert against_severity({}) == ""
    assert against_severity({"m": [None, None]}) == ""


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        (pd.DataFrame({1: [69.5]}, index=["fog"]), "69.5"),
        (pd.DataFrame({1: [-0.1]}, index=["fog"]), "-0.1"),
        (pd.DataFrame({1: [math.inf]}, index=["fog"]), "inf"),
        (pd.DataFrame({1: [0.1, 0.2]}, index=["fog", "fog"]), "1 cells"),
    ],
    ids=["percent", "negative", "infinite", "twice"],
)
def test_refusals(errors, message):
    with pytest.raises(BadInputError, match=message):
        heatmap(errors, "x")
