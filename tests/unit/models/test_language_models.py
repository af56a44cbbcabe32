"""Language models: no place sees a later word; their ends, positions and sizes are those of the publications."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import create_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.attention.rpc import RPCAttention
from robustbench_kpca.attention.softmax import SoftmaxAttention
from robustbench_kpca.audit.preflight import leaking_places
from robustbench_kpca.models._adaptive import AdaptiveHead
from robustbench_kpca.models.language import sinusoids
from robustbench_kpca.models.mixing import densities
from robustbench_kpca.types import LanguageModel

FAMILIES = ["softmax_lm", "symmetric_lm", "rpc_lm", "identity_lm", "scaled_lm", "primal_lm"]
PLACED = [family for family in FAMILIES if family not in ("softmax_lm", "symmetric_lm")]

WORDS, WINDOW = 23, 12
TINY = {"vocab_size": WORDS, "window": WINDOW, "embed_dim": 16, "depth": 4, "num_heads": 2, "hidden": 24}


def build(name, spread=4.0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = create_model(f"{name}_tiny", **TINY | options)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim == 2:
                value.mul_(spread)
            elif name.endswith("attn.s"):
                value.fill_(0.5)
    return model


@pytest.fixture
def words():
    return torch.randint(0, WORDS, (3, 1, 1, WINDOW), generator=torch.Generator().manual_seed(0)).float()


def one_hot(words):
    return F.one_hot(words[:, 0].long(), WORDS).permute(0, 3, 1, 2).float()


DESIGNED = [("softmax_lm", "paper"), ("primal_lm", "fairseq"), *((family, "modern") for family in FAMILIES)]


@pytest.mark.parametrize(("family", "design"), DESIGNED)
def test_every_model_answers_and_is_built_again(fork, family, design, words):
    model = build(family, design=design)
    assert isinstance(model, LanguageModel)
    assert not model.training
    with torch.no_grad():
        logits = model(words)
        assert logits.shape == (3, WORDS, 1, WINDOW)
        assert torch.allclose(model(words, last=True), logits[..., -1:], atol=1e-5)
        assert torch.allclose(model(words[1:2]), logits[1:2], atol=1e-5), "a text depends on its batch"
        again = create_model(**model.config)
        again.load_state_dict(model.state_dict())
        assert torch.equal(again(words), logits)
        assert model(words[..., :1]).shape == (3, WORDS, 1, 1)
        assert torch.allclose(model(one_hot(words)), logits, atol=1e-5)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("family", PLACED)
def test_no_place_sees_a_later_word_in_any_layer(family, layers, words):
    """Changing one word changes no logit before it, to the bit, and some logit at it and after it."""
    model = build(family, layers=layers, lam=0.5) if family == "rpc_lm" else build(family, layers=layers)
    with torch.no_grad():
        clean = model(words)
        for place in range(WINDOW):
            changed = words.clone()
            changed[..., place] = (changed[..., place] + 1) % WORDS
            after = model(changed)
            assert torch.equal(after[..., :place], clean[..., :place])
            assert bool((after[..., place] != clean[..., place]).flatten(1).any(1).all())
    assert int(leaking_places(model, words, cuts=WINDOW).sum()) == 0


@pytest.mark.parametrize(("family", "design"), DESIGNED)
def test_gradients_come_from_no_later_word(family, design, words):
    """What attacks see: the gradient of a place's logits with respect to later words is exactly zero."""
    model = build(family, design=design)
    shares = one_hot(words).requires_grad_()
    (gradient,) = torch.autograd.grad(model(shares)[..., :5].square().sum(), shares)
    assert int(gradient[..., 5:].count_nonzero()) == 0
    assert float(gradient[..., :5].abs().amax(1).min()) > 0
    assert int(leaking_places(model, words, cuts=WINDOW).sum()) == 0


@pytest.mark.parametrize("layers", ["first", "all"])
def test_one_mu_for_the_window_is_found_to_leak(fork, layers, words):
    model = build("rpc_lm", layers=layers, lam=0.5, mu_span="window")
    places = leaking_places(model, words, cuts=WINDOW)
    assert not bool(places[:, -1].any()), "nothing comes after the last place"
    assert int(leaking_places(model, words, cuts=WINDOW).sum()) == int(places.sum()) > WINDOW
    assert min(densities(model, words)) > 0
    assert create_model("rpc_lm_tiny").config["mu_span"] == "past"


def test_a_model_that_looks_ahead_everywhere(words):
    class Ahead(nn.Module):
        vocab_size, window = WORDS, WINDOW

        def forward(self, x, *, last=False):
            return one_hot(x.flip(-1))

    # a place sees the words from its mirror image on: the first half of the places sees later ones
    assert leaking_places(Ahead(), words, cuts=WINDOW).tolist() == [[True] * 6 + [False] * 6] * 3


def paper_size(words, projections):
    """systems.md 6.1: 16 layers, width 128, 2048 hidden; tied embedding, output bias, 3 clusters."""
    layer = (projections + 1) * 128 * 128 + 128 * 2048 + 2048 + 2048 * 128 + 128 + 2 * 2 * 128
    return words * 128 + words + 3 * (128 + 1) + 16 * layer


def test_the_sizes_of_both_published_models():
    with torch.device("meta"):
        sizes = {family: sum(p.numel() for p in create_model(f"{family}_paper").parameters()) for family in FAMILIES}
    assert sizes["softmax_lm"] == paper_size(267_735, 3) == 44_018_394
    for family in ("symmetric_lm", "rpc_lm", "identity_lm"):
        assert sizes[family] == paper_size(267_735, 2) == 44_018_394 - 16 * 128 * 128
    assert sizes["scaled_lm"] == sizes["softmax_lm"] + 16
    # Its transformer_lm: 6 layers, width 512, 2048 hidden, biases everywhere, a tied embedding; Primal in the last.
    layer = 4 * (512 * 512 + 512) + 512 * 2048 + 2048 + 2048 * 512 + 512 + 2 * 2 * 512
    with torch.device("meta"):
        plain, primal = create_model("softmax_lm_fairseq"), create_model("primal_lm_fairseq")
    assert sum(p.numel() for p in plain.parameters()) == 267_735 * 512 + 6 * layer + 2 * 512
    last = primal.blocks[-1].attn
    assert [type(block.attn) for block in primal.blocks[:-1]] == [SoftmaxAttention] * 5
    assert (last.causal, last.scores.w_e.shape, last.scores.qk.bias.shape) == (True, (8, 64, 30), (1024,))
    assert (primal.window, primal.shape.num_heads, primal.drop.p) == (512, 8, 0.1)


def test_the_papers_layers():
    with torch.device("meta"):
        model = create_model("rpc_lm_paper")
        primal = create_model("primal_lm_paper")
        first = create_model("rpc_lm_paper", layers="first")
    assert [isinstance(block.attn, RPCAttention) for block in model.blocks] == [True] * 4 + [False] * 12
    assert [isinstance(block.attn, RPCAttention) for block in first.blocks] == [True] + [False] * 15
    assert [type(block.attn) for block in primal.blocks[:-1]] == [SoftmaxAttention] * 15
    last = primal.blocks[-1].attn
    assert (type(last), last.causal, last.scores.w_e.shape) == (ATTENTIONS.get("primal"), True, (8, 16, 30))
    pursuit = model.blocks[0].attn.pursuit
    assert (pursuit.iterations, pursuit.lam, pursuit.mu_span) == (4, 4.0, "past")
    assert (model.window, model.shape.num_heads, model.words.cutoffs) == (256, 8, [20_000, 40_000, 200_000])
    for block in [*model.blocks, *primal.blocks[:-1]]:
        assert block.attn.qkv.bias is None
        assert block.attn.proj.bias is None


def test_the_papers_block_is_post_norm(fork):
    """One block written out: x = LN(x + attn(x)); x = LN(x + W2 relu(W1 x))."""
    model = create_model("softmax_lm_tiny", **TINY | {"design": "paper", "depth": 1})
    x = torch.randint(0, WORDS, (2, 1, 1, 7)).float()
    block, width = model.blocks[0], 16
    places = torch.arange(6, -1, -1).float()[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    h = model.words.weight[x[:, 0, 0].long()] * 4 + torch.cat([places.sin(), places.cos()], 1)
    q, k, v = (part.view(2, 7, 2, 8).transpose(1, 2) for part in block.attn.qkv(h).chunk(3, -1))
    scores = (q @ k.transpose(-2, -1) / 8**0.5).masked_fill(torch.ones(7, 7).triu(1).bool(), -math.inf)
    h = block.norm1(h + block.attn.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 7, width)))
    h = block.norm2(h + block.mlp[3](F.relu(block.mlp[0](h))))
    weights = torch.cat([model.words.weight @ h[0, 3] + model.words.bias])
    assert torch.allclose(model(x)[0, :, 0, 3], weights.log_softmax(0), atol=1e-5)


def test_positions_count_back_and_rotary_heads_are_even():
    found = sinusoids(5, 6, torch.zeros(1))
    assert torch.equal(found[-1], torch.tensor([0.0, 0, 0, 1, 1, 1]))
    assert torch.allclose(found[:, 0], torch.tensor([4.0, 3, 2, 1, 0]).sin())
    assert torch.allclose(sinusoids(9, 6, torch.zeros(1))[4:], found)
    with pytest.raises(BadInputError, match="width 3"):
        SoftmaxAttention(6, num_heads=2, rotary=True)


def test_fairseqs_decoder_is_torchs_behind_its_positions(fork):
    """torch.nn.TransformerEncoderLayer with norms first and ReLU; positions written out as fairseq makes them."""
    model, (width, length) = build("softmax_lm", design="fairseq"), (16, 7)
    x = torch.randint(0, WORDS, (2, 1, 1, length)).float()
    rates = torch.exp(torch.arange(width // 2) * -(math.log(10_000) / (width // 2 - 1)))
    angles = torch.arange(2, 2 + length)[:, None] * rates
    h = model.words.weight[x[:, 0, 0].long()] * 4 + torch.cat([angles.sin(), angles.cos()], 1)
    future = nn.Transformer.generate_square_subsequent_mask(length)
    for block in model.blocks:
        layer = nn.TransformerEncoderLayer(width, 2, 24, 0.0, "relu", batch_first=True, norm_first=True).eval()
        mine = [*block.attn.parameters(), *block.mlp.parameters(), *block.norm1.parameters(), *block.norm2.parameters()]
        with torch.no_grad():
            for theirs, value in zip(layer.parameters(), mine, strict=True):
                theirs.copy_(value)
        h = layer(h, src_mask=future)
    expected = F.linear(model.norm(h), model.words.weight).transpose(1, 2)
    assert torch.allclose(model(x)[:, :, 0], expected, atol=1e-5)


def test_fairseqs_weights_and_biases_of_tails(fork):
    model = create_model("softmax_lm_fairseq", vocab_size=500, depth=1).requires_grad_(False)
    attn, first = model.blocks[0].attn, model.blocks[0].mlp[0].weight
    assert float(model.words.weight.std()) == pytest.approx(512**-0.5, rel=0.01)
    assert 0.99 < float(attn.qkv.weight.abs().max()) / (1.5 / 512) ** 0.5 <= 1, "as three layers of gain 1/sqrt(2)"
    assert 0.99 < float(attn.proj.weight.abs().max()) / (3 / 512) ** 0.5 <= 1
    assert 0.99 < float(first.abs().max()) / 512**-0.5 <= 1, "torch's own"
    assert not bool(attn.qkv.bias.any())
    head = AdaptiveHead(WORDS, 4, [5, 10], std=1.0)
    nn.init.normal_(head.bias)
    h = torch.randn(2, 3, 4, dtype=torch.float64)
    found = head.double()(h)
    assert torch.allclose(found.exp().sum(-1), torch.ones(2, 3, dtype=torch.float64))
    first = torch.cat([h @ head.weight[:5].T + head.bias[:5], h @ head.cluster_weight.T + head.cluster_bias], -1)
    tail = h @ head.weight[5:10].T + head.bias[5:10]
    expected = first.exp()[..., 6] / first.exp().sum(-1) * tail.exp()[..., 2] / tail.exp().sum(-1)
    assert torch.allclose(found[..., 7].exp(), expected)


def test_the_adaptive_head_is_torchs_with_full_width(fork):
    """torch.nn.AdaptiveLogSoftmaxWithLoss with div_value 1, whose tails are two matrices, the first the identity.

    Its clusters are in the order of the tails; those of Transformer-XL's code, and ours, in the reverse order.
    """
    cutoffs, width, batch = [4, 9, 15], 6, 5
    ours = AdaptiveHead(WORDS, width, cutoffs, std=1.0)
    nn.init.normal_(ours.cluster_bias)
    theirs = nn.AdaptiveLogSoftmaxWithLoss(width, WORDS, cutoffs, div_value=1.0, head_bias=True)
    with torch.no_grad():
        theirs.head.weight.copy_(torch.cat([ours.weight[:4], ours.cluster_weight.flip(0)]))
        theirs.head.bias.copy_(torch.cat([ours.bias[:4], ours.cluster_bias.flip(0)]))
        for tail, begin, end in zip(theirs.tail, cutoffs, [9, 15, WORDS], strict=True):
            tail[0].weight.copy_(torch.eye(width))
            tail[1].weight.copy_(ours.weight[begin:end])  # its tails have no biases, as ours begin
    h = torch.randn(batch, 1, width)
    found = ours(h)[:, 0]
    assert torch.allclose(found, theirs.log_prob(h[:, 0]), atol=1e-5)
    assert torch.allclose(found.exp().sum(-1), torch.ones(batch), atol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "symmetric"])
def test_rotary_scores_are_turned_by_the_distance(name, fork):
    """As complex numbers a = q_i + i q_{i + D/2}, b likewise of k, a score is Re sum_i a exp(i (s - t) theta_i) b*."""
    tokens, width = 4, 4
    layer = ATTENTIONS.get(name)(8, num_heads=2, rotary=True).double().eval()
    x = torch.randn(1, tokens, 8, dtype=torch.float64)
    q, k, v = (*layer.qkv(x).view(tokens, -1, 2, width).permute(1, 2, 0, 3),)[-3:] if name == "softmax" else (
        *(layer.qkv(x).view(tokens, 2, 2, width).permute(1, 2, 0, 3)[part] for part in (0, 0, 1)),
    )  # fmt: skip
    a, b = (torch.complex(one[..., :2], one[..., 2:]) for one in (q, k))
    places = torch.arange(tokens, dtype=torch.float64)
    angles = (places[:, None] - places)[..., None] * torch.tensor([1.0, 10_000**-0.5], dtype=torch.float64)
    turn = torch.polar(torch.ones_like(angles), angles)
    scores = torch.einsum("hsi,sti,hti->hst", a, turn, b.conj()).real / width**0.5
    scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -math.inf)
    expected = layer.proj((scores.softmax(-1) @ v).transpose(0, 1).reshape(1, tokens, 8))
    assert torch.allclose(layer(x, is_causal=True), expected)


@pytest.mark.parametrize("name", ["softmax", "rpc", "scaled"])
def test_with_rotary_positions_the_order_of_earlier_words_matters(name, fork):
    options = {"tokens": 4} if name == "scaled" else {}
    x = torch.randn(1, 4, 8)
    swapped = x[:, [1, 0, 2, 3]]
    for rotary, same in ((False, name in ("softmax", "symmetric", "scaled")), (True, False)):
        torch.manual_seed(0)
        layer = ATTENTIONS.get(name)(8, num_heads=2, rotary=rotary, **options).eval()
        found = [layer(one, is_causal=True)[:, -1] for one in (x, swapped)]
        assert torch.allclose(*found, atol=1e-6) == same


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"design": "old"}, "design = 'old'"),
        ({"vocab_size": 1}, "vocab_size = 1.*at least 2"),
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"vocabulary": 9}, "no option 'vocabulary'.*vocab_size"),
        pytest.param({"mu_span": "all"}, "mu_span = 'all'", marks=pytest.mark.untyped),
        ({"layers": "third"}, "layers = 'third'"),
        ({"num_heads": 16}, "width 1"),
    ],
)
def test_options_that_do_not_fit(fork, options, message):
    with pytest.raises(BadInputError, match=message):
        create_model("rpc_lm_tiny", **TINY | options)


@pytest.mark.parametrize(
    ("shape", "fill", "message"),
    [
        ((1, 1, 1, WINDOW + 1), 0, f"{WINDOW + 1} words at once.*1 to {WINDOW}"),
        ((1, 1, 1, 0), 0, "0 words at once"),
        ((1, 1, 1, 4), WORDS, f"words numbered {WORDS} to {WORDS}.*vocabulary"),
        ((1, 1, 1, 4), -1, "words numbered -1"),
        ((1, 1, 2, 4), 0, r"\(1, 1, 2, 4\)"),
    ],
)
def test_inputs_that_do_not_fit(shape, fill, message):
    with pytest.raises(BadInputError, match=message):
        build("softmax_lm")(torch.full(shape, float(fill)))
