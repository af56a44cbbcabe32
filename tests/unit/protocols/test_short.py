"""Protocols of few lines run as the whole ones that they stand for; files of the package state every field."""

import tomllib

import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.protocols import presets
from robustbench_kpca.protocols.loading import as_toml, load_scenario, read_protocol
from robustbench_kpca.protocols.scenario import parse_scenario

STAGE = '[[stage]]\nattack = "pgd"\nsteps = 20\nstep_size = "0.25 eps"\nrandom_start = true\n'
SHORT = {
    "like": 'like = "pgd20-linf-2_255"\neps = "8/255"\n',
    "attack": f'kind = "attack"\nnorm = "linf"\neps = "8/255"\n{STAGE}',
    "stages": f'like = "fgsm-linf-8_255"\n{STAGE}restarts = 1\n',
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "climb.py").write_text(
        "from robustbench_kpca import one_gradient\n\n\n@one_gradient(steps=2, memory=[])\n"
        "def climb(x, gradient, state):\n    return x + state['eps'] * gradient.sign()\n"
    )


@pytest.mark.parametrize("text", SHORT.values(), ids=SHORT)
def test_a_short_file_is_the_protocol_that_it_stands_for(text, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(text)
    label, scenario = load_scenario("mine.toml")
    assert (label, scenario.digest()) == ("mine", load_scenario("pgd20-linf-8_255")[1].digest())
    assert main(["list", "protocols", "mine.toml"]) == 0
    (tmp_path / "whole.toml").write_text(capsys.readouterr().out)
    whole = tomllib.loads((tmp_path / "whole.toml").read_text())
    assert parse_scenario(whole, "whole").digest() == scenario.digest(), "what is printed states every field"


@pytest.mark.parametrize("name", presets.protocols())
def test_files_of_the_package_state_every_field(name):
    """Without what `read_protocol` adds; and what it reads of them is what they say."""
    data = tomllib.loads(presets.protocols()[name].read_text())
    assert parse_scenario(data, name).digest() == load_scenario(name)[1].digest()
    assert tomllib.loads(as_toml(read_protocol(name)[1])) == data


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('kind = "attack"\n[[stage]]\nattack = "pgd"\n', "the keys 'norm', 'eps' are missing"),
        ('like = "pgd20-linf-2_255"\nepz = 1\n', "did you mean 'eps'"),
        ('like = "pgd21-linf-2_255"\n', "no protocol named 'pgd21-linf-2_255'"),
        ("like = 3\n", "protocol 3"),
    ],
)
def test_what_is_wrong_is_said_at_once(text, said, tmp_path):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(BadInputError, match=said):
        load_scenario("mine.toml")


def test_an_attack_of_ones_own_needs_no_file(capsys):
    asked = ["eval", "-m", "symvit_digits", "--limit", "4", "--audit", "none", "-q", "-p", "climb.py:climb"]
    assert main([*asked, "--set", "eps=2/255", "--set", "steps=3", "-o", "runs"]) == 0
    assert "climb-climb+eps=2_255+steps=3  robust_accuracy" in capsys.readouterr().out
    assert main(["records", "verify", "runs", "--run-code", "-q"]) == 0
    _, scenario = load_scenario("climb.py:climb", {"eps": "2/255", "norm": "l2", "restarts": 2, "steps": 3})
    [stage] = scenario.stage
    assert (scenario.norm, stage.restarts, stage.options) == ("l2", 2, {"steps": 3})
    assert main([*asked, "--curve", "1/255,2/255", "-o", "curve"]) == 0
    assert "climb-climb+eps=1_255" in capsys.readouterr().out
    assert main(asked) == 2
    assert "without an eps; add --set eps=2/255" in capsys.readouterr().err
