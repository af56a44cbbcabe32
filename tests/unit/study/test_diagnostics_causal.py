"""The claims on language models: layers are read as they compute, and what a later word would change is left out."""

import json
import math

import pytest
import torch

from robustbench_kpca import create_model, load_data
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.rpc import Pursuit
from robustbench_kpca.cli.main import main
from robustbench_kpca.study.diagnostics.claims import mixing
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.pursuits import traces
from robustbench_kpca.study.diagnostics.sources import WindowSource
from robustbench_kpca.study.diagnostics.taps import find_taps, listening

READ = [
    ("softmax_lm", {}), ("symmetric_lm", {}), ("rpc_lm", {"iterations": 0}), ("scaled_lm", {}),
    ("scaled_lm", {"form": "matrix"}),
]  # fmt: skip


def build(family, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = create_model(f"{family}_tiny", window=9, **options)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim == 2:
                value.mul_(4)
            elif name.endswith("attn.s"):
                value.fill_(0.5)
    return model


@pytest.fixture
def words():
    return torch.randint(0, 50, (2, 1, 1, 9), generator=torch.Generator().manual_seed(0)).float()


@pytest.mark.parametrize("design", ["modern", "paper"])
@pytest.mark.parametrize(("family", "options"), READ)
def test_what_is_read_is_what_the_softmax_sees(family, options, design, words):
    """The outputs of a layer follow from its reading, by the masked softmax written out; RPC with 0 iterations."""
    model = build(family, design=design, **options)
    taps = find_taps(model)
    with listening(taps) as readings, torch.no_grad():
        model(words)
        found = readings()
    assert len(found) == 2
    later = torch.ones(9, 9).triu(1).bool()
    for reading in found:
        assert reading.causal
        scores = (reading.q @ reading.k.transpose(-2, -1) / 4).masked_fill(later, -math.inf)
        assert torch.allclose(scores.softmax(-1) @ reading.v, reading.h, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_a_pursuit_is_traced_with_the_mask_of_its_layer(fork, causal):
    module = torch.nn.Module()
    module.pursuit, module.num_heads = Pursuit(2, 0.5), 2
    k, v = (torch.randn(3, 2, 6, 4, dtype=torch.float64) for _ in range(2))
    layer = Layer(0, "x", module, k, k, k, v, v, (0, 1), tuple("abc"), 0, causal)
    found = traces(layer)
    assert torch.allclose(found.own[-1].low_rank, module.pursuit(k, v, causal=causal))
    weights = mixing.weights(found.unpursued)
    scores = k @ k.transpose(-2, -1) / 2
    expected = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf) if causal else scores
    assert torch.allclose(weights, expected.softmax(-1))
    assert all(step.causal == causal for step in found.random)


def test_windows_are_spread_over_the_text(words):
    text = load_data("grammar", "test")
    source = WindowSource(text, 9, 3)
    (block,) = source.blocks(5)
    assert block.ids == tuple(str(number * (len(text.stream) - 8) // 3) for number in range(3))
    for words, start in zip(block.inputs[:, 0, 0].tolist(), map(int, block.ids), strict=True):
        assert words == text.stream[start : start + 9].tolist()
    assert (source.info().n, source.info().task) == (3, "language")
    with pytest.raises(BadInputError, match="at least 99999"):
        WindowSource(text, 99_999, 1)


APPLY = {"eigenvalues", "gamma", "value_vectors", "decomposition", "low_rank", "mixing", "sparsity"}


def test_the_command_diagnoses_a_language_model(capsys):
    options = ["--set=model.untrained=true", "--data", "grammar", "--images", "5", "--json", "-q"]
    assert main(["diagnose", "rpc_lm_tiny", *options]) == 0
    done = json.loads(capsys.readouterr().out)
    tested = {name for name, judged in done["claims"].items() if judged["statistics"]}
    assert tested == APPLY
    assert [layer["tokens"] for layer in done["layers"]] == [[32, 32]] * 2
    assert main(["diagnose", "rpc_lm_tiny", "--set=model.untrained=true", "-q"]) == 2
    assert "'digits' is for classification" in capsys.readouterr().err
