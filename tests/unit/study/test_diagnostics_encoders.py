"""Text encoders of `transformers` with random weights: what is read is what they compute."""

import pytest
import torch
from diagnosed import diagnosed

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.study.diagnostics.sources import TextSource
from robustbench_kpca.study.diagnostics.taps import call, find_taps, listening

HEADS, WIDTH = 3, 8
ENCODERS = ["bert", "roberta", "xlm-roberta", "camembert", "electra", "longformer", "luke"]
"""The types of the study's nine encoders: MiniLM is of BERT's, and two are of ELECTRA's."""
SOURCE = TextSource("words", tuple(tuple((5 * row + 3 * word) % 80 + 10 for word in range(12)) for row in range(6)), 1)


def encoder(kind, **options):
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    small = {"num_hidden_layers": 2, "num_attention_heads": HEADS, "hidden_size": HEADS * WIDTH}
    small |= {"intermediate_size": 16, "vocab_size": 100, "max_position_embeddings": 140} | options
    small |= {"entity_vocab_size": 2} if kind == "luke" else {}
    with torch.random.fork_rng():
        return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **small)).eval()


@pytest.mark.parametrize("kind", ENCODERS)
def test_every_encoder_of_the_study_can_be_read(kind):
    """Queries, keys and values are those of the layer's own linear maps, and softmax(q k^T / sqrt(D)) v its output."""
    model = encoder(kind)
    (block,) = SOURCE.blocks(6)
    taps = find_taps(model)
    with listening(taps) as readings:
        call(model, block.inputs)
        layers = [reading.first(12) for reading in readings()]
    assert len(layers) == 2
    for tap, reading in zip(taps, layers, strict=True):
        assert reading.q.shape == (6, HEADS, 12, WIDTH)
        for part, x in (("query", reading.q), ("key", reading.k), ("value", reading.v)):
            expected = getattr(tap.module, part)(reading.x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
            assert x.allclose(expected, atol=1e-5), part
        weights = (reading.q @ reading.k.transpose(-2, -1) / WIDTH**0.5).softmax(-1)
        assert (weights @ reading.v).allclose(reading.h, atol=1e-5)


def test_longformer_beyond_its_window_is_refused():
    """There its softmax leaves out far tokens, so that q, k and v do not give its outputs."""
    source = TextSource("long", (tuple(range(10, 40)),) * 2, 1)
    with pytest.raises(BadInputError, match="outputs"):
        diagnosed(encoder("longformer", attention_window=[8, 8]), source, name="longformer", claims=["eigenvalues"])


def test_padding_of_longformer_enters_no_number():
    done = diagnosed(encoder("longformer"), SOURCE, name="longformer", claims=["eigenvalues"])
    assert done.layers[0].tokens == (12, 12)
