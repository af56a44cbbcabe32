"""Language models are evaluated position by position: against the literal loop, closed forms, kill and resume."""

import math

import markov_models
import numpy as np
import pytest
import torch
from markov_models import WINDOW, Table, table, text

from robustbench_kpca import evaluate as evaluate_under
from robustbench_kpca import load_data
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.audit.run import audit
from robustbench_kpca.data.sets import grammar
from robustbench_kpca.data.text import Text
from robustbench_kpca.models.build import create_model
from robustbench_kpca.records.record import load_record
from robustbench_kpca.tasks.language.positions import PositionResults
from robustbench_kpca.tasks.language.windows import Windows

pytestmark = pytest.mark.usefixtures("few_resamples")


def evaluate(model, data, protocol="clean", **how):
    return evaluate_under(model, data, protocol=protocol, **how)


def literal(model, stream, window, stride=1):
    found, end = {}, 0
    starts = [*range(0, len(stream) - 1 - window, stride), len(stream) - 1 - window]
    with torch.no_grad():
        for start in starts:
            words = torch.tensor(stream[start : start + window], dtype=torch.float32)[None, None, None]
            log_p = model(words).log_softmax(1)[0, :, 0]
            for place in range(window):
                position = start + place + 1
                if position > end:
                    found[position] = -float(log_p[stream[position], place])
            end = start + window
    return np.array([found[position] for position in range(1, len(stream))])


@pytest.fixture
def lm(fork):
    return create_model("softmax_lm_tiny", vocab_size=5, window=12, embed_dim=8, hidden=8).eval()


def nll(model, data, **how):
    return evaluate(model, data, **how).outcomes["nll"]


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_batches_of_windows_give_what_the_literal_loop_gives(lm, batch_size):
    data = text()
    assert nll(lm, data, batch_size=batch_size) == pytest.approx(literal(lm, data.stream, 12), abs=1e-5)


@pytest.mark.parametrize("stride", [2, 12])
def test_so_it_does_with_a_stride(lm, stride):
    data = text()
    record = evaluate(lm, data, "clean-strided", stride=stride, batch_size=3)
    assert record.outcomes["nll"] == pytest.approx(literal(lm, data.stream, 12, stride), abs=1e-5)
    (flag,) = record.flags
    assert f"strided approximation: windows of 12 words at a stride of {stride}" in flag
    assert record.passes.forwards == len({*range(0, 60 - 12, stride), 60 - 12})


def test_a_stride_is_in_the_digest_and_stride_1_is_no_approximation(lm):
    data = text()
    one, three = (evaluate(lm, data, "clean-strided", stride=stride) for stride in (1, 3))
    plain = evaluate(lm, data)
    assert len({record.spec.protocol.digest for record in (plain, one, three)}) == 3
    assert one.outcomes["nll"].tolist() == plain.outcomes["nll"].tolist()
    assert one.flags == ()


@pytest.mark.parametrize(("words", "window", "stride"), [(20, 5, 1), (21, 5, 2), (22, 5, 5), (6, 5, 3), (40, 7, 4)])
def test_every_position_is_counted_by_one_window(words, window, stride):
    windows = Windows(words, window, stride)
    positions = np.arange(1, words)
    for start in set(windows.start(positions).tolist()):
        first, stop = windows.counted(start)
        assert positions[windows.start(positions) == start].tolist() == list(range(first, stop))
        assert start + 1 <= first < stop == start + window + 1 <= words


def test_the_source_itself_gets_its_own_log_probabilities():
    data = load_data("grammar")
    part = data.take(range(20))
    record = evaluate(markov_models.truth(), part)
    stream, positions = data.stream.astype(int), record.outcomes["position"]
    expected = -markov_models.true_log_probabilities()[
        stream[np.maximum(positions - 2, 0)], stream[positions - 1], stream[positions]
    ]
    assert record.outcomes["nll"] == pytest.approx(expected, abs=1e-5)
    assert record.metrics["perplexity"].value == pytest.approx(math.exp(expected.mean()), rel=1e-6)
    assert record.spec.data.entropy == pytest.approx(grammar.source().entropy())


@pytest.mark.parametrize("model", [markov_models.small, None])
def test_blocks_do_not_depend_on_each_other(lm, model):
    """A part of the blocks, in any batch, has the rows of the whole; words before a part are still read."""
    network, data = lm if model is None else model(), text()
    whole = evaluate(network, data, batch_size=4).outcomes
    part = data.take([6, 1, 3]).in_order()
    rows = evaluate(network, part, batch_size=4).outcomes
    kept = np.isin(whole["sample"].astype(str), part.ids)
    assert {name: column[kept].tolist() for name, column in whole.columns.items()} == {
        name: column.tolist() for name, column in rows.columns.items()
    }


def test_the_digest_of_a_part_covers_the_words_before_it():
    """Windows are longer than a block, so far earlier words are read, too."""
    stream, words = text().stream, text().vocabulary
    other = stream.copy()
    other[0] = (other[0] + 1) % len(words)
    one, two = (Text("text", "all", numbers, words, block=4) for numbers in (stream, other))
    last = len(one) - 1
    assert one.fingerprint(last) == two.fingerprint(last)
    assert one.take([last]).digest() != two.take([last]).digest()
    assert one.take([0, last]).take([1]).digest() == one.take([last]).digest()
    assert one.take(range(len(one))).digest() == one.digest()


@pytest.mark.parametrize("stop", [1, 9])
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, monkeypatch, stop):
    data, model = text(), markov_models.small()
    whole = evaluate(model, data, batch_size=4)
    ran, run = [], PositionResults._run

    def interrupted(self, most):
        ran.append(self.done)
        if len(ran) == stop:
            self.save()
            raise KeyboardInterrupt
        run(self, most)

    with monkeypatch.context() as patch:
        patch.setattr(PositionResults, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            evaluate(model, data, batch_size=4, out=tmp_path)
    resumed = evaluate(model, data, batch_size=4, out=tmp_path)
    assert resumed.outcomes.digest() == whole.outcomes.digest()
    assert resumed.passes == whole.passes
    (path,) = tmp_path.glob("*.record.json")
    assert load_record(path).outcomes.digest() == whole.outcomes.digest()


def test_models_that_see_the_next_word_are_refused_flagged_and_audited(lm):
    peeking, data = Table(table(), peek=0.1).eval(), text()
    with pytest.raises(BadInputError, match=r"evaluation of this model would be meaningless: the logits at .* places"):
        evaluate(peeking, data)
    record = evaluate(peeking, data, allow=["future"])
    assert record.flags[0].startswith("preflight, allowed: future: the logits at")
    assert evaluate(lm, data).flags == ()
    models = lm, Table(table(), window=8, peek=0.1).eval()
    honest, leaking = (audit(model, text(block=4), batch_size=4) for model in models)
    assert [check.name for check in honest.flags] == []
    (flag,) = leaking.flags
    assert (flag.name, flag.values) == ("preflight", {"future": 1.0})
    assert [check.name for check in honest.checks] == ["preflight", "neighbours", "runs", "untouched"]


BAD = {
    "another vocabulary": (lambda: Table(table(7)).eval(), lambda: text(), "clean", "knows 7 words.*vocabulary of 5"),
    "no language model": (lambda: torch.nn.Identity().eval(), lambda: text(), "clean", "Identity is no language model"),
    "a window longer than the text": (
        markov_models.small, lambda: text(length=WINDOW), "clean", "window of 6 words over a text of 6"
    ),
    "a window longer than the model's": (
        markov_models.small, lambda: text(), {"window": 9, "stride": 1}, "window = 9 for a model that reads 6"
    ),
    "a stride longer than the window": (markov_models.small, lambda: text(), {"stride": 7}, "stride = 7"),
    "no block": (markov_models.small, lambda: text().spread(0), "clean", "limit 0"),
    "pictures": (markov_models.small, lambda: text(), "common-corruptions-32px", "words of a text"),
    "pixels": (markov_models.small, lambda: text(), "pgd20-linf-8_255", "pixel space"),
    "a shift": (markov_models.small, lambda: text(), "imagenet-a", "not defined for language"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line(name, tmp_path):
    model, data, protocol, line = BAD[name]
    how = {"protocol": protocol} if isinstance(protocol, str) else {"protocol": "clean-strided", **protocol}
    with pytest.raises(BadInputError, match=line) as error:
        evaluate(model(), data(), out=tmp_path, audit=False, **how)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
