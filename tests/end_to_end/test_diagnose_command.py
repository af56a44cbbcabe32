"""`rbk diagnose` as a user meets it: models, files, texts, real data, and one line for what fails."""

import json

import pytest

from robustbench_kpca.cli.main import main
from robustbench_kpca.models.bundle import bundled
from robustbench_kpca.study.diagnostics.diagnosis import load_diagnosis

pytestmark = pytest.mark.usefixtures("elsewhere")

FOUR = ("eigenvalues", "gamma", "projection_loss", "value_vectors")


def rbk(*arguments):
    return main(["diagnose", *map(str, arguments)])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name != "rpc_symvit_digits"))
        for name in bundled()
        if name.endswith(("_digits", "_digits_adv"))
    ],
)
def test_every_bundled_model(name, capsys):
    assert rbk(name, "--images", 10, "--json", "--quiet") == 0
    done = json.loads(capsys.readouterr().out)
    assert done["model"]["name"] == name
    assert done["data"]["n"] == done["protocol"]["images"] == 10
    assert {done["claims"][claim]["outcome"] for claim in FOUR} == {"not supported"}


def test_a_diagnosis_is_kept_and_the_tables_are_made_from_it(tmp_path, capsys):
    assert rbk("symvit_digits", "--images", 20, "--out", tmp_path / "out", "--claim", "value_vectors") == 0
    assert "Value vectors are those of kernel PCA" in capsys.readouterr().out
    done = load_diagnosis(tmp_path / "out")
    assert list(done.claims) == ["value_vectors"]
    assert [layer.tokens for layer in done.layers] == [(17, 17)] * 4
    measured = done.claims["value_vectors"].statistics["linear_cka"]
    assert len(measured.units) == 12
    assert measured.null.draws == 999
    text = (tmp_path / "out" / "diagnosis.json").read_text()
    (tmp_path / "out" / "diagnosis.json").write_text(text.replace('"ALIGNED": 0.8', '"ALIGNED": 0.1'))
    with pytest.raises(Exception, match="protocol"):
        load_diagnosis(tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["symvit_digit"], "did you mean"),
        (["vit_digits", "--layers", "x"], "ranges"),
        (["vit_digits", "--layers", "9"], "0 to 3"),
        (["vit_tiny_patch16_224", "--set=model.untrained=true", "--data", "digits"], "add --size 224"),
        (["vit_digits", "--claim", "gama"], "did you mean 'gamma'"),
        (["vit_digits", "--set", "eps=1"], "model.KEY=VALUE"),
        (["vit_digits", "--data", "nothing"], "nothing"),
        (["vit_digits", "--layers", "²"], "ranges"),
        (["rpc_lm_tiny", "--set=model.untrained=true", "--data", "grammar"], "grammar"),
        (["rpc_lm_tiny", "--set=model.untrained=true"], "expected words"),
        (["--compare", ".", "--claim", "gamma"], "--claim"),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_what_cannot_be_done_is_one_line(arguments, says, capsys):
    few = [] if "--compare" in arguments else ["--images", 2]
    assert rbk(*arguments, *few) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_deit_tiny_on_photographs(real_data, monkeypatch, capsys):
    """Its value vectors are above chance and far from kernel PCA, as in 100 images; see benchmarks/diagnostics.py."""
    monkeypatch.syspath_prepend(str(real_data("peers.py").parent))
    claims = [part for claim in FOUR for part in ("--claim", claim)]
    layers = ("--size", 224, "--crop", 0.875, "--layers", "1,6,11", "--images", 10, *claims, "--json", "--quiet")
    assert rbk("peers:deit_tiny", "--data", real_data("imagenet_nips2017"), *layers) == 0
    done = json.loads(capsys.readouterr().out)
    assert {done["claims"][claim]["outcome"] for claim in FOUR} == {"not supported"}
    measured = done["claims"]["value_vectors"]["statistics"]
    assert measured["linear_cka"]["estimate"]["high"] < 0.2
    assert measured["matching_cosine"]["estimate"]["high"] < 0.32
    assert measured["kernel_cka"]["null"]["p"] < 0.01
    assert done["claims"]["eigenvalues"]["statistics"]["share_of_bound"]["estimate"]["high"] <= 1


def test_a_segmenter_has_no_answer_to_digits(capsys):
    assert rbk("symvit_shapes", "--images", 2, "--size", 32, "-q") == 2
    assert "(2, 8, 32, 32); expected one row of logits per image" in capsys.readouterr().err
