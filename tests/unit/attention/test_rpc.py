import math
import subprocess
import sys
import textwrap

import jaxtyping
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import create_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.attention.rpc import TINY, Pursuit, RPCAttention
from robustbench_kpca.attention.rpc_asymmetric import AsymmetricRPCAttention
from robustbench_kpca.attention.softmax import SoftmaxAttention
from robustbench_kpca.attention.symmetric import SymmetricAttention

THRESHOLDS = pytest.mark.parametrize("threshold", ["lam*mu", "lam/mu"])
SIGNS = pytest.mark.parametrize("dual_sign", [-1, 1])
CAUSAL = pytest.mark.parametrize("causal", [False, True])
WIDTHS = {"embed": 48, "head": 16}
DIM, HEADS, TOKENS = 12, 3, 7


def literal(k, v, n, *, lam, width, threshold, dual_sign=-1, causal=False, query=None):
    """Algorithm 1 with the dual variable Y, line by line (and nothing shared with the implementation)."""
    tokens, dim = k.shape[-2:]
    if causal:
        mu = torch.cat([t * width / (4 * k[:, :, :t].abs().sum((2, 3), keepdim=True)) for t in range(1, tokens + 1)], 2)
    else:
        mu = tokens * width / (4 * k.abs().sum((-2, -1), keepdim=True))
    bound = lam * mu if threshold == "lam*mu" else lam / mu
    hidden = (
        torch.full((tokens, tokens), -math.inf, dtype=k.dtype).triu(1) if causal else torch.zeros_like(k[0, 0, 0, 0])
    )
    low = y = torch.zeros_like(k)
    for _ in range(n):
        arg = k - low + y / mu
        sparse = arg.sign() * (arg.abs() - bound).clamp_min(0)
        inner = k - sparse + dual_sign * y / mu
        scores = (inner if query is None else query) @ inner.transpose(-2, -1) / math.sqrt(dim)
        low = (scores + hidden).softmax(-1) @ v
        y = y + mu * (k - low - sparse)
    return low


def keys_and_values(seed=0, std=1.0, dtype=torch.float64, shape=(2, 3, 17, 16)):
    rng = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=rng, dtype=torch.float64).mul(s).to(dtype) for s in (std, 1.0))


def distance(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize(("std", "mu_width", "lam"), [(0.3, "embed", 1.0), (1.0, "head", 4.0), (1.0, "embed", 4.0)])
@THRESHOLDS
@SIGNS
@CAUSAL
def test_the_scaled_form_equals_the_algorithm(std, mu_width, lam, threshold, dual_sign, causal):
    for n in (1, 2, 3, 6):
        pursuit = Pursuit(n, lam, threshold, mu_width, dual_sign=dual_sign)
        options = {"lam": lam, "width": WIDTHS[mu_width], "threshold": threshold, "dual_sign": dual_sign}
        k, v = keys_and_values(n, std)
        theirs = literal(k, v, n, causal=causal, **options)
        assert distance(pursuit(k, v, causal=causal), theirs) < 1e-10
        rounded = literal(k.float(), v.float(), n, causal=causal, **options)
        # n = 6 amplifies, in a few tokens, what either form rounds: then ours may be no worse than the transcription
        tolerance = max(1e-5, 3 * distance(rounded, theirs))
        assert distance(pursuit(k.float(), v.float(), causal=causal), rounded) < tolerance


@THRESHOLDS
@CAUSAL
def test_the_asymmetric_form_equals_its_algorithm(threshold, causal):
    for n in range(1, 7):
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
            k, v = keys_and_values(n, 0.6, dtype)
            q, _ = keys_and_values(n + 10, 1.0, dtype)
            theirs = literal(k, v, n, lam=4.0, width=48, threshold=threshold, causal=causal, query=q)
            assert distance(Pursuit(n, 4.0, threshold)(k, v, q, causal=causal), theirs) < tolerance


@THRESHOLDS
def test_gradients_equal_those_of_the_algorithm(threshold):
    grads = []
    for run in (Pursuit(4, 1.0, threshold), lambda k, v: literal(k, v, 4, lam=1.0, width=48, threshold=threshold)):
        k, v = (t.requires_grad_() for t in keys_and_values(std=0.6))
        grads.append(torch.autograd.grad(run(k, v).pow(3).sum(), (k, v)))
    for ours, theirs in zip(*grads, strict=True):
        assert distance(ours, theirs) < 1e-9


def test_mu_by_hand_and_in_half_precision():
    k = torch.arange(1.0, 13.0, dtype=torch.float64).view(1, 2, 3, 2) * torch.tensor([1.0, -1.0])
    embed, head = Pursuit().mu(k), Pursuit(mu_width="head").mu(k)
    assert embed.shape == head.shape == (1, 2, 1, 1)
    assert torch.allclose(embed.flatten(), torch.tensor([3 * 4 / (4 * 21), 3 * 4 / (4 * 57)], dtype=torch.float64))
    assert torch.allclose(head, embed / 2)
    assert torch.allclose(Pursuit(lam=3.0).bound(k), 3 * embed)
    assert torch.allclose(Pursuit(lam=3.0, threshold="lam/mu").bound(k), 3 / embed)
    k, _ = keys_and_values(std=100.0, dtype=torch.float16, shape=(1, 1, 197, 64))  # ||K||_1 is beyond float16
    assert Pursuit().mu(k).dtype == torch.float32
    assert torch.allclose(Pursuit().mu(k), Pursuit().mu(k.float()))
    assert float(Pursuit().mu(torch.zeros_like(k))) == pytest.approx(197 * 64 / (4 * TINY))


def test_the_released_threshold_grows_with_the_heads_and_falls_with_the_keys():
    """So the same lambda is another mechanism at another number of heads. For Gaussian keys, n = 1, S is a tail."""
    rng = torch.Generator().manual_seed(0)
    for heads in (3, 12):
        k = 1.1 * math.sqrt(math.pi / 2) * torch.randn(4, heads, 197, 64, generator=rng, dtype=torch.float64)
        bound = Pursuit(lam=4).bound(k)
        assert bound.flatten() == pytest.approx(4 * heads / (4 * k.abs().mean((-2, -1)).flatten()), rel=1e-12)
        share = float((k.abs() > bound).double().mean())
        assert share == pytest.approx(math.erfc(heads / 1.1 / (1.1 * math.sqrt(math.pi / 2)) / math.sqrt(2)), abs=2e-3)


@pytest.mark.parametrize(("mu_width", "width"), WIDTHS.items())
def test_the_causal_mu_is_that_of_every_prefix(mu_width, width):
    k, _ = keys_and_values()
    mu = Pursuit(mu_width=mu_width).mu(k, causal=True)
    assert mu.shape == (2, 3, 17, 1)
    for t in range(1, 18):
        assert torch.allclose(mu[:, :, t - 1 : t], t * width / (4 * k[:, :, :t].abs().sum((2, 3), keepdim=True)))
    window = Pursuit(mu_width=mu_width, mu_span="window")
    assert torch.equal(window.mu(k, causal=True), window.mu(k))
    assert torch.allclose(mu[:, :, -1:], window.mu(k))


@CAUSAL
@pytest.mark.parametrize("pursuit", [Pursuit(0), Pursuit(1, math.inf), Pursuit(1, math.inf, "lam/mu", dual_sign=1)])
def test_without_a_pursuit_it_is_symmetric_attention(pursuit, causal):
    k, v = keys_and_values()
    assert torch.equal(pursuit(k, v, causal=causal), F.scaled_dot_product_attention(k, k, v, is_causal=causal))


def test_without_a_sparse_part_the_second_iteration_attends_to_the_output_of_the_first():
    k, v = keys_and_values()
    first, second = (Pursuit(n, math.inf)(k, v) for n in (1, 2))
    assert torch.allclose(second, F.scaled_dot_product_attention(first, first, v), atol=1e-12)
    grads = []
    for lam in (math.inf, 1e9):
        k, v = (t.requires_grad_() for t in keys_and_values())
        Pursuit(3, lam)(k, v).square().sum().backward()
        grads.append(k.grad)
    assert torch.allclose(grads[0], grads[1], rtol=1e-9, atol=1e-12)


@THRESHOLDS
def test_the_second_iterations_argument_is_what_the_first_left(threshold):
    k, v = keys_and_values(std=2.0)
    seen = []
    out = Pursuit(3, 0.5, threshold)(k, v, observer=seen.append)
    assert [iterate.iteration for iterate in seen] == [1, 2, 3]
    first, second, third = seen
    assert float((first.sparse != 0).double().mean()) > 0.01
    assert torch.allclose(second.inner, first.low_rank + first.sparse - second.sparse, atol=1e-12)
    assert torch.equal(third.low_rank, out)
    assert third.query is third.inner


@THRESHOLDS
@SIGNS
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize(("causal", "mu_span"), [(False, "past"), (True, "past"), (True, "window")])
def test_gradients_flow_through_mu_as_released(threshold, dual_sign, causal, asymmetric, mu_span):
    inputs = [t.requires_grad_() for seed in (0, 1) for t in keys_and_values(seed, shape=(1, 2, 4, 3))]
    pursuit = Pursuit(3, 0.7, threshold, mu_span=mu_span, dual_sign=dual_sign)
    assert torch.autograd.gradcheck(lambda k, v, q, _: pursuit(k, v, q if asymmetric else None, causal=causal), inputs)


@pytest.mark.parametrize(("dual_sign", "asymmetric"), [(-1, True), (1, False)])
def test_second_derivatives_are_whole(dual_sign, asymmetric, fork):
    inputs = [t.requires_grad_() for seed in (0, 1) for t in keys_and_values(seed, shape=(1, 2, 4, 3))]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # others have first derivatives only
        run = Pursuit(3, 0.7, dual_sign=dual_sign)
        assert torch.autograd.gradgradcheck(lambda k, v, q: run(k, v, q if asymmetric else None), inputs[:3])


FORMS = {
    "softmax": {},
    "symmetric": {},
    "identity": {},
    "rpc": {"lam": 0.7},
    "rpc_asymmetric": {"lam": 0.7},
    "scaled": {"tokens": TOKENS},
    "primal": {"tokens": TOKENS, "rank": 2},
    "kep_svgp": {"tokens": TOKENS, "rank": 2},
}


def layer(name, **options):
    torch.manual_seed(0)
    built = ATTENTIONS.get(name)(DIM, HEADS, **{"qkv_bias": True} | FORMS[name] | options).double().eval()
    if name == "kep_svgp":
        built.fixed_noise = torch.randn(2, HEADS, 2, 2)
    return built


def moved(built):
    """Move its weights, because some begin at nought, where gradients vanish."""
    with torch.no_grad():
        for weight in built.parameters():
            weight.add_(torch.randn_like(weight) / 4)
    return built


@pytest.fixture
def x(fork):
    torch.manual_seed(1)
    return torch.randn(2, TOKENS, DIM, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in FORMS),
        ("scaled", {"form": "alpha"}), ("primal", {"causal": True}), ("kep_svgp", {"form": "concatenate"}),
    ],
)  # fmt: skip
def test_every_variant_is_differentiable_by_tokens_and_weights(name, options, x):
    built = moved(layer(name, **options)).train()
    weights = dict(built.named_parameters())

    def run(tokens, *values):
        out = torch.func.functional_call(built, dict(zip(weights, values, strict=True)), (tokens,))
        return out, *getattr(built, "penalties", {}).values()

    inputs = (x.requires_grad_(), *weights.values())
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    assert run(*inputs)[0].shape == x.shape


@pytest.mark.parametrize(
    ("name", "penalties", "weights"),
    [
        ("primal", ["ksvd"], ["lam", "scores.w_e", "scores.qk.weight"]),
        ("kep_svgp", ["kl", "ksvd"], ["mean", "log_scale", "lower", "log_lam", "scores.w_r"]),
    ],
)
def test_penalties_are_there_while_training_only(name, penalties, weights, x):
    built = moved(layer(name))
    built(x)
    assert built.penalties == {}
    built.train()(x)
    assert sorted(built.penalties) == penalties
    sum(built.penalties.values()).backward()
    grads = {name: weight.grad for name, weight in built.named_parameters()}
    assert all(grads[name].abs().max() > 0 for name in weights)
    assert grads["mix.weight"] is None
    built.eval()
    assert built.penalties == {}
    assert "scores.landmarks" not in built.state_dict()


@pytest.mark.parametrize(
    ("name", "options"),
    [("primal", {}), ("primal", {"causal": True}), ("kep_svgp", {}), ("kep_svgp", {"form": "concatenate"})],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 1e4])
@pytest.mark.parametrize(("batch", "tokens", "qkv_bias"), [(1, 1, True), (2, TOKENS, False)])
def test_extreme_inputs_and_their_penalties_stay_finite(name, options, dtype, scale, batch, tokens, qkv_bias, x):
    built = moved(layer(name, tokens=tokens, qkv_bias=qkv_bias, **options)).to(dtype).train()
    built.fixed_noise = None
    inputs = (x[:batch, :tokens] * scale).to(dtype).requires_grad_()
    out, penalties = built(inputs), built.penalties.values()
    assert (out.dtype, out.shape) == (dtype, (batch, tokens, DIM))
    assert {value.dtype for value in penalties} == {torch.float32}
    (out.sum() + sum(penalties)).backward()
    for tensor in (out, *penalties, inputs.grad, *(weight.grad for weight in built.parameters())):
        assert bool(torch.isfinite(tensor).all())


@pytest.mark.parametrize("name", ["rpc", "rpc_asymmetric"])
def test_one_mu_for_the_window_lets_the_past_see_the_future(name, x):
    built = layer(name, mu_span="window")
    moved = x.clone()
    moved[:, -1] += 3
    assert not torch.allclose(built(x, is_causal=True)[:, :-1], built(moved, is_causal=True)[:, :-1], atol=1e-6)


@pytest.mark.parametrize("n", [0, 4])
def test_the_asymmetric_layer_has_softmax_attentions_weights(n, x):
    plain, pursued = layer("softmax"), layer("rpc_asymmetric", iterations=n)
    pursued.load_state_dict(plain.state_dict())
    q, k, v = plain.qkv(x).view(2, TOKENS, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
    mixed = literal(k, v, n, lam=0.7, width=DIM, threshold="lam*mu", query=q)
    for causal in (False, True):
        ours = pursued(x, is_causal=causal)
        if n == 0:
            assert torch.equal(ours, plain(x, is_causal=causal))
        elif not causal:
            assert torch.allclose(ours, plain.proj(mixed.transpose(1, 2).flatten(2)), atol=1e-12)


def test_asymmetric_layers_normalise_before_the_pursuit_and_refuse_what_they_leave_out(x, fork):
    plain = SoftmaxAttention(DIM, HEADS, qk_norm=True, norm_layer=torch.nn.LayerNorm).double()
    pursued = AsymmetricRPCAttention(DIM, HEADS, qk_norm=True, norm_layer=torch.nn.LayerNorm, iterations=0).double()
    pursued.load_state_dict(plain.state_dict())
    assert torch.equal(pursued(x), plain(x))
    with pytest.raises(BadInputError, match="AsymmetricRPCAttention"):
        AsymmetricRPCAttention(DIM, HEADS, norm_layer=torch.nn.LayerNorm, scale_norm=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [0.0, 1e4])
@THRESHOLDS
@CAUSAL
def test_extreme_keys_stay_finite(dtype, scale, threshold, causal):
    q, _ = keys_and_values(1, dtype=dtype)
    for query, tokens in ((None, 1), (None, 17), (q, 17)):
        k, v = (t[:, :, :tokens].contiguous().requires_grad_() for t in keys_and_values(std=scale, dtype=dtype))
        out = Pursuit(4, 4.0, threshold)(k, v, query, causal=causal)
        assert out.dtype == dtype
        out.sum().backward()
        assert all(bool(torch.isfinite(t).all()) for t in (out, k.grad, v.grad))


@pytest.mark.parametrize("query", [False, True])
@CAUSAL
def test_nothing_of_the_size_of_the_attention_matrix_is_kept(query, causal):
    k, v = (t.requires_grad_() for t in keys_and_values(shape=(2, 3, 50, 8), dtype=torch.float32))
    q = torch.ones_like(k) if query else None

    def kept(run):
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(t.shape), lambda t: t):
            run()
        return [shape for shape in shapes if shape[-2:] == (50, 50) or shape.numel() > k.numel()]

    assert kept(lambda: Pursuit(4)(k, v, q, causal=causal)) == []
    assert len(kept(lambda: literal(k, v, 4, lam=4.0, width=24, threshold="lam*mu", causal=causal, query=q))) >= 4


def test_dropout_acts_in_the_last_iteration_of_training_only(x):
    dropped = layer("rpc", attn_drop=0.5)
    assert torch.equal(dropped(x), layer("rpc")(x))
    dropped.train()
    seen = []
    dropped.observer = seen.append
    out = dropped(x)
    whole = []
    dropped.eval().observer = whole.append
    assert not torch.allclose(out, dropped(x))
    for ours, theirs in zip(seen[:-1], whole[:-1], strict=True):
        assert torch.equal(ours.low_rank, theirs.low_rank)


@pytest.mark.slow
def test_it_compiles_as_one_graph():
    code = """
        import torch
        from robustbench_kpca import load_model
        from robustbench_kpca.attention import ATTENTIONS

        def results(run, model, x):
            x = x.clone().requires_grad_()
            out = run(x)
            loss = out.square().sum() + sum(getattr(model, "penalties", {}).values())
            return out, *torch.autograd.grad(loss, (x, *model.parameters()), materialize_grads=True)

        sizes = {"tokens": 11, "rank": 3}
        contenders = [
            (ATTENTIONS.get(name)(24, 3, qkv_bias=True, **options), torch.randn(2, 11, 24))
            for name, options in (
                ("rpc", {"threshold": "lam*mu"}), ("rpc", {"threshold": "lam/mu"}),
                ("rpc_asymmetric", {"threshold": "lam*mu"}), ("rpc_asymmetric", {"threshold": "lam/mu"}),
                ("primal", sizes), ("primal", sizes | {"rank_multi": 1}), ("primal", sizes | {"causal": True}),
                ("kep_svgp", sizes | {"form": "sum"}), ("kep_svgp", sizes | {"form": "concatenate"}),
            )
        ]
        contenders.append((load_model("rpc_symvit_digits"), torch.rand(2, 3, 32, 32)))
        for model, x in contenders:
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
            for mode in (True, False):
                model.train(mode).fixed_noise = torch.randn(2, 3, 3, 3)
                for ours, theirs in zip(results(compiled, model, x), results(model, model, x), strict=True):
                    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))
                if hasattr(model, "merge"):
                    model.fixed_noise = None
                    assert not torch.allclose(compiled(x), compiled(x), atol=1e-3), "every call draws anew"
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300)  # no type checker there


@pytest.mark.parametrize(
    "options",
    [
        {"iterations": -1}, {"lam": 0}, {"lam": math.nan}, {"threshold": "mu"}, {"mu_width": "x"},
        {"mu_span": "future"}, {"dual_sign": 0}, {"qk_norm": True}, {"scale_norm": True},
    ],
)  # fmt: skip
def test_bad_options(fork, monkeypatch, options):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would be the first to complain
    with pytest.raises(BadInputError, match="expected"):
        RPCAttention(48, 3, **options)


@pytest.mark.parametrize("name", ["symmetric", "identity", "rpc", "rpc_asymmetric"])
def test_a_mask_is_refused(name, x):
    with pytest.raises(BadInputError, match="is_causal=True"):
        layer(name)(x, attn_mask=torch.ones(TOKENS, TOKENS))


def test_parameters_and_initialisation(fork):
    plain = create_model("symvit_digits")
    torch.manual_seed(0)
    robust = create_model("rpc_symvit_all_digits")
    assert list(plain.state_dict()) == list(robust.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), robust.parameters(), strict=True))
    assert "blocks.0.attn.qkv.weight" in robust.state_dict()
    assert [type(block.attn).__name__ for block in robust.blocks] == ["RPCAttention"] * 4
    model = create_model("symvit_tiny_patch16_224")
    assert sum(p.numel() for p in model.parameters()) == 5_272_744  # the paper's "5.2 M"
    with pytest.raises(BadInputError, match="48 with 5 heads"):
        SymmetricAttention(48, 5)


def test_symmetric_pursuit_under_softmax_attention_keeps_keys_and_values(fork):
    plain = create_model("vit_digits")
    torch.manual_seed(0)
    robust = create_model("rpc_vit_sym_digits")
    assert [type(block.attn).__name__ for block in robust.blocks] == ["RPCAttention"] + ["SoftmaxAttention"] * 3
    state = plain.state_dict()
    for name, value in robust.state_dict().items():
        kept = state[name][48:] if name.startswith("blocks.0.attn.qkv") else state[name]
        assert torch.equal(value, kept), name
    assert robust.blocks[0].attn.qkv.weight.shape == (96, 48)
