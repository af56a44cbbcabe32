import copy
import math

import numpy as np
import pytest
import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.primal import PrimalAttention, feature_map, ksvd_objective
from robustbench_kpca.attention.softmax import SoftmaxAttention

BATCH, TOKENS, DIM, HEADS, RANK = 2, 7, 12, 3, 3
FORMS = pytest.mark.parametrize("causal", [False, True])


@pytest.fixture
def x(fork):
    return torch.randn(BATCH, TOKENS, DIM, dtype=torch.float64)


def layer(causal: bool = False, *, rank_multi: int = 10, dtype=torch.float64, **options) -> PrimalAttention:
    torch.manual_seed(0)
    sizes = {"tokens": TOKENS, "rank": RANK, "rank_multi": rank_multi, "causal": causal, "qkv_bias": True}
    return PrimalAttention(DIM, HEADS, dtype=dtype, **(sizes | options))


def literal_scores(weights, x, causal, keep):
    """Every score from the formulas, one number at a time."""
    batch, tokens, dim = x.shape
    heads, _, rank = weights["scores.w_e"].shape
    width = dim // heads
    qk = x @ weights["scores.qk.weight"].T + weights["scores.qk.bias"]
    scores = np.zeros((2, batch, heads, tokens, rank))
    for part, name in enumerate(("scores.w_e", "scores.w_r")):
        for b in range(batch):
            for h in range(heads):
                own = slice(h * width, (h + 1) * width)
                data = np.eye(width) if causal else x[b, keep, own].T
                for n in range(tokens):
                    vector = (
                        qk[b, : n + 1, part * dim :][:, own].sum(0) / (n + 1) if causal else qk[b, n, part * dim :][own]
                    )
                    phi = vector / math.sqrt(sum(value**2 for value in vector))
                    for s in range(rank):
                        scores[part, b, h, n, s] = sum(
                            phi[d] * data[d, t] * weights[name][h, t, s]
                            for d in range(width)
                            for t in range(data.shape[1])
                        )
    return scores


def literal(built, x, causal, keep):
    """The outputs, and J of every sequence."""
    weights = {name: value.detach().numpy() for name, value in built.named_parameters()}
    e, r = literal_scores(weights, x.numpy(), causal, keep)
    batch, heads, tokens, _ = e.shape
    out, objective = np.zeros(x.shape), np.zeros(batch)
    for b in range(batch):
        for h in range(heads):
            for n in range(tokens):
                for scores in (e, r):
                    objective[b] += 0.5 * sum((scores[b, h, n] * weights["lam"][h]) ** 2) / (heads * tokens)
            objective[b] -= np.trace(weights["scores.w_e"][h].T @ weights["scores.w_r"][h]) / heads
        for n in range(tokens):
            parts = [np.concatenate([e[b, h, n], r[b, h, n]]) for h in range(heads)]
            mixed = [weights["mix.weight"] @ part + weights["mix.bias"] for part in parts]
            out[b, n] = weights["proj.weight"] @ np.concatenate(mixed) + weights["proj.bias"]
    return torch.from_numpy(out), torch.from_numpy(objective)


@pytest.mark.parametrize(
    ("causal", "rank_multi", "keep"),
    [(False, 10, range(7)), (False, 1, (0, 3, 6)), (False, 2, (0, 1, 2, 3, 4, 6)), (True, 10, ())],
)
def test_the_formulas_written_out(x, causal, rank_multi, keep):
    built = layer(causal, rank_multi=rank_multi)
    out, objective = literal(built, x, causal, list(keep))
    assert torch.allclose(built(x), out, rtol=0, atol=1e-10)
    loss = objective.square().mean() if causal else objective.mean().square()
    assert torch.allclose(built.penalties["ksvd"], loss, rtol=0, atol=1e-10)
    e, r = built.scores(x)
    ours = ksvd_objective(e, r, built.scores.w_e, built.scores.w_r, built.lam)
    assert torch.allclose(ours, objective, rtol=0, atol=1e-10)


def test_the_papers_lambda_and_parameter_counts(x, fork):
    # The paper: J = 1/2 mean e^T Lambda e + 1/2 mean r^T Lambda r - mean tr(W_e^T W_r), over heads and tokens.
    built = layer()
    e, r = built.scores(x)
    lam = built.lam.detach().square()  # the paper's
    spread = sum(torch.einsum("bhnr,hr,bhnr->b", one, lam, one) for one in (e, r)) / (e.shape[1] * e.shape[2])
    trace = torch.einsum("hpr,hpr->h", built.scores.w_e, built.scores.w_r).mean()
    ours = ksvd_objective(e, r, built.scores.w_e, built.scores.w_r, lam.sqrt())
    assert torch.allclose(ours, spread / 2 - trace, rtol=0, atol=1e-10)

    def count(module):
        return sum(parameter.numel() for parameter in module.parameters())

    assert count(SoftmaxAttention(384, 6, qkv_bias=True)) == 591_360
    assert count(PrimalAttention(384, 6, qkv_bias=True, tokens=197, rank=96, rank_multi=10)) == 683_392


@pytest.mark.parametrize(("rank", "rank_multi", "width"), [(2, 3, 6), (96, 10, 7), (1, 1, 1)])
def test_weights_see_p_tokens(fork, rank, rank_multi, width):
    scores = layer(rank=rank, rank_multi=rank_multi).scores
    assert scores.w_e.shape == scores.w_r.shape == (HEADS, width, rank)
    kept = scores.landmarks.tolist()
    assert len(set(kept)) == width
    assert kept == sorted(kept)
    assert kept[0] == 0
    assert width == 1 or kept[-1] == TOKENS - 1


@FORMS
def test_heads_start_with_norm_one_and_columns_that_are_not_orthonormal(fork, causal):
    built = layer(causal)
    for weight in (built.scores.w_e, built.scores.w_r):
        assert torch.allclose(weight.square().sum((1, 2)), torch.ones(HEADS, dtype=torch.float64))
        gram = (weight.transpose(1, 2) @ weight).detach()
        assert float((gram - gram.diagonal(dim1=1, dim2=2).diag_embed()).abs().max()) > 0.01
    assert 0 <= built.lam.min() < built.lam.max() <= 1


def at_the_singular_vectors(built, x):
    """Give a layer the weights with which its scores are the SVD of each head's kernel on one picture."""
    q, k = built.scores.qk(x)[0].detach().unflatten(-1, (2, HEADS, -1)).permute(1, 2, 0, 3)
    data = x[0].unflatten(-1, (HEADS, -1)).permute(1, 2, 0)
    a, b = (q / q.norm(dim=-1, keepdim=True) @ data).numpy(), (k / k.norm(dim=-1, keepdim=True) @ data).numpy()
    left, values, right = np.linalg.svd(a @ b.transpose(0, 2, 1) / x.shape[1])
    with torch.no_grad():
        built.scores.w_e.copy_(torch.from_numpy(b.transpose(0, 2, 1) @ right.transpose(0, 2, 1)[..., :RANK]))
        built.scores.w_r.copy_(torch.from_numpy(a.transpose(0, 2, 1) @ left[..., :RANK]))
        built.lam.copy_(torch.from_numpy(values[:, :RANK] ** -0.5))
    return torch.from_numpy(left[..., :RANK] * values[:, None, :RANK] * x.shape[1])


def test_at_a_kernel_svd_the_loss_is_zero_and_stationary(x):
    built, x = layer(), x[:1]
    left = at_the_singular_vectors(built, x)
    e, r = built.scores(x)
    assert torch.allclose(e[0], left, atol=1e-10)
    objective = ksvd_objective(e, r, built.scores.w_e, built.scores.w_r, built.lam)
    assert objective.abs() < 1e-12
    for gradient in torch.autograd.grad(objective.sum(), [built.scores.w_e, built.scores.w_r]):
        assert float(gradient.abs().max()) < 1e-12
    built(x)
    assert built.penalties["ksvd"] < 1e-24
    for parameter in (built.scores.w_e, built.scores.w_r, built.lam):
        moved = copy.deepcopy(built.eval()).train()
        target = dict(moved.named_parameters())[next(n for n, p in built.named_parameters() if p is parameter)]
        with torch.no_grad():
            target.mul_(1.1)
        moved(x)
        assert moved.penalties["ksvd"] > 1e-4


def test_the_causal_form_sees_no_later_token(x):
    built = layer(causal=True)
    x.requires_grad_()
    moved = torch.cat([x[:, :4], 100 * x[:, 4:] + 1], 1)
    assert torch.equal(built(x)[:, :4], built(moved)[:, :4])
    assert not torch.equal(built(x)[:, 4:], built(moved)[:, 4:])
    assert not torch.autograd.grad(built(x)[:, :4].square().sum(), x)[0][:, 4:].any()
    assert torch.equal(built(x, is_causal=True), built(x))
    assert torch.allclose(built(x[:, :4]), built(x)[:, :4], atol=1e-12), "any number of tokens"


def test_zero_tokens_and_half_precision(x):
    built = layer(qkv_bias=False, dtype=torch.float32)
    inputs = x.float()
    inputs[:, 2] = 0
    inputs.requires_grad_()
    built(inputs).sum().backward()
    assert bool(torch.isfinite(inputs.grad).all())
    assert not feature_map(torch.zeros(1, 1, 2, 3)).any()
    exact, rough = layer(dtype=torch.float32), layer(dtype=torch.bfloat16)
    exact.load_state_dict(rough.state_dict())
    assert torch.allclose(rough(x.bfloat16()).float(), exact(x.bfloat16().float()), atol=0.03)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = exact(x.float())
    assert torch.allclose(mixed.float(), exact(x.float()), atol=0.03)
    assert exact.penalties["ksvd"].dtype == torch.float32


@FORMS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_feature_maps_round_once(fork, causal, dtype):
    u = (300 * torch.randn(1, 2, 400, 8)).to(dtype)
    ours, exact = feature_map(u, causal=causal), feature_map(u.double(), causal=causal)
    assert ours.dtype == dtype
    assert float((ours - exact).abs().max()) <= 0.51 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": None}, "tokens"),
        ({"rank": 0}, "rank = 0"),
        ({"rank_multi": 0}, "rank_multi = 0"),
        ({"qk_norm": True}, "qk_norm .*PrimalAttention"),
        ({"scale_norm": True}, "attn_drop"),
        ({"attn_drop": 0.1}, "attn_drop"),
    ],
)
def test_bad_options(fork, options, message):
    with pytest.raises(BadInputError, match=message):
        layer(**options)


def test_bad_calls(x):
    with pytest.raises(BadInputError, match=r"5 tokens.* 7"):
        layer()(x[:, :5])
    for causal, call in ((False, {"is_causal": True}), (False, {"attn_mask": x}), (True, {"attn_mask": x})):
        with pytest.raises(BadInputError, match="mask"):
            layer(causal)(x, **call)


def test_it_is_copied_in_training_mode_without_its_graph(fork):
    """As averages of weights and several processes do; the penalties of a batch have a graph, which cannot be."""
    layer = PrimalAttention(8, 2, tokens=5, rank=2).train()
    layer(torch.randn(3, 5, 8))
    assert layer.penalties
    copied = copy.deepcopy(layer)
    assert not copied.penalties
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), copied.parameters(), strict=True))
