import pytest
from stand_ins import corruption_protocol

from robustbench_kpca._core.errors import BadInputError, UnknownNameError
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Attack, Corruption, parse_scenario
from robustbench_kpca.tasks.titles import misnamed

PGD = {
    "title": "t", "citations": [], "kind": "attack", "norm": "linf", "eps": "8/255", "policy": "stop_at_first",
    "labels": "true", "target": "none", "space": "pixel", "clip": True, "draws": 1, "precision": "fp32", "below": [],
    "stage": [{"attack": "pgd", "restarts": 1, "steps": 20, "step_size": "0.25 eps", "random_start": True}],
}  # fmt: skip


def test_a_protocol_is_what_its_file_says():
    name, scenario = load_scenario("pgd20-linf-8_255")
    assert name == "pgd20-linf-8_255"
    assert isinstance(scenario, Attack)
    assert scenario.eps == 8 / 255
    assert scenario.stage[0].options == {"steps": 20, "step_size": "0.25 eps", "random_start": True}
    with pytest.raises(BadInputError, match="'eps'"):
        parse_scenario({key: value for key, value in PGD.items() if key != "eps"}, "here")
    with pytest.raises(UnknownNameError, match="did you mean 'pgd20-linf-8_255'"):
        load_scenario("pgd20-linf-8_25")
    digest = parse_scenario(PGD, "here").digest()
    assert parse_scenario(PGD | {"title": "other", "citations": ["x"]}, "here").digest() == digest
    assert parse_scenario(PGD | {"eps": 8 / 255}, "here").digest() == digest
    assert parse_scenario(PGD | {"norm": "l2"}, "here").digest() != digest


def test_overrides_show_in_label_title_and_digest():
    _, plain = load_scenario("pgd20-linf-8_255")
    name, other = load_scenario("pgd20-linf-8_255", {"eps": "3/255", "steps": 40})
    assert name == "pgd20-linf-8_255+eps=3_255+steps=40"
    assert "eps = 3/255" in other.title
    assert isinstance(other, Attack)
    assert (other.eps, other.stage[0].options["steps"]) == (3 / 255, 40)
    assert other.digest() != plain.digest()
    attacks = [load_scenario(f"pgd20-linf-{number}_255")[1] for number in (2, 8)]
    assert misnamed("PGD-20 at 2/255 and more", attacks) is None
    assert "but eps = " in misnamed("PGD-20 at 4/255", attacks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 1}, "'epsilon'.*did you mean 'eps'"),
        ({"eps": 8}, "8/255"),
        ({"norm": "l7"}, "norm = 'l7'"),
        ({"below": ["8/255"]}, "ascending .*0.0313"),
        ({"below": [0]}, "ascending"),
        ({"labels": "predicted"}, "'last' or 'strongest'"),
        ({"clip": "no"}, "clip = 'no'"),
        ({"stage": [PGD["stage"][0] | {"restarts": "1"}]}, "restarts = '1'"),
        ({"kind": []}, "kind"),
    ],
)
def test_bad_protocols(change, message):
    with pytest.raises(BadInputError, match=message):
        parse_scenario(PGD | change, "here")


@pytest.mark.parametrize(
    ("asked", "nearest", "eps"),
    [
        ("pgd20-linf-3_255", "pgd20-linf-4_255", "3/255"),
        ("fmn-l2-0.5", "fmn-l2-2", "0.5"),
    ],
)
def test_another_eps_is_set_in_the_nearest_protocol(asked, nearest, eps):
    with pytest.raises(UnknownNameError, match=f"-p {nearest} --set eps={eps}$"):
        load_scenario(asked)


@pytest.mark.parametrize("name", ["pgd20-linf-0_255", "pgd20-linf-8_225", "nosuch-linf-3_255"])
def test_what_is_no_eps_of_a_protocol_is_not_set(name):
    with pytest.raises(UnknownNameError) as caught:
        load_scenario(name)
    assert "--set" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "message"), [("stps", "did you mean 'steps'"), ("kind", "no field"), ("title", "no field")]
)
def test_unknown_override_suggests(key, message):
    with pytest.raises(BadInputError, match=message):
        load_scenario("pgd20-linf-8_255", {key: 1})


def test_a_users_folder_goes_in_front(tmp_path, monkeypatch):
    (tmp_path / "corruptions").mkdir()
    text = corruption_protocol(["contrast"], [3], "cifar_c")
    (tmp_path / "corruptions" / "noise-blur-contrast.toml").write_text(text)
    monkeypatch.setenv("RBK_PRESETS", str(tmp_path))
    _, scenario = load_scenario("noise-blur-contrast")
    assert isinstance(scenario, Corruption)
    assert scenario.cells == [("contrast", 3)]
    assert load_scenario("clean")[1].kind == "clean"
