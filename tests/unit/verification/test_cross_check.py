"""`cross_check`: which program stands for which attack, what the verdict is, and that a weaker attack is found out."""

import numpy as np
import pytest
from corruption_checks import photograph

from robustbench_kpca import load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.corruptions import CORRUPTIONS
from robustbench_kpca.evaluation.api import evaluate
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import NamedModel
from robustbench_kpca.metrics.accuracy import correct
from robustbench_kpca.protocols import presets
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.estimate import mcnemar
from robustbench_kpca.tasks.prepare import require_startable
from robustbench_kpca.verification.cross_check import Agreement, cross_check
from robustbench_kpca.verification.equivalents import REFERENCES, reference_of
from robustbench_kpca.verification.pictures import (
    compare_pictures,
    corruption_protocol,
    distribution_gap,
    pictures_of,
)

MODEL = "symvit_digits_adv"
EXPECTED = {
    "fgsm-linf-8_255": ["torchattacks:FGSM"],
    "pgd20-linf-8_255": ["torchattacks:PGD"],
    "pgd20-l2-128_255": ["torchattacks:PGDL2"],
    "mim-linf-8_255": ["torchattacks:MIFGSM"],
    "spsa-linf-8_255": ["torchattacks:SPSA"],
    "noise-linf-8_255": ["foolbox:LinfAdditiveUniformNoiseAttack"],
    "cw-l2-128_255": ["foolbox:L2CarliniWagnerAttack"],
    "ddn-l2-128_255": ["foolbox:DDNAttack"],
    "fmn-linf-32_255": ["foolbox:LInfFMNAttack"],
    "apgd-ce-linf-8_255": ["pyautoattack:apgd-ce"],
    "apgd-t-linf-8_255": ["pyautoattack:apgd-t"],
    "fab-t-linf-8_255": ["pyautoattack:fab-t"],
    "square-linf-8_255": ["pyautoattack:square"],
    "autoattack-linf-8_255": ["pyautoattack:standard"],
    "autoattack-l2-128_255": ["pyautoattack:standard"],
    "autoattack-l1-12": ["pyautoattack:standard"],
    "autoattack-plus-linf-8_255": ["pyautoattack:plus"],
    "autoattack-rand-linf-8_255": ["pyautoattack:rand"],
}


def checked(protocol, overrides, limit):
    data = load_data("digits", limit=limit).in_order()
    return cross_check(
        NamedModel(load_model(MODEL), "m", MODEL), data, protocol, overrides, RunOptions(batch_size=limit)
    )


def programs(protocol, **overrides):
    return [stage.attack for stage in reference_of(load_scenario(protocol, overrides)[1]).stage]


def test_the_reference_of_every_protocol():
    for library in {stage.partition(":")[0] for stages in EXPECTED.values() for stage in stages}:
        pytest.importorskip(library)
    for protocol in EXPECTED.keys() & presets.protocols().keys():
        scenario = load_scenario(protocol)[1]
        other = reference_of(scenario)
        assert [stage.attack for stage in other.stage] == EXPECTED[protocol]
        assert (other.norm, other.eps, other.policy) == (scenario.norm, scenario.eps, scenario.policy)
        require_startable(other)  # every option is one of the library's


def test_the_table_knows_every_attack_but_those_that_nobody_else_is_trusted_with():
    assert set(ATTACKS.names()) - set(REFERENCES) == {
        "malt", "sld", "segpgd", "apgd_shrinking", "spsa_cleverhans", "cw_cleverhans", "hotflip", "gbda", "random_swap",
        "patch", "pixel_pairs", "sigma_zero", "sparse_rs",
    }  # fmt: skip
    with pytest.raises(BadInputError, match="'sld'"):
        programs("sld-l1-10")
    with pytest.raises(BadInputError, match=r"'fmn' .*l2"):
        programs("fmn-l2-2")
    with pytest.raises(BadInputError, match=r"'mim' .*l2"):
        programs("mim-linf-8_255", norm="l2")


def test_cascades_are_translated_and_draws_averaged_by_apgd_alone():
    names = programs("autoattack-linf-8_255", steps=20)
    assert names == [f"pyautoattack:{name}" for name in ("apgd-ce", "apgd-t", "fab-t", "square")]
    other = reference_of(load_scenario("apgd-ce-linf-8_255", {"draws": 5})[1])
    assert other.stage[0].options["eot_iter"] == 5
    with pytest.raises(BadInputError, match=r"'pgd' .*5 draws"):
        programs("pgd20-linf-8_255", draws=5)


CASES = {
    "fgsm-linf-8_255": {},
    "pgd20-linf-8_255": {},
    "pgd20-l2-128_255": {},
    "mim-linf-8_255": {},
    "noise-linf-8_255": {},
    "apgd-ce-linf-8_255": {"steps": 20},
    "square-linf-8_255": {"queries": 100},
    "ddn-l2-128_255": {"steps": 30},
    "spsa-linf-8_255": {"steps": 4, "samples": 32},
}


REPRESENTATIVES = ("fgsm-linf-8_255", "ddn-l2-128_255", "apgd-ce-linf-8_255", "square-linf-8_255")


@pytest.mark.parametrize(
    "protocol", [one if one in REPRESENTATIVES else pytest.param(one, marks=pytest.mark.slow) for one in CASES]
)
def test_native_attacks_are_as_strong(protocol):
    for stage in EXPECTED[protocol]:
        pytest.importorskip(stage.partition(":")[0])
    changes = CASES[protocol] | ({"eps": "16/255"} if "linf" in protocol else {})
    found = checked(protocol, changes, limit=24)
    assert found.both + found.only_native + found.only_reference + found.neither == 24
    assert found.only_reference <= 1, "the draws differ"
    deterministic = ("fgsm", "mim", "noise", "ddn")
    assert found.as_strong or not protocol.startswith(deterministic)


def test_a_weaker_attack_is_found_out():
    """Noise is no projected gradient descent."""
    model, samples = load_model("vit_digits"), load_data("digits", limit=64)
    weak = evaluate(model, samples, protocol="noise-linf-8_255", audit=False)
    strong = evaluate(model, samples, protocol="pgd20-linf-8_255", audit=False)
    found = Agreement(weak, strong)
    assert not found.as_strong
    assert found.only_reference > 20
    assert found.only_native == 0
    assert found.p_value < 1e-6
    assert Agreement(strong, weak).as_strong
    assert Agreement(weak, weak).as_strong
    assert Agreement(weak, weak).p_value == 1


def test_the_numbers_of_an_agreement_are_those_of_its_records():
    pytest.importorskip("torchattacks")
    found = checked("fgsm-linf-8_255", {"eps": "16/255"}, limit=60)
    assert found.native.spec.protocol.name == "fgsm-linf-8_255+eps=16_255"
    assert found.reference.spec.protocol.name == "fgsm-linf-8_255+eps=16_255__torchattacks"
    assert found.native.spec.data == found.reference.spec.data
    right = [correct(record.outcomes) for record in (found.native, found.reference)]
    assert found.neither == int(np.logical_and(*right).sum())
    assert found.p_value == mcnemar(*right)


REFUSED = [
    ("clean", {}, "attack"),
    ("sld-l1-10", {}, "'sld' in l1"),
    ("teo2024-cut-off", {}, "stages"),
    ("pgd20-linf-8_255", {"clip": False}, "'torchattacks:PGD' .*clip"),
]


@pytest.mark.parametrize(("protocol", "overrides", "message"), REFUSED)
def test_what_cannot_be_verified_is_refused_before_anything_runs(protocol, overrides, message, monkeypatch):
    pytest.importorskip("torchattacks")
    monkeypatch.setattr("robustbench_kpca.verification.cross_check.make_record", None)
    with pytest.raises(BadInputError, match=message):
        checked(protocol, overrides, limit=4)


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
