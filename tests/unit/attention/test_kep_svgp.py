import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.kep_svgp import KEPSVGPAttention, kl_to_prior
from robustbench_kpca.attention.primal import PrimalAttention

BATCH, TOKENS, DIM, HEADS, RANK = 2, 5, 8, 2, 3
FORMS = pytest.mark.parametrize("form", ["sum", "concatenate"])


@pytest.fixture
def x(fork):
    return torch.randn(BATCH, TOKENS, DIM, dtype=torch.float64)


def noise(batch=BATCH, rank=RANK, seed=1):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(batch, HEADS, rank, rank, dtype=torch.float64, generator=rng)


def layer(form: str = "sum", *, dtype=torch.float64, moved: bool = True, **options) -> KEPSVGPAttention:
    torch.manual_seed(0)
    built = KEPSVGPAttention(
        DIM, HEADS, dtype=dtype, form=form, **({"tokens": TOKENS, "rank": RANK, "qkv_bias": True} | options)
    )
    if moved:
        with torch.no_grad():
            for parameter in (built.mean, built.log_scale, built.lower):
                parameter.add_(torch.randn_like(parameter) / 2)
    return built


def literal(built, x, eps):
    weights = {name: value.detach().numpy() for name, value in built.named_parameters()}
    scores = [part.detach().numpy() for part in built.scores(x)]
    batch, heads, tokens, rank = scores[0].shape
    lam = np.exp(weights["log_lam"])
    out = np.zeros((batch, tokens, heads, DIM // heads))
    for b in range(batch):
        for h in range(heads):
            e, r = scores[0][b, h], scores[1][b, h]
            v1 = (e + r if built.form == "sum" else np.concatenate([e, r])) @ np.diag(lam[h] ** 2)
            columns = []
            for c in range(rank):
                factor = np.diag(np.exp(weights["log_scale"][h, c]))
                for i in range(rank):
                    for j in range(i):
                        factor[i, j] = weights["lower"][h, c, i, j]
                v2 = v1 @ factor
                columns.append(v1 @ weights["mean"][h, :, c] + v2 @ eps[b, h, c].numpy())
            drawn = np.stack(columns, 1)
            if built.form == "concatenate":
                drawn = weights["merge.weight"] @ drawn + weights["merge.bias"][:, None]
            out[b, :, h] = drawn @ weights["mix.weight"].T + weights["mix.bias"]
    merged = out.reshape(batch, tokens, DIM)
    return torch.from_numpy(merged @ weights["proj.weight"].T + weights["proj.bias"])


@FORMS
@pytest.mark.parametrize("batch", [1, BATCH])
def test_the_sample_written_out(x, form, batch):
    built = layer(form)
    built.fixed_noise = noise(batch)
    assert torch.allclose(built(x[:batch]), literal(built, x[:batch], noise(batch)), rtol=0, atol=1e-10)


def test_both_penalties_are_those_of_their_formulas(fork, x):
    built = layer()
    lam, total = built.log_lam.exp(), 0.0
    for h in range(HEADS):
        for c in range(RANK):
            factor = built.lower[h, c].tril(-1) + torch.diag(built.log_scale[h, c].exp())
            prior = MultivariateNormal(torch.zeros(RANK, dtype=torch.float64), torch.diag(lam[h] ** -4))
            total += kl_divergence(MultivariateNormal(built.mean[h, :, c], factor @ factor.T), prior)
    assert torch.allclose(kl_to_prior(built.mean, built.factor(), built.log_lam), total, rtol=1e-10)
    built = layer()
    primal = PrimalAttention(DIM, HEADS, tokens=TOKENS, rank=RANK, qkv_bias=True, dtype=torch.float64)
    primal.scores.load_state_dict(built.scores.state_dict())
    with torch.no_grad():
        primal.lam.copy_(built.log_lam.exp())
    built(x)
    primal(x)
    assert torch.allclose(built.penalties["ksvd"], primal.penalties["ksvd"], rtol=1e-12)


@FORMS
def test_it_starts_at_the_prior(x, form):
    built = layer(form, moved=False)
    built(x)
    assert built.penalties["kl"].abs() < 1e-12
    moved = layer(form)
    moved(x)
    assert moved.penalties["kl"] > 1


@FORMS
@pytest.mark.parametrize("training", [True, False])
def test_every_pass_is_another_sample(x, form, training):
    built = layer(form).train(training)
    assert built.stochastic
    assert not torch.allclose(built(x), built(x), atol=1e-3)
    twice = built(x[:1].expand(2, -1, -1))
    assert not torch.allclose(twice[0], twice[1], atol=1e-3), "sequences share their noise"
    built.fixed_noise = noise()
    assert torch.equal(built(x), built(x))
    before = torch.get_rng_state()
    built(x)
    assert torch.equal(torch.get_rng_state(), before)


@FORMS
def test_the_samples_have_the_stated_mean(x, form):
    built = layer(form).eval()
    samples = built(x[:1].expand(20_000, -1, -1))
    built.fixed_noise = torch.zeros(1, HEADS, RANK, RANK, dtype=torch.float64)
    error = samples.std(0) / 20_000**0.5
    assert bool(((samples.mean(0) - built(x[:1])[0]).abs() < 5 * error).all())


@FORMS
def test_mixed_precision(x, form):
    built = layer(form, dtype=torch.float32)
    built.fixed_noise = noise()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = built(x.float())
    assert torch.allclose(mixed.float(), built(x.float()), atol=0.1)


def test_bad_options_and_calls(x):
    with pytest.raises(BadInputError, match="form = 'mean'"):
        layer("mean")
    with pytest.raises(BadInputError, match="KEPSVGPAttention"):
        layer(qk_norm=True)
    with pytest.raises(BadInputError, match=r"4 tokens.* 5"):
        layer()(x[:, :4])
    for call in ({"is_causal": True}, {"attn_mask": x}):
        with pytest.raises(BadInputError, match="mask"):
            layer()(x, **call)
