"""Optimality of attacks: the exact area in worked cases, and records of searches side by side."""

import json

import numpy as np
import pytest

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca.cli.main import main
from robustbench_kpca.report.optimality import Quality, global_optimality, local_optimality

INF = np.inf
BEST = np.array([0.0, 1, 2, 3])


@pytest.mark.parametrize(
    ("other", "value"),
    [((0, INF, INF, INF), 0.0), ((0, 2, 3, INF), 1 / 3), ((0, 1, 2, 3), 1.0), ((0, 1, 2, 9), 1.0)],
)
def test_the_worked_cases_are_exact(other, value):
    """The released trapezoid gives 1.0 and 0.6667 in the first two."""
    optimal = local_optimality({"best": BEST, "other": np.array(other, float)})
    assert optimal["best"] == 1.0
    assert optimal["other"] == pytest.approx(value, abs=1e-15)


def test_the_area_is_that_of_the_staircase():
    """Robust accuracy at t is the share of images with d > t; a fine sum of it is the area."""
    rng = np.random.default_rng(0)
    attacks = {name: np.where(rng.random(40) < 0.2, INF, rng.random(40)) for name in "ab"}
    for own in attacks.values():
        own[:4] = 0
    best = np.minimum(attacks["a"], attacks["b"])
    most = best[np.isfinite(best)].max()
    grid = (np.arange(200_000) + 0.5) * most / 200_000
    area = {name: most * np.mean([(own > t).mean() for t in grid[::20]]) for name, own in attacks.items()}
    least = most * np.mean([(best > t).mean() for t in grid[::20]])
    for name, value in local_optimality(attacks).items():
        assert value == pytest.approx(1 - (area[name] - least) / (0.9 * most - least), abs=2e-3)


def test_where_nothing_is_broken_there_is_no_optimality():
    assert local_optimality({"a": np.array([0.0, INF]), "b": np.array([0.0, INF])}) == {"a": None, "b": None}


def test_global_is_the_mean_over_networks_that_both_have():
    local = [Quality(model, name, 4, 1.0, 0.0, 1.0, value) for model, name, value in
             (("x", "a", 1.0), ("y", "a", 0.5), ("x", "b", 0.25))]  # fmt: skip
    assert global_optimality(local) == {"a": 0.75}


def test_records_of_two_searches_are_ranked(few_resamples, tmp_path, capsys):
    data = load_data("digits", limit=6)
    for steps in (3, 30):
        how = {"protocol": "fmn-l2-2", "steps": steps, "audit": False, "quiet": True, "out": tmp_path}
        evaluate(load_model("vit_digits"), data, name="vit_digits", **how)
    assert main(["records", "attacks", str(tmp_path), "--json"]) == 0
    more, fewer = json.loads(capsys.readouterr().out)["local"]
    assert more["attack"] == "fmn-l2-2+steps=30"
    assert fewer["optimality"] < more["optimality"] <= 1
    assert (fewer["passes"], more["passes"]) == (7, 61)
    assert main(["records", "attacks", str(tmp_path)]) == 0
    assert "local optimality" in capsys.readouterr().out.replace("\n", " ")


def test_records_without_distances_are_refused(few_resamples, tmp_path, capsys):
    data = load_data("digits", limit=4)
    evaluate(load_model("vit_digits"), data, protocol="fgsm-linf-8_255", audit=False, quiet=True, out=tmp_path)
    assert main(["records", "attacks", str(tmp_path)]) == 2
    assert "no minimal distances" in capsys.readouterr().err
