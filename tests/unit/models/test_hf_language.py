"""Causal language models of transformers: they answer as in their library, and see no later word."""

import pytest
import torch

from robustbench_kpca import load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.audit.preflight import future_leak
from robustbench_kpca.models.sources._wrappers import CausalLM
from robustbench_kpca.types import LanguageModel

WORDS, WINDOW = 19, 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("owner") / "gpt"
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=WINDOW, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        initializer_range=0.2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return load_model(f"hf:{folder}")


@pytest.fixture
def words():
    return torch.randint(0, WORDS, (3, 1, 1, WINDOW), generator=torch.Generator().manual_seed(0)).float()


def test_it_answers_as_in_its_library(folder, model, words):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = theirs(words[:, 0, 0].long()).logits.transpose(1, 2)[:, :, None]
        found = model(words)
        assert torch.equal(found, expected)
        assert torch.allclose(model(words, last=True), expected[..., -1:], atol=1e-6)
        assert torch.allclose(model(words[..., :5]), expected[..., :5], atol=1e-6)
    assert isinstance(model, LanguageModel)
    assert (model.vocab_size, model.window) == (WORDS, WINDOW)


def test_a_word_is_the_distribution_with_1_in_one_place(model, words):
    shares = torch.nn.functional.one_hot(words[:, 0].long(), WORDS).permute(0, 3, 1, 2).float().requires_grad_()
    logits = model(shares)
    assert torch.allclose(logits, model(words), atol=1e-6)
    (gradient,) = torch.autograd.grad(logits[..., -1].logsumexp(1).sum(), shares)
    assert float(gradient.abs().amin()) > 0


def test_the_end_of_a_text_is_word_0(folder, model, words):
    """The words are the tokens of the library with two numbers exchanged: in what is read and in what is answered."""
    transformers = pytest.importorskip("transformers")
    net = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    net.config.eos_token_id = 5
    moved = CausalLM(net)
    token = torch.arange(WORDS)
    token[0], token[5] = 5, 0  # of each word; and the other way round
    with torch.no_grad():
        logits = moved(words)
        theirs = net(token[words[:, 0, 0].long()]).logits
        assert torch.equal(logits[:, 0, 0], theirs[:, :, 5])
        assert torch.equal(logits[:, :, 0], theirs.transpose(1, 2)[:, token])
        assert not torch.allclose(logits, model(words), atol=1e-3)
        shares = torch.nn.functional.one_hot(words[:, 0].long(), WORDS).permute(0, 3, 1, 2).float()
        assert torch.allclose(moved(shares), logits, atol=1e-6)
    for ends, word in ([3, 4], 3), (None, 0):
        net.config.eos_token_id = ends
        assert CausalLM(net).end == word
    net.config.eos_token_id = WORDS
    with pytest.raises(BadInputError, match=f"eos_token_id {WORDS}"):
        CausalLM(net)


def test_it_sees_no_later_word(model, words):
    assert future_leak(model, words, cuts=WINDOW) == 0


def test_a_model_that_is_no_decoder_leaks(words):
    """A BERT with a language head is in the same list of transformers; it looks ahead unless it is a decoder."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=WINDOW,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CausalLM(transformers.BertLMHeadModel(config).eval())
    assert future_leak(model, words) == 3 * (WINDOW - 1)


def test_windows_and_words_that_do_not_fit(folder, model, words):
    assert load_model(f"hf:{folder}", window=5).window == 5
    with pytest.raises(BadInputError, match=r"window of 13 tokens.*at most 12"):
        load_model(f"hf:{folder}", window=13)
    with pytest.raises(BadInputError, match="at most 12"):
        model(torch.zeros(1, 1, 1, 13))
    with pytest.raises(BadInputError, match=r"\(1, 7, 1, 4\)"):
        model(torch.zeros(1, 7, 1, 4))


def test_a_checkpoint_fits(folder, tmp_path, words):
    state = {name: value + 0.01 for name, value in load_model(f"hf:{folder}").net.state_dict().items()}
    torch.save(state, tmp_path / "w.pt")
    moved = load_model(f"hf:{folder}", tmp_path / "w.pt")
    assert not torch.allclose(moved(words), load_model(f"hf:{folder}")(words), atol=1e-3)
    assert load_model(f"hf:{folder}", untrained=True)(words).shape == (3, WORDS, 1, WINDOW)
