"""Curves and points: every name is text in the page's ink, beside its own line, and nothing is drawn twice."""

import re
import warnings
from xml.etree import ElementTree as ET

import pytest

from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.report.lines import FEW, Axis, lines
from robustbench_kpca.report.plots import pareto

HOSTILE = "</text><script>alert('&')</script> $\\frac{1}$ \x00\x1b\n模 _x"
SVG = "{http://www.w3.org/2000/svg}"
AXIS = Axis("severity", "accuracy", ticks={0: "clean", 1: "1", 2: "2"})


def texts(svg):
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


def estimate(value):
    return Estimate(value, value - 0.05, value + 0.05, 100, "wilson")


def curve(*values):
    return {x: None if value is None else estimate(value) for x, value in enumerate(values)}


def test_few_curves_are_named_and_many_have_a_panel_each():
    svg = lines({"best": curve(0.9, 0.8, 0.7), "worst": curve(0.5, 0.4, 0.1)}, AXIS, "Two & curves")
    shown = texts(svg)
    assert shown[:3] == ["clean", "1", "2"]
    assert {"severity", "accuracy (%)", "best", "worst"} <= set(shown)
    assert 'role="img" aria-label="Two &amp; curves"' in svg
    assert "currentColor" in svg
    assert "#101112" not in svg
    names = [f"model_{number}" for number in range(FEW + 3)]
    svg = lines({name: curve(0.9, 0.8) for name in names}, AXIS, "t")
    assert [text for text in texts(svg) if text.startswith("model")] == names
    assert svg.count("M ") < 40 * len(names), "the others are one path in every panel"
    points = {"a": (90, 50), "b": (80, 60), "c": (80, 55), "d": (70, 40), "e": (90, 50)}
    assert pareto(points) == ["b", "a", "e"]


def test_an_unmeasured_value_breaks_the_line():
    def parts(drawn):
        return [
            path.get("d").count("M ")
            for path in ET.fromstring(lines({"m": drawn}, AXIS, "")).iter(f"{SVG}path")
            if "stroke-width: 1.4" in path.get("style", "")
        ]

    assert 2 in parts(curve(0.9, 0.8, None, 0.6, 0.5))
    assert 2 not in parts(curve(0.9, 0.8, 0.7, 0.6, 0.5))


@pytest.mark.parametrize("name", [HOSTILE, "_softmax", "$a$b", "x" * 90])
def test_names_are_text_whatever_is_in_them(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = lines({name: curve(0.5, 0.4)}, AXIS, name)
    shown = name.replace("\x00\x1b\n", "\N{REPLACEMENT CHARACTER}" * 2 + " ")
    assert shown in texts(svg)
    assert "<script" not in svg
    assert not re.search(r"<image|dc:date|href=\"(?!#)", svg)
