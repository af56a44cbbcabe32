import json
import math
from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
import timm
import torch

from robustbench_kpca import create_model, evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError, UnknownNameError
from robustbench_kpca.audit.preflight import leaking_places
from robustbench_kpca.models import ARCHITECTURES
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.models.checkpoint import parameters_sha256
from robustbench_kpca.models.loading import bundled
from robustbench_kpca.models.operations import operations_of, size_of


@pytest.fixture
def images():
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_models_take_pixels_and_weights_must_be_asked_for(fork, images):
    model = create_model("vit_digits")
    seen = []
    model.patch_embed.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model(images)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(seen[0], (images - mean.view(3, 1, 1)) / std.view(3, 1, 1))
    assert not any("pixel" in key for key in model.state_dict())
    with pytest.raises(BadInputError, match="--checkpoint"):
        load_model("vit_tiny_patch16_224")
    assert load_model("vit_digits", untrained=True).training is False


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit_digit", {}, "did you mean 'vit_digits'"),
        ("rpc_symvit_digits", {"iteration": 2}, "'iteration'.*did you mean 'iterations'"),
        ("vit_digits", {"iterations": 2}, "'iterations'"),
        ("scaled_vit_digits", {"form": "beta"}, "'matrix' or 'alpha'"),
        ("rpc_symvit_digits", {"layers": "frist"}, "'first', 'quarter', 'last', 'all' .*0 to 3"),
        ("rpc_symvit_digits", {"layers": [4]}, "0 to 3"),
        ("vit_digits", {"num_heads": 5}, "width 48 with 5 heads"),
        ("vit_digits", {"depth": 0}, "depth = 0"),
        *(("vit_digits", {"mlp_ratio": x}, "mlp_ratio = .*above 0") for x in (math.inf, 0.0, 1e12, "a")),
        ("rpc_symvit_digits", {"iterations": 2.5}, "iterations = 2.5"),
    ],
)
def test_bad_names_and_options(fork, name, options, message):
    with pytest.raises(BadInputError, match=message):
        create_model(name, **options)


def test_the_configuration_is_whole_and_builds_the_same_model(fork):
    model = create_model("rpc_symvit_digits", lam=3.0)
    assert model.config["lam"] == 3.0
    assert model.config["iterations"] == 4
    assert model.config["layers"] == "first"
    assert model.config["embed_dim"] == 48
    again = create_model(**model.config)
    again.load_state_dict(model.state_dict())
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(x), again(x))


def test_every_architecture_answers(fork, images):
    for name in (name for name, (_, size) in ARCHITECTURES.items() if size in ("digits", "cifar")):
        model = create_model(name, num_classes=7)
        with torch.no_grad():
            logits = model(images)
        assert logits.shape == (2, 7), name
        assert bool(torch.isfinite(logits).all()), name
        assert not model.training, name
        assert create_model(**model.config).state_dict().keys() == model.state_dict().keys(), name


@pytest.mark.parametrize(
    ("layers", "placed"),
    [("last", [3]), ("first", [0]), ("all", [0, 1, 2, 3]), (1, [1]), ([0, 2], [0, 2])],
)
def test_where_the_special_attention_goes(fork, images, layers, placed):
    model = create_model("rpc_symvit_digits", layers=layers)
    found = [i for i, block in enumerate(model.blocks) if type(block.attn).__name__ == "RPCAttention"]
    assert found == placed
    assert model(images).shape == (2, 10)


@pytest.mark.parametrize(("name", "size", "crop"), [("rpc_symvit_digits", 32, 0.875), ("rpc_fan_cifar", 32, 1.0)])
def test_timms_data_pipeline_hands_over_pixels_in_0_1(fork, name, size, crop):
    config = timm.data.resolve_model_data_config(create_model(name))
    assert config["mean"] == (0.0, 0.0, 0.0)
    assert config["std"] == (1.0, 1.0, 1.0)
    assert (config["input_size"], config["crop_pct"], config["interpolation"]) == ((3, size, size), crop, "bicubic")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:resnet5", "no timm model named"),
        ("no.such.module:f", "there is no module no.such.module"),
        ("builtins:dict", "dict.*torch.nn.Module"),
    ],
)
def test_foreign_models_that_fail(name, message):
    with pytest.raises((BadInputError, UnknownNameError), match=message):
        load_model(name)


def test_bundled_models_are_small_and_say_where_they_come_from():
    words = {name: path for name, path in bundled().items() if "_lm_" in name}
    assert len(bundled()) - len(words) == 16
    assert sum(path.stat().st_size for path in bundled().values()) <= 5_400_000
    assert sum(path.stat().st_size for path in words.values()) <= 1_000_000
    for name, path in bundled().items():
        header = read_header(path)
        assert header["name"] == name
        scenes = name.endswith("_shapes")
        if name not in words:
            reached, least = ("val_miou", 0.8) if scenes else ("test_accuracy", 0.95)
            assert float(header[reached]) >= least
        assert len(header["revision"]) >= 40
        assert len(header["density_revision"]) >= 40
        assert sum(p.numel() for p in load_model(name).parameters()) <= (151_000 if scenes else 125_000)


def test_one_mu_for_the_window_would_leak_in_the_bundled_language_model():
    rpc = load_model("rpc_lm_tiny")
    words = torch.from_numpy(load_data("grammar", "test").stream[:32]).float().view(1, 1, 1, 32)
    assert int(leaking_places(rpc, words, cuts=32).sum()) == 0
    rpc.blocks[0].attn.pursuit = replace(rpc.blocks[0].attn.pursuit, mu_span="window")
    assert int(leaking_places(rpc, words, cuts=32).sum()) > 0, (
        "its sparse part is not empty, so one mu for the window would leak"
    )


def test_models_that_draw_noise_are_marked_and_not_evaluated(capsys):
    from robustbench_kpca.cli.main import main
    from robustbench_kpca.models.families import is_stochastic

    assert is_stochastic("kep_svgp_vit_digits")
    assert not is_stochastic("primal_vit_digits")
    assert main(["list", "models", "--json"]) == 0
    remarks = {row["name"]: row["remark"] for row in json.loads(capsys.readouterr().out)}
    assert "expectation over transformation" in remarks["kep_svgp_vit_digits"]
    assert remarks["primal_vit_digits"] == ""
    model = load_model("kep_svgp_vit_digits", untrained=True)
    with pytest.raises(BadInputError, match="noise"):
        evaluate(model, "digits", protocol="clean", audit=False)


COSTS = Path(__file__).parents[3] / "leaderboards" / "teo2024" / "table-13" / "efficiency.json"
ROWS = {row["title"]: row for row in json.loads(COSTS.read_text())["rows"]}


@pytest.mark.parametrize("title", ROWS)
def test_operations_are_those_that_torch_counts(title):
    name, *options = [part for part in ROWS[title]["model"].split("+") if part != "untrained"]
    settings = {key: int(value) for key, _, value in (option.partition("=") for option in options) if value.isdecimal()}
    share = operations_of(name, settings) / (ROWS[title]["test"]["operations"] / 8)
    exact = "FAN" not in title and "scaled" not in title and "layer 1, ViT" not in title
    assert share == 1 if exact else 0.8 < share < 1.01
    assert size_of(name, settings) == pytest.approx(ROWS[title]["parameters"], rel=0.4 if "(S)" in title else 0.3)


def test_other_backbones_and_language_models():
    assert operations_of("rpc_seq_listops", {}) is None
    assert operations_of("symvit_segmenter_tiny", {}) > 10 * operations_of("symvit_tiny_patch16_224", {}) > 0
    assert size_of("rpc_lm_paper", {}) == pytest.approx(43.8e6, rel=0.02), "the decoder has 43.76 million"
    blocks = 16 * (2 * 256 * 128 * (3 * 128 + 2 * 2048) + 4 * 256**2 * 128)
    assert operations_of("symmetric_lm_paper", {}) == blocks + 2 * 256 * 128 * 20_000
    assert operations_of("rpc_lm_paper", {}) == operations_of("symmetric_lm_paper", {}) + 12 * 4 * 256**2 * 128


HOME = Path(__file__).parents[3] / "leaderboards"
WEIGHTS = sorted(HOME.glob("*/trainings/*/*.safetensors"))


@cache
def parameters(board):
    """Name of a model -> the digests of its weights, as the records beside a board have them."""
    digests = defaultdict(set)
    for path in (board / "records").glob("*.record.json"):  # long names are shortened in names of files
        model = json.loads(path.read_text())["spec"]["model"]
        digests[model["name"]].add(model["parameters_sha256"])
    return digests


FIRST = {board: min(paths) for board, paths in groupby(WEIGHTS, lambda path: path.parents[2])}
"""One of each board; the others are read with the long tests."""


@pytest.mark.parametrize(
    "path",
    [path if path in FIRST.values() else pytest.param(path, marks=pytest.mark.slow) for path in WEIGHTS],
    ids=lambda path: path.stem,
)
def test_committed_weights_are_those_of_the_records(path):
    options = json.loads(read_header(path)["config"])
    model = load_model(options.pop("name"), path, **options)
    assert parameters(path.parents[2])[path.stem] == {parameters_sha256(model)}
