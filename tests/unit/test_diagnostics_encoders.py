"""Lists of models, and text encoders of `transformers` with random weights: what is read is what they compute."""

import json
from dataclasses import replace

import pytest
import timm
import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli._diagnosing import Asked
from robustbench_kpca.cli.main import main
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.study.diagnostics import tables
from robustbench_kpca.study.diagnostics.diagnosis import load_diagnosis
from robustbench_kpca.study.diagnostics.lists import configuration, load_list
from robustbench_kpca.study.diagnostics.sources import load_text_model
from robustbench_kpca.study.diagnostics.taps import call, find_taps, listening

STUDY = load_list("saritas2025")
ENCODERS = [one.model.removeprefix("transformers:") for one in STUDY.model if one.reads_texts]
LINES = [" ".join(f"word{(7 * line + 3 * word) % 90}" for word in range(12)) for line in range(6)]


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(["too short", *LINES]))
    return tmp_path / "texts.txt"


def test_the_list_is_the_studys():
    images = [one for one in STUDY.model if not one.reads_texts]
    assert (len(images), len(ENCODERS)) == (10, 9)
    for one in images:  # of width 64, and with a tag that timm knows
        name, _, tag = one.model.removeprefix("timm:").partition(".")
        assert f"{name}.{tag}" in timm.list_pretrained(f"{name}.*")
    assert all(one.config for one in STUDY.model if one.reads_texts)


def test_lists_of_a_user(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('title = "t"\nsource = "s"\n[[model]]\nname = "a"\nmodel = "vit_digits"\n')
    assert [one.model for one in load_list(str(path)).model] == ["vit_digits"]
    path.write_text(path.read_text() + '[[model]]\nname = "a"\nmodel = "symvit_digits"\n')
    with pytest.raises(BadInputError, match="twice"):
        load_list(str(path))
    path.write_text('title = "t"\nsource = "s"\n[[models]]\nname = "a"\n')
    with pytest.raises(BadInputError, match="models"):
        load_list(str(path))


@pytest.mark.parametrize("name", ["../a", "/tmp/a", "a/b", "..", "", "a\\n"])
def test_names_of_a_list_stay_in_its_folder(tmp_path, name):
    path = tmp_path / "mine.toml"
    path.write_text(f'title = "t"\nsource = "s"\n[[model]]\nname = "{name}"\nmodel = "vit_digits"\n')
    with pytest.raises(BadInputError, match="names a folder of --out"):
        load_list(str(path))


def untrained(name, texts, limit=6, **options):
    pytest.importorskip("transformers", reason="pip install transformers")
    small = {"num_hidden_layers": 2, "intermediate_size": 64} | options
    return load_text_model(name, texts, limit, untrained=True, options=small)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * ("electra" not in name)) for name in ENCODERS]
)
def test_every_encoder_of_the_study_can_be_read(name, texts):
    """Queries, keys and values are those of the layer's own linear maps, and softmax(q k^T / sqrt(D)) v its output."""
    model, source = untrained(name, texts)
    config = configuration(f"transformers:{name}")
    (block,) = source.blocks(6)
    taps = find_taps(model)
    with listening(taps) as readings:
        call(model, block.inputs)
        found = [one.first(12) for one in readings()]
    assert len(found) == 2
    heads, width = config["num_attention_heads"], config["hidden_size"] // config["num_attention_heads"]
    for tap, reading in zip(taps, found, strict=True):
        assert reading.q.shape == (6, heads, 12, width)
        for part, x in (("query", reading.q), ("key", reading.k), ("value", reading.v)):
            linear = getattr(tap.module, part)
            expected = linear(reading.x).unflatten(-1, (heads, width)).transpose(1, 2)
            assert torch.allclose(x, expected, atol=1e-5), part
        weights = (reading.q @ reading.k.transpose(-2, -1) / width**0.5).softmax(-1)
        assert torch.allclose(weights @ reading.v, reading.h, atol=1e-5)


def test_a_list_is_measured_and_compared(tmp_path, texts, capsys):
    path = tmp_path / "mine.toml"
    config = 'config = { model_type = "bert", hidden_size = 24, num_hidden_layers = 2, num_attention_heads = 3 }'
    models = [("a", "vit_digits", ""), ("b", "symvit_digits", ""), ("c", "transformers:no/such", config)]
    entries = [f'[[model]]\nname = "{name}"\nmodel = "{model}"\n{more}\n' for name, model, more in models]
    path.write_text('title = "t"\nsource = "s"\n' + "".join(entries))
    out = tmp_path / "out"
    asked = ["--images", "3", "--claim", "value_vectors", "-o", str(out)]
    assert main(["diagnose", "--models", str(path), *asked]) == 0
    assert "not run: c: no --texts" in " ".join(capsys.readouterr().err.split())
    assert sorted(one.name for one in out.iterdir()) == ["README.md", "a", "b", "index.html"]
    page = (out / "index.html").read_text()
    assert "Not run" in page
    found = {name: load_diagnosis(out / name) for name in "ab"}
    head, rows = tables.model_matrix(found)
    assert head[0] == "Model"
    column = head.index("value vectors: linear cka")
    cka = found["b"].claims["value_vectors"].statistics["linear_cka"]
    assert rows[1][column] == f"{cka.estimate.value:.3g} ({cka.null.chance:.3g})"
    assert rows[1][column] in page
    options = ("digits", None, 3, None, None, "corrected", ["value_vectors"], None, None, None, 0, None)
    request = ModelRequest("vit_digits", name="a")
    assert Asked(*options).made(out / "a", request)  # is not measured again
    assert not Asked(*options[:2], 4, *options[3:]).made(out / "a", request)
    assert not Asked(*options).made(out / "c", request)
    for other in ({"untrained": True}, {"options": {"depth": 1}}):
        assert not Asked(*options).made(out / "a", replace(request, **other))


def test_the_study_of_texts_on_an_untrained_encoder(texts, capsys):
    pytest.importorskip("transformers", reason="pip install transformers")
    asked = ["--set=model.untrained=true", "--set", "model.num_hidden_layers=1", "--data", str(texts), "--images", "3"]
    name = "transformers:google/electra-small-discriminator"
    assert main(["diagnose", name, *asked, "--protocol", "saritas2025", "--json", "-q"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["layers"][0]["tokens"] == [128, 128]  # padding is measured
    assert done["protocol"]["images_of"] == {"study_nlp_value_vectors": 3, "study_nlp_norms": 2}
