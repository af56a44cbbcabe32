"""Robust attentions of others: formulas by hand and by a second transcription, limits, gradients, and their chain."""

import copy
import math
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch.utils.checkpoint import checkpoint

from robustbench_kpca import load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.attention.elliptical import metric
from robustbench_kpca.attention.robust_kde import token_weights
from robustbench_kpca.attention.shared.chain import ChainedAttention, chain
from robustbench_kpca.models import create_model, place
from robustbench_kpca.verification.conformance import check_member

TOKENS, DIM, HEADS, D = 7, 16, 4, 4
RIVALS = {
    "twicing": {}, "neutreno": {}, "elliptical": {}, "kde": {}, "robust_kde": {}, "median_of_means": {}, "pro": {},
    "l2": {}, "cosine": {}, "differential": {}, "temperature": {},
}  # fmt: skip
CHAINED = ("neutreno", "elliptical")
FORMS = [
    *RIVALS.items(),
    *(("pro", {"loss": loss}) for loss in ("l1", "huber")),
    *(("robust_kde", {"loss": loss, "form": form, "a": 0.5})
      for loss in ("huber", "hampel") for form in ("released", "textbook")),
]  # fmt: skip
STOPPED = [("elliptical", {}), *(("pro", {"loss": loss}) for loss in ("mcp", "l1", "huber"))]


def ids(forms):
    return ["-".join(str(part) for part in (name, *options.values())) for name, options in forms]


def layer(name, **options):
    torch.manual_seed(0)
    return ATTENTIONS.get(name)(DIM, HEADS, qkv_bias=True, **options).double().eval()


def stack(name, **options):
    """One layer, or a chain of three with the same weights as softmax attention would have."""
    layers = [layer(name, **options) for _ in range(3 if name in CHAINED else 1)]
    chain(layers)
    return torch.nn.Sequential(*layers)


@pytest.fixture
def x(fork):
    torch.manual_seed(1)
    return torch.randn(2, TOKENS, DIM, dtype=torch.float64)


@pytest.fixture
def model(fork):
    shape = {"img_size": 32, "embed_dim": 24, "depth": 3, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **shape).eval()


@pytest.mark.parametrize(
    ("form", "expected"), [("released", (0.32497, 0.32497, 0.35007)), ("textbook", (0.4, 0.4, 0.2))]
)
def test_huber_weights_of_two_equal_keys_and_one_far_away(form, expected):
    """As released the outlier weighs more than the others."""
    keys = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    w = token_weights(keys[None, None], loss="huber", form=form, a=0.2, iterations=1, scale=2**-0.5)
    assert w.flatten().tolist() == pytest.approx(expected, abs=6e-6)


def test_the_metric_of_two_tokens_and_its_running_mean(fork):
    before, v = torch.tensor([[0.0, 2.0], [1.0, 1.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert metric(v[None, None], before[None, None]).flatten().tolist() == [1.0, 1.0]
    assert metric(v[None, None], v[None, None]).flatten().tolist() == [1.0, 1.0], "0 / 0"
    doubled = metric(v[None, None] * torch.tensor([1.0, 2.0]), before[None, None])
    assert doubled.flatten().tolist() == pytest.approx([1.5 / 4.5, 1.0])
    before, v = torch.randn(2, 1, 1, 6, 3, dtype=torch.float64)
    running = metric(v, before, causal=True)
    for t in range(6):
        assert torch.allclose(running[:, :, t : t + 1], metric(v[:, :, : t + 1], before[:, :, : t + 1]))


@pytest.mark.parametrize("groups", ["released", "heads"])
def test_the_penalty_of_multiples_of_the_unit_matrix(fork, groups):
    built = layer("specformer", groups=groups)
    built.qkv.weight.data = torch.cat([c * torch.eye(DIM, dtype=torch.float64) for c in (1, 2, 3)])
    assert built.spectral().item() == pytest.approx(HEADS * (1 + 4 + 9))


def test_the_penalty_is_there_in_training_only(x):
    built, plain = layer("specformer"), layer("softmax")
    assert torch.equal(built(x), plain(x))
    assert built.penalties == {}
    built.train()(x)
    built.penalties["spectral"].backward()
    assert float(built.qkv.weight.grad.abs().min(0).values.max()) > 0
    assert built.state_dict().keys() == plain.state_dict().keys()


def softmax(row):
    weights = [math.exp(value - max(row)) for value in row]
    return [weight / sum(weights) for weight in weights]


def combined(weights, v):
    return [sum(w * float(v[j, d]) for j, w in enumerate(weights)) for d in range(v.shape[1])]


def dot(a, b):
    return sum(float(s) * float(t) for s, t in zip(a, b, strict=True))


def unit(a):
    length = math.sqrt(dot(a, a))
    return [float(value) / length for value in a]


def plain_weights(q, k, score=dot, factor=1.0):
    scale = factor / math.sqrt(len(q[0]))
    return [softmax([scale * score(row, key) for key in k]) for row in q]


def by_hand(name, q, k, v, before, options):
    n = len(q)
    if name == "twicing":
        a = plain_weights(q, k)
        rows = [[2 * a[i][j] - sum(a[i][m] * a[m][j] for m in range(n)) for j in range(n)] for i in range(n)]
    elif name == "temperature":
        rows = plain_weights(q, k, factor=0.5)
    elif name == "cosine":
        rows = [softmax([10 * dot(unit(row), unit(key)) for key in k]) for row in q]
    elif name == "l2":
        rows = plain_weights(k, k, lambda s, t: -sum((float(a) - float(b)) ** 2 for a, b in zip(s, t, strict=True)))
    elif name == "kde":
        rows = plain_weights(q, k, lambda s, t: -sum((float(a) - b) ** 2 for a, b in zip(s, unit(t), strict=True)))
    elif name == "elliptical":
        change = [sum(abs(float(v[i, d] - before[i, d])) for i in range(n)) / n for d in range(v.shape[1])]
        m = [value / max(change) for value in change]
        rows = plain_weights([[m[d] * float(row[d]) for d in range(len(m))] for row in q], k)
    elif name == "neutreno":
        plain = [combined(row, v) for row in plain_weights(q, k)]
        return [[p + 0.6 * float(before[i, d] - v[i, d]) for d, p in enumerate(row)] for i, row in enumerate(plain)]
    elif name == "pro":
        return [pro_by_hand(row, v, options["loss"]) for row in plain_weights(q, k)]
    else:
        rows = robust_by_hand(q, k, v, **options)
    return [combined(row, v) for row in rows]


def pro_by_hand(a, v, loss):
    m = combined(a, v)
    for _ in range(3):
        near = [math.dist(m, row.tolist()) + 0.01 for row in v]
        f = {"l1": lambda d: 1 / d, "huber": lambda d: min(1, 4 / d), "mcp": lambda d: max(1 / d - 0.25, 0.01)}[loss]
        w = [f(d) * a[j] for j, d in enumerate(near)]
        m = combined([value / sum(w) for value in w], v)
    return m


def robust_by_hand(q, k, v, loss, form, a):
    keys = [unit(row) for row in k]
    scale = 1 / math.sqrt(len(q[0]))

    def weights(points):
        kappa = [[math.exp(-scale * math.dist(s, t) ** 2) for t in points] for s in points]
        n, sign = len(points), {"released": 1, "textbook": -2}[form]
        whole = sum(map(sum, kappa)) / n**2
        r = [math.sqrt(1 + sign * sum(row) / n + whole) for row in kappa]
        if loss == "huber":
            w = [min(1, a / value) for value in r]
        else:
            w = [1 if t < a else a / t if t < 2 * a else a * (3 * a - t) / (a * t) if t < 3 * a else 0.01 for t in r]
        return [value / sum(w) for value in w]

    of_keys, of_both = weights(keys), weights([key + row.tolist() for key, row in zip(keys, v, strict=True)])
    rows = []
    for row in q:
        g = [math.exp(-scale * math.dist(row.tolist(), key) ** 2) for key in keys]
        total = sum(w * value for w, value in zip(of_keys, g, strict=True))
        rows.append([w * value / total for w, value in zip(of_both, g, strict=True)])
    return rows


TRANSCRIBED = [
    (name, {"loss": "mcp"} | options if name == "pro"
     else {"loss": "huber", "form": "released", "a": 0.2} | options if name == "robust_kde" else options)
    for name, options in FORMS if name not in ("differential", "median_of_means")
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), TRANSCRIBED, ids=ids(TRANSCRIBED))
def test_a_second_transcription(fork, name, options):
    q, k, v, before = torch.randn(4, 5, 3, dtype=torch.float64)
    v *= 3  # distances below and above 4, the bound of `pro`
    heads = [part[None, None] for part in (q, k, v)]
    built = ATTENTIONS.get(name)(3, 1, **options).double().eval()
    if name in CHAINED:
        chain([ATTENTIONS.get(name)(3, 1, **options).double(), built])
        built.chain[0].attend(heads[0], heads[1], before[None, None])
    made = built.attend(heads[1] if name == "l2" else heads[0], *heads[1:])[0, 0]
    expected = torch.tensor(by_hand(name, q, k, v, before, options), dtype=torch.float64)
    assert torch.allclose(made, expected, atol=1e-9)


def test_the_block_of_median_score_and_differential_attention_written_out(x, fork):
    built = layer("differential", layer=2)
    q, k, v = built.qkv(x).view(2, TOKENS, 3, HEADS, D).permute(2, 0, 3, 1, 4)
    start = 0.8 - 0.6 * math.exp(-0.6)
    share = (built.lambda_q1 @ built.lambda_k1).exp() - (built.lambda_q2 @ built.lambda_k2).exp() + start
    first, second = ((q[..., half] @ k[..., half].mT / (D / 2) ** 0.5).softmax(-1) for half in (slice(2), slice(2, 4)))
    out = (first - share * second) @ v
    out = (1 - start) * built.subln.weight * out / (out.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(built(x), built.proj(out.transpose(1, 2).flatten(2)), atol=1e-12)
    # Of seven tokens and three blocks of six, each leaves one out: the median of what is left out decides.
    q, k, v = torch.randn(3, 1, 1, 7, 3, dtype=torch.float64)
    built = ATTENTIONS.get("median_of_means")(3, 1, blocks=3, gradient="released").double()
    ranks = torch.stack([torch.tensor([6, 0, 1, 2, 3, 4, 5]).roll(n) for n in range(3)])[None]
    scores = 2 * 3**-0.5 * q @ torch.nn.functional.normalize(k, dim=-1).mT
    without = [[j for j in range(7) if j != n] for n in range(3)]
    chosen = sorted(without, key=lambda block: float(scores[..., block].sum()))[1]
    expected = scores[..., chosen].softmax(-1) @ v[:, :, chosen]
    assert torch.allclose(built._mixed(scores, v, ranks), expected)


SOFTMAX = [
    ("twicing", {"order": 1}),
    ("neutreno", {"alpha": 0.0}),
    ("temperature", {"temperature": 1.0}),
    ("pro", {"iterations": 0}),
    ("pro", {"loss": "l2"}),
    ("pro", {"loss": "huber", "delta": 1e6}),
    ("pro", {"step": 1e-12}),
]


@pytest.mark.parametrize(("name", "options"), SOFTMAX, ids=ids(SOFTMAX))
@pytest.mark.parametrize("how", [{"is_causal": True}, {"attn_mask": True}], ids=["causal", "padded"])
def test_limits_that_are_softmax_attention(x, name, options, how):
    mask = (torch.arange(TOKENS) < 5).expand(2, 1, 1, TOKENS)
    how = {"attn_mask": mask} if "attn_mask" in how else how
    tokens = plain = x
    for one in stack(name, **options):
        tokens, plain = one(tokens, **how), layer("softmax")(plain, **how)
    assert torch.allclose(tokens, plain, atol=1e-10)


def test_other_limits(x):
    uniform = layer("twicing")
    uniform.qkv.weight.data[:DIM], uniform.qkv.bias.data[:DIM] = 0, 0
    plain = layer("softmax")
    plain.load_state_dict(uniform.state_dict())
    assert torch.allclose(uniform(x), plain(x)), "A^2 = A where A is uniform"
    one_block = layer("median_of_means", blocks=1, outliers=0.0)
    assert torch.allclose(one_block(x), layer("kde")(x))
    assert torch.allclose(layer("robust_kde", loss="hampel", a=0.2)(x), layer("kde")(x)), "as released, for a <= 1/3"
    assert torch.allclose(layer("robust_kde", a=0.2)(x), layer("robust_kde", a=0.9)(x)), "as released, for a <= 1"
    assert not torch.allclose(layer("robust_kde", form="textbook")(x), layer("kde")(x), atol=1e-4)


@pytest.mark.parametrize(("name", "options"), FORMS, ids=ids(FORMS))
def test_the_identity_twin_has_the_same_parameters_and_does_not_mix(x, name, options):
    twin, own = (stack(name, **options, mixing=mixing) for mixing in ("identity", "own"))
    assert {key: value.shape for key, value in twin.state_dict().items()} == {
        key: value.shape for key, value in own.state_dict().items()
    }
    moved = x.clone()
    moved[:, 3] += 1
    changed = (twin(moved) - twin(x)).abs().amax((0, 2)) > 1e-9
    assert changed.tolist() == [token == 3 for token in range(TOKENS)]
    assert not torch.allclose(twin(x), own(x), atol=1e-3)


def test_the_identity_twin_gives_the_values_and_released_blocks_are_drawn(x):
    v = layer("softmax").queries_keys_values(x)[2]
    for name in ("twicing", "pro", "temperature", "median_of_means", "robust_kde"):
        assert torch.allclose(layer(name, mixing="identity").attend(v, v, v), v), name
    first, second = torch.randn(2, *v.shape, dtype=torch.float64)
    whole = [layer("neutreno", alpha=1.0, mixing="identity") for _ in range(2)]
    chain(whole)
    whole[0].attend(first, first, first)
    assert torch.allclose(whole[1].attend(second, second, second), first)
    released, restored = (layer("median_of_means", gradient=gradient) for gradient in ("released", "restored"))
    assert (released.stochastic, restored.stochastic) == (True, False)
    assert not torch.equal(released(x), released(x))
    assert torch.equal(restored(x), restored(x))
    assert torch.allclose(restored(x)[:1], restored(x[:1]))


@pytest.mark.parametrize(("name", "options"), FORMS, ids=ids(FORMS))
def test_restored_gradients_are_those_of_finite_differences(x, name, options):
    """By tokens and by weights."""
    built = stack(name, **options)
    weights = dict(built.named_parameters())

    def run(tokens, *values):
        return torch.func.functional_call(built, dict(zip(weights, values, strict=True)), (tokens,))

    assert torch.autograd.gradcheck(run, (x.requires_grad_(), *weights.values()), fast_mode=True)


@pytest.mark.parametrize(("name", "options"), STOPPED, ids=ids(STOPPED))
def test_stopped_gradients_leave_the_forward_as_it_is(x, name, options):
    released, restored = (stack(name, **options, gradient=gradient) for gradient in ("released", "restored"))
    x = (4 * x).requires_grad_()
    assert torch.equal(released(x), restored(x))
    stopped, whole = (torch.autograd.grad(one(x).square().sum(), x)[0] for one in (released, restored))
    way = torch.randn_like(x)
    ahead, behind = (restored(x.detach() + step * way).square().sum() for step in (1e-5, -1e-5))
    slope = (ahead - behind).item() / 2e-5
    assert (whole * way).sum().item() == pytest.approx(slope, rel=1e-6)
    assert (stopped * way).sum().item() != pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize(("name", "options"), FORMS[len(RIVALS) :], ids=ids(FORMS[len(RIVALS) :]))
def test_other_forms_keep_the_promises_of_attention(name, options):
    """The forms that members have by default are checked in tests/conformance."""
    assert [finding for finding in check_member(name, **options) if finding.broken] == []


@pytest.fixture(params=CHAINED)
def chained(request, model):
    place(model, request.param)
    return model.double()


@pytest.fixture
def images(fork):
    return torch.rand(4, 3, 32, 32, dtype=torch.float64)


def gradient_of(model, images):
    images = images.clone().requires_grad_()
    return torch.autograd.grad(model(images).square().sum(), images)[0]


def test_values_of_one_pass_are_not_used_in_another(chained, images):
    """Also with batches halved, and after a pass that was broken off."""
    whole = chained(images)
    assert torch.allclose(torch.cat([chained(half) for half in images.split(2)]), whole)
    mended = chained.blocks[1].forward
    chained.blocks[1].forward = partial(_fail)
    with pytest.raises(MemoryError):
        chained(images + 1)
    chained.blocks[1].forward = mended
    assert torch.allclose(chained(images), whole)
    with pytest.raises(BadInputError, match="a pass through all layers"):
        chained.blocks[0].attn(torch.zeros(1, 5, 24).double()), chained.blocks[2].attn(torch.zeros(1, 9, 24).double())


def _fail(x):
    raise MemoryError


def test_a_copy_has_a_chain_of_its_own_and_layers_are_computed_again(chained, images):
    expected = gradient_of(chained, images)

    def run(images):
        tokens = chained.patch_embed(images)
        tokens = chained._pos_embed(tokens)
        for block in chained.blocks:
            tokens = checkpoint(block, tokens, use_reentrant=False)
        return chained.forward_head(chained.norm(tokens))

    assert torch.allclose(run(images), chained(images))
    assert torch.allclose(gradient_of(run, images), expected)
    expected = chained(images.requires_grad_())
    copied = copy.deepcopy(chained)
    assert copied.blocks[2].attn.chain[0] is copied.blocks[0].attn
    assert torch.allclose(copied(images), expected)


@pytest.mark.untyped  # a check of types asks tensors for what the compiler warns of
def test_a_compiled_model_is_the_same(model, images):
    chained = place(model, "elliptical").double()
    compiled = torch.compile(chained, backend="eager")
    assert torch.allclose(compiled(images), chained(images))
    assert torch.allclose(gradient_of(compiled, images), gradient_of(chained, images))
    assert torch.allclose(compiled(images.flip(0)), chained(images.flip(0)))


@pytest.mark.parametrize("name", CHAINED)
def test_a_layer_without_an_earlier_one_is_refused(fork, model, name):
    with pytest.raises(BadInputError, match="in one layer"):
        place(model, name, "first")
    with pytest.raises(BadInputError, match="placed into"):
        layer(name)(torch.zeros(1, 3, DIM).double())
    assert issubclass(ATTENTIONS.get(name), ChainedAttention)


def test_trained_softmax_models_take_rivals(fork, tmp_path, monkeypatch):
    shape = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4, "num_classes": 10}
    trained = timm.models.VisionTransformer(**shape, norm_layer=torch.nn.LayerNorm).eval()
    (tmp_path / "models").mkdir()
    save_file(trained.state_dict(), tmp_path / "models" / "cifar10_vit_d64_p4_l4_h4.safetensors")
    monkeypatch.setenv("RBK_DATA", str(tmp_path))
    example = f"{Path(__file__).parents[3] / 'examples' / 'plugged.py'}:cifar10_vit"
    images = torch.rand(2, 3, 32, 32)
    assert torch.allclose(load_model(example)(images), trained(images), atol=1e-5)
    plugged = load_model(example, attention="pro", loss="l1", gradient="released")
    assert [block.attn.gradient for block in plugged.blocks] == ["released"] * 4
    assert not torch.allclose(plugged(images), trained(images), atol=1e-5)
    trained = create_model("vit_digits").state_dict()
    for name in RIVALS.keys() - {"l2", "differential"}:
        built = create_model(f"{'mom' if name == 'median_of_means' else name}_vit_digits")
        built.load_state_dict(trained)
        assert built.config["mixing"] == "own"
    starts = [block.attn.start for block in create_model("differential_vit_digits").blocks]
    assert starts == pytest.approx([0.8 - 0.6 * math.exp(-0.3 * n) for n in range(4)])


@pytest.mark.untyped  # wrong values, on purpose
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pro", {"loss": "l3"}, "'l2' or 'l1' or 'mcp' or 'huber'"),
        ("pro", {"iterations": 1.5}, "iterations = 1.5.*a whole number, at least 0"),
        ("pro", {"epsilon": 0}, "epsilon = 0.*a number above 0"),
        ("twicing", {"order": 0}, "order = 0"),
        ("twicing", {"mixing": "none"}, "'own' or 'identity'"),
        ("temperature", {"temperature": math.inf}, "temperature = inf"),
        ("neutreno", {"alpha": -0.1}, "a number above 0, or 0"),
        ("median_of_means", {"outliers": 1}, "less than 1"),
        ("differential", {"num_heads": 16}, "heads of width 1"),
    ],
)
def test_what_cannot_mean_anything_is_refused(name, options, message):
    with pytest.raises(BadInputError, match=message):
        ATTENTIONS.get(name)(DIM, **{"num_heads": HEADS} | options)


def test_the_example_of_sharper_scores_is_symmetric_attention_with_scores_times_four(x):
    sharper = layer(f"{Path(__file__).parents[3]}/examples/sharper.py:Sharper")
    k, v = sharper.qkv(x).view(2, TOKENS, 2, HEADS, D).permute(2, 0, 3, 1, 4)
    mixed = (4 * k @ k.mT / math.sqrt(D)).softmax(-1) @ v
    torch.testing.assert_close(sharper(x), sharper.proj(mixed.transpose(1, 2).reshape(2, TOKENS, DIM)))
