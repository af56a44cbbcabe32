"""`rbk cross-check` of corruptions: it agrees where pictures or distributions are equal, and only there."""

import numpy as np
import pytest
from corruption_checks import photograph

from robustbench_kpca import load_data
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.corruptions import CORRUPTIONS
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.verification.pictures import (
    compare_pictures,
    corruption_protocol,
    distribution_gap,
    pictures_of,
)

pytest.importorskip("skimage")


def compare(*names, severities=(4,), **settings):
    changes = {"corruptions": list(names), "severities": list(severities)} | settings
    protocol = load_scenario("common-corruptions", changes)[1]
    images = [("a", photograph(32, 40)), ("b", photograph(36, 32, which=1))]
    return {cell.corruption: cell for cell in compare_pictures(protocol, images)}


def test_equal_seeds_give_equal_bytes_and_other_draws_the_same_distribution():
    found = compare("contrast", "gaussian_noise", "impulse_noise", "fog")
    assert all(cell.agrees for cell in found.values())
    kinds = {name: (cell.exact.kind, cell.fast.kind) for name, cell in found.items()}
    assert kinds == {
        "contrast": ("values", "values"), "gaussian_noise": ("values", "statistics"),
        "impulse_noise": ("statistics", "statistics"), "fog": ("values", "statistics"),
    }  # fmt: skip
    assert found["gaussian_noise"].exact.value == 0
    assert 0 < found["gaussian_noise"].fast.value < 1


@pytest.mark.parametrize(("name", "other"), [("gaussian_noise", 0.3), ("impulse_noise", 0.2), ("contrast", 0.2)])
def test_another_strength_is_found_out(name, other, monkeypatch):
    member = CORRUPTIONS.get(name)
    changed = member.parameters | {"imagecorruptions": (other,) * 5}
    assert other != member.parameters["imagecorruptions"][3]
    monkeypatch.setattr(type(member), "parameters", changed)
    found = compare(name)[name]
    assert not found.agrees
    assert not found.exact.agrees
    assert not found.fast.agrees


def test_welchs_t_against_scipy():
    from scipy import stats

    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(0, 1, (20, 5)), rng.normal(0.5, 2, (20, 5))
    t = np.abs(stats.ttest_ind(ours, theirs, equal_var=False).statistic).max()
    limit = stats.t.isf(0.01 / (2 * 2 * 6 * 3 * 75), 19)
    assert distribution_gap(ours, theirs, 75) == pytest.approx(t / limit)
    assert distribution_gap(np.ones((20, 5)), np.ones((20, 5)), 75) == 0
    assert distribution_gap(np.ones((20, 5)), np.zeros((20, 5)), 75) == np.inf


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(BadInputError, match="profile 'cifar_c'"):
        compare("fog", profile="cifar_c")
    with pytest.raises(BadInputError, match="stored"):
        corruption_protocol("common-corruptions", {"mode": "stored"})
    assert corruption_protocol("clean", {}) is None
    photos = pictures_of(load_data("photos", limit=2))
    assert [picture.shape for _, picture in photos] == [(32, 32, 3)] * 2
