"""What networks cost: operations and parameters as counted by hand, memory and time as arranged, and the page."""

import itertools
import re

import pytest
import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.study.reproduction.efficiency import load_costs, spelled
from robustbench_kpca.study.reproduction.measuring import Pass, interleaved, passes_of, peak_bytes, subject_of

N, C, CLASSES, DEPTH, HIDDEN = 5, 12, 7, 2, 36
SHAPE = {
    "img_size": 16, "patch_size": 8, "embed_dim": C, "depth": DEPTH, "num_heads": 3, "num_classes": CLASSES,
    "mlp_ratio": HIDDEN / C,
}  # fmt: skip
PATCHES = 2 * 4 * 3 * 8 * 8 * C


def counted(model, tokens=None, batch=2, **options):
    """Return parameters, and operations of one sample at test and in training."""
    subject = subject_of(ModelRequest(model, untrained=True, options=SHAPE | options), tokens, batch, "cpu")
    ((test, training),) = passes_of([subject], 1, "cpu")
    return subject.parameters, test.operations / batch, training.operations / batch


def vit(projections, mixings):
    """Count by hand: attention of so many projections of width C, mixing each layer so many times."""
    mixing = sum(mixings) * 4 * N * N * C  # scores, and their product with the values
    layer = projections * 2 * N * C * C + 2 * N * C * C + 2 * 2 * N * C * HIDDEN
    return PATCHES + DEPTH * layer + mixing + 2 * C * CLASSES


@pytest.mark.parametrize(
    ("model", "options", "projections", "mixings"),
    [
        ("vit_digits", {}, 3, [1, 1]),
        ("rpc_symvit_digits", {"iterations": 4}, 2, [4, 1]),
    ],
)
def test_a_vit_costs_what_its_products_cost(model, options, projections, mixings):
    parameters, test, training = counted(model, **options)
    norms, biases = 2 * 2 * C, (projections + 1) * C + HIDDEN + C
    layer = (projections + 1) * C * C + 2 * C * HIDDEN + norms + biases
    assert parameters == (3 * 8 * 8 + 1) * C + C + N * C + DEPTH * layer + 2 * C + (C + 1) * CLASSES
    assert test == vit(projections, mixings)
    assert training == 3 * test - PATCHES, "each product has a gradient for both factors, but for the pictures"


@pytest.mark.parametrize("side", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_softmax_grows_with_the_square_of_the_tokens_and_primal_in_proportion(side):
    tokens, rank, multi = side**2 + 1, 3, 10
    parameters, test, training = counted("vit_digits", tokens)
    assert (parameters, test) == (4 * C * C + 4 * C, 8 * tokens * C**2 + 4 * tokens**2 * C)
    assert training == 3 * test
    parameters, test, training = counted("primal_vit_digits", tokens, rank=rank, rank_multi=multi)
    chosen = min(tokens, rank * multi)
    mix = 2 * rank * (C // 3) + C // 3
    assert parameters == 3 * C * C + 3 * C + 2 * 3 * chosen * rank + 3 * rank + mix
    scores = 2 * 2 * C * rank * (chosen + tokens)  # of queries and of keys: the weights of the data, and their use
    assert test == 6 * tokens * C**2 + scores + 4 * tokens * rank * C
    assert training == 3 * test


@pytest.mark.slow
@pytest.mark.parametrize("model", ["primal_listops", "rpc_waves", "symvit_shapes", "primal_lm_tiny", "fan_digits"])
def test_words_signals_and_scenes_are_measured_too(model):
    name = {"primal_listops": "primal_seq_listops", "rpc_waves": "rpc_seq_waves"}.get(model, model)
    subject = subject_of(ModelRequest(name, untrained=True), None, 2, "cpu")
    ((test, training),) = passes_of([subject], 2, "cpu")
    assert 2 * test.operations < training.operations <= 3 * test.operations
    assert 0 < test.peak_bytes < training.peak_bytes
    assert len(test.seconds) == len(training.seconds) == 2


def test_calls_take_turns_and_memory_is_of_what_lives_together():
    now, order = itertools.count(), []
    seconds = interleaved([lambda: order.append("a"), lambda: order.append("b")], 2, lambda: float(next(now)))
    assert (order, seconds) == (["a", "b", "a", "b"], [[1.0, 1.0], [1.0, 1.0]])
    found = Pass(operations=1, seconds=(1.0, 2.0, 5.0), peak_bytes=1)
    assert (found.time, found.spread) == (2.0, 1.5)
    x = torch.ones(1000)
    assert peak_bytes(lambda: x + x) == 4000
    assert peak_bytes(lambda: (x + x) + (x * x)) == 12_000
    assert peak_bytes(lambda: [(x + x).sum() for _ in range(3)]) == 4000 + 3 * 4
    with pytest.raises(BadInputError, match="tokens = 18; expected a square"):
        subject_of(ModelRequest("vit_digits", untrained=True), 18, 1, "cpu")


@pytest.mark.parametrize("model", ["fan_digits", "symvit_shapes", "softmax_seq_waves", "softmax_lm_tiny"])
def test_a_number_of_tokens_is_asked_of_a_vit(model):
    with pytest.raises(BadInputError, match=f"tokens = 17 of {model}; expected a ViT"):
        subject_of(ModelRequest(model, untrained=True), 17, 1, "cpu")


@pytest.mark.parametrize(
    ("value", "text"), [(2.423e9, "2.42 G"), (12_345, "12.3 k"), (999, "999 "), (0.0345, "34.5 m"), (2e-7, "0.20 µ")]
)
def test_numbers_are_short(value, text):
    assert spelled(value) == text


PACK = """
title = "Costs"
source = "Nobody (2026)"
intro = "Said."
[embedded]
intro = "Small."
[paper]
intro = "Large."
[paper.arms]
plain = { title = "Plain", models = ["symvit_digits"] }
rpc = { title = "RPC", recipe = "rpc_symvit_digits", seeds = [0, 1], set = { "model_options.iterations" = 3 } }
"""
ITEM = 'kind = "efficiency"\ntitle = "Cost"\nintro = "Said."\narms = ["plain", "rpc"]\nbatch_size = 2\nrepeats = 3\n'


@pytest.mark.slow
def test_a_pack_measures_what_its_models_cost_without_data_and_keeps_it(tmp_path, capsys):
    folder, out = tmp_path / "costs", tmp_path / "out"
    folder.mkdir()
    (folder / "pack.toml").write_text(PACK)
    (folder / "table-1.toml").write_text(ITEM)
    (folder / "by-tokens.toml").write_text(f"{ITEM}tokens = [5, 17]\n")
    command = ["reproduce", str(folder), "-o", str(out), "-q", "--device", "cpu"]
    assert main(command) == 0
    costs = load_costs(out / "table-1")
    assert [(row.title, row.model) for row in costs.rows] == [
        ("Plain", "symvit_digits+untrained"),
        ("RPC", "rpc_symvit_digits+iterations=3+untrained"),
    ]
    page = (out / "table-1" / "README.md").read_text()
    ratio = costs.rows[1].test.operations / costs.rows[0].test.operations
    assert f"(× {ratio:.2f})" in page
    for fact in (f"torch {torch.__version__.partition('+')[0]}", f"{costs.environment.threads} thread", "medians of 3"):
        assert fact in page
    by_tokens = (out / "by-tokens" / "README.md").read_text()
    assert re.findall(r"(\d+) × 48", by_tokens) == ["5", "17", "5", "17"]
    assert "<svg" in (out / "by-tokens" / "tokens.svg").read_text()
    capsys.readouterr()
    (folder / "by-tokens.toml").write_text(f"{ITEM}tokens = [5]\n")
    assert main([*command, "--plan"]) == 0
    assert re.findall(r"models +(\S+) +(\w+)", capsys.readouterr().out) == [("by-tokens", "open"), ("table-1", "done")]
    assert main([*command, "--item", "table-1"]) == 0
    assert load_costs(out / "table-1") == costs
