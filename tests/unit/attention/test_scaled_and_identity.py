import pytest
import torch

from robustbench_kpca import create_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.identity import IdentityAttention
from robustbench_kpca.attention.scaled import ScaledAttention
from robustbench_kpca.attention.softmax import SoftmaxAttention

TOKENS, DIM, HEADS = 7, 12, 3


@pytest.fixture
def x(fork):
    return torch.randn(2, TOKENS, DIM, dtype=torch.float64)


def layer(form: str, *, seed: int = 0, s: float | None = None) -> ScaledAttention:
    torch.manual_seed(seed)
    built = ScaledAttention(DIM, HEADS, tokens=TOKENS, form=form, qkv_bias=True).double()
    if s is not None:
        with torch.no_grad():
            built.s.copy_(torch.randn_like(built.s) * s)
    return built


@pytest.mark.parametrize("form", ["matrix", "alpha"])
def test_it_starts_as_softmax_attention(x, form):
    plain = SoftmaxAttention(DIM, HEADS, qkv_bias=True).double()
    scaled = layer(form)
    scaled.load_state_dict(plain.state_dict(), strict=False)
    assert torch.allclose(scaled(x), plain(x), atol=1e-12)


@pytest.mark.parametrize("form", ["matrix", "alpha"])
def test_equation_12_written_out(x, form):
    scaled = layer(form, s=0.3)
    q, k, v = scaled.qkv(x).view(2, TOKENS, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
    root = (DIM // HEADS) ** 0.5
    share = scaled.s if form == "matrix" else scaled.s * (k @ k.transpose(-2, -1) / root).softmax(-1)
    mixed = (q @ k.transpose(-2, -1) / root).softmax(-1) @ (torch.eye(TOKENS, dtype=torch.float64) - share) @ v
    assert torch.allclose(scaled(x), scaled.proj(mixed.transpose(1, 2).reshape(2, TOKENS, DIM)), atol=1e-12)
    assert not torch.allclose(scaled(x), layer(form)(x), atol=1e-3)


def test_remark_3_written_out(fork):
    """S of equation 12, g(k_j') / (N g(k_j)) with g of the kernel, is A_sym / A_sym^T / N: the kernel is symmetric."""
    k = torch.randn(TOKENS, DIM, dtype=torch.float64)
    kernel = (k @ k.T / DIM**0.5).exp()
    g, symmetric = kernel.sum(1), (k @ k.T / DIM**0.5).softmax(-1)
    assert torch.allclose(g[None] / g[:, None] / TOKENS, symmetric / symmetric.T / TOKENS)


@pytest.mark.parametrize("form", ["matrix", "alpha"])
@pytest.mark.parametrize("tokens", [TOKENS, 4])
def test_the_causal_form_written_out(x, form, tokens):
    """V'_t = V_t - sum of S_tj V_j over j <= t, and softmaxes over j <= t, number by number."""
    scaled = layer(form, s=0.3)
    x = x[:1, :tokens]
    width = DIM // HEADS
    q, k, v = scaled.qkv(x).view(tokens, 3, HEADS, width).permute(1, 2, 0, 3)
    rows = []
    for head in range(HEADS):
        values = []
        for t in range(tokens):
            to_earlier = (k[head, : t + 1] @ k[head, t] / width**0.5).softmax(0)
            share = scaled.s[head, t, : t + 1] if form == "matrix" else scaled.s * to_earlier
            values.append(v[head, t] - share @ v[head, : t + 1])
        seen = torch.stack(values)
        weights = [(k[head, : t + 1] @ q[head, t] / width**0.5).softmax(0) for t in range(tokens)]
        rows.append(torch.stack([weight @ seen[: len(weight)] for weight in weights]))
    assert torch.allclose(scaled(x, is_causal=True)[0], scaled.proj(torch.cat(rows, -1)), atol=1e-12)


def test_parameter_counts_and_the_length_of_the_matrix(fork, x):
    count = {
        form: sum(p.numel() for p in create_model("scaled_vit_tiny_patch16_224", form=form, depth=2).parameters())
        for form in ("matrix", "alpha")
    }
    plain = sum(p.numel() for p in create_model("vit_tiny_patch16_224", depth=2).parameters())
    assert count["alpha"] == plain + 2
    assert count["matrix"] == plain + 2 * 3 * 197**2
    with pytest.raises(BadInputError, match=r"5 tokens.* 7"):
        layer("matrix")(x[:, :5])
    assert layer("alpha")(x[:, :5]).shape == (2, 5, DIM)


def test_identity_keeps_every_token_to_itself_and_shares_its_weights_with_rpc(x, fork):
    layer = IdentityAttention(DIM, HEADS, qkv_bias=True).double()
    values = layer.qkv(x)[..., DIM:]
    assert torch.allclose(layer(x), layer.proj(values), atol=1e-12)
    moved = x.clone()
    moved[:, 3] += 1
    assert torch.equal(layer(moved)[:, :3], layer(x)[:, :3])
    rpc, identity = create_model("rpc_symvit_digits"), create_model("identity_symvit_digits")
    identity.load_state_dict(rpc.state_dict())


@pytest.mark.parametrize("option", ["qk_norm", "scale_norm"])
def test_scaled_attention_refuses_what_it_would_leave_out(fork, option):
    with pytest.raises(BadInputError, match=f"{option} .*ScaledAttention"):
        ScaledAttention(DIM, HEADS, tokens=TOKENS, norm_layer=torch.nn.LayerNorm, **{option: True})
