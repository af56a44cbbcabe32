"""Training of language models: windows, losses and perplexities against hand-made cases; killed runs go on the same."""

import csv
import math
from functools import partial

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from made_trainings import recipe_text, whole_and_resumed
from markov_models import true_log_probabilities
from torch import nn

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import AbsentPartError, BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.text import Text
from robustbench_kpca.data.vocabulary import END, Vocabulary
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.tasks import task_named
from robustbench_kpca.training.loop import train
from robustbench_kpca.training.recipe import load_recipe
from robustbench_kpca.training.scoring import held_out_scores
from robustbench_kpca.training.text_windows import TextSource
from robustbench_kpca.types import IGNORE

TASK = task_named("language")
OPTIONS = "{ vocab_size = 7, window = 6, embed_dim = 8, hidden = 8, num_heads = 2, dropout = 0.1 }"
TEXT = recipe_text("rpc_lm_tiny", "grammar", OPTIONS, seed=3, epochs=3, optimizer="adamw", lr=0.01)
TEXT += """
[text]
window = 6
per_epoch = 0
"""


@pytest.fixture
def parts(monkeypatch):
    """Texts of 7 words, of numbers that say where a word is."""
    words = Vocabulary([END, *"abcdef"])
    lengths = {"train": 100, "val": 30, "test": 4}
    kept = {part: Text("grammar", part, np.arange(length) ** 2 % 7, words) for part, length in lengths.items()}
    monkeypatch.setattr("robustbench_kpca.training.source.load_data", lambda where, part: kept[part])
    return kept


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.toml").write_text(TEXT)
    return partial(load_recipe, str(tmp_path / "small.toml"))


def source(recipe):
    return TextSource(recipe[1], None, Accelerator(cpu=True))


@pytest.mark.parametrize("per_epoch", [0, 11])
def test_a_window_is_labelled_with_the_next_words(parts, small, per_epoch):
    stream = parts["train"].stream
    found = source(small({"text.per_epoch": per_epoch}))
    assert found.length == (8 if per_epoch else 12)
    epochs = [list(found.epoch(number)) for number in (0, 1, 0)]
    for batches in epochs:
        starts = [int(one) for batch in batches for one in batch.ids]
        assert len(starts) == found.length
        for batch in batches:
            assert (batch.x.shape, batch.y.shape, batch.count) == ((4, 1, 1, 6), (4, 1, 6), 4)
            assert batch.weight == pytest.approx(1 / 6), "the loss is the mean over words"
            for x, y, start in zip(batch.x, batch.y, map(int, batch.ids), strict=True):
                assert x.flatten().tolist() == stream[start : start + 6].tolist()
                assert y.flatten().tolist() == stream[start + 1 : start + 7].tolist()
        if not per_epoch:
            gaps = np.diff(sorted(starts))
            assert min(gaps) >= 6, "no word is shown twice"
    ids = [[batch.ids for batch in batches] for batches in epochs]
    assert ids[0] == ids[2] != ids[1]


def test_held_out_words_count_once_from_half_a_window_at_least(parts, small):
    found = source(small())
    stream = parts["val"].stream
    seen = []
    for x, y in found.held_out("val"):
        for one, labels in zip(x[:, 0, 0].tolist(), y[:, 0].tolist(), strict=True):
            fresh = [place for place, label in enumerate(labels) if label != IGNORE]
            assert fresh == list(range(fresh[0], 6))
            first = len(seen) - fresh[0]
            assert one == stream[first : first + 6].tolist()
            assert fresh[0] >= 3 or not seen
            seen += [labels[place] for place in fresh]
    assert seen == stream[1:].tolist()
    (only,) = found.held_out("test")  # shorter than a window
    assert only[1].tolist() == [[parts["test"].stream[1:].tolist()]]


def test_texts_have_a_table_and_only_the_first_words_are_scored(parts, small, tmp_path):
    stream = parts["val"].stream
    found = source(small({"text.scored_words": 11}))
    labels = [one for _, y in found.held_out("val") for one in y.flatten().tolist() if one != IGNORE]
    assert labels == stream[1:12].tolist()
    assert len([one for _, y in found.held_out("test") for one in y.flatten().tolist() if one != IGNORE]) == 3
    digests = [small(how)[1].digest({}) for how in ({}, {"text.scored_words": 0}, {"text.scored_words": 11})]
    assert digests[0] == digests[1] != digests[2]
    (tmp_path / "small.toml").write_text(TEXT.partition("[text]")[0])
    with pytest.raises(BadInputError, match=r"\[text\]"):
        train(*load_recipe(str(tmp_path / "small.toml")), tmp_path)


def test_a_text_without_a_test_part_is_no_damaged_one(small, parts, monkeypatch):
    def failing(error, where, part):
        if part == "test":
            raise error
        return parts[part]

    monkeypatch.setattr("robustbench_kpca.training.source.load_data", partial(failing, AbsentPartError("no such file")))
    assert list(source(small()).held_out("test")) == []
    monkeypatch.setattr("robustbench_kpca.training.source.load_data", partial(failing, BadInputError("no text")))
    with pytest.raises(BadInputError, match="no text"):
        list(source(small()).held_out("test"))


def test_the_loss_is_a_sum_over_words_in_any_layout(fork):
    logits, y = torch.randn(2, 5, 1, 3), torch.tensor([[[0, 4, IGNORE]], [[1, IGNORE, IGNORE]]])
    logs = logits.log_softmax(1)
    expected = [-(logs[0, 0, 0, 0] + logs[0, 4, 0, 1]), -logs[1, 1, 0, 0]]
    losses = TASK.compute.training.losses(logits, y, 0.0)
    assert losses.tolist() == pytest.approx([float(one) for one in expected])
    counts = TASK.compute.training.counts(logits, y)
    assert counts[1].tolist() == [1, 1, 0, 0, 1]
    assert TASK.compute.training.score(counts, 2.0)["perplexity"] == pytest.approx(math.exp(2))
    assert TASK.compute.training.score(counts, 1e4)["perplexity"] == math.inf
    assert TASK.compute.training.score(torch.zeros(3, 5), 0.0) == {}
    # As torch computes it class by place, for logits whose words lie last in memory and for others.
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 1, 5, 11, generator=rng).permute(0, 3, 1, 2)
    targets = torch.randint(0, 11, (3, 1, 5), generator=rng)
    targets[0, 0, :2] = IGNORE
    expected = nn.functional.cross_entropy(logits, targets, ignore_index=IGNORE, label_smoothing=0.1, reduction="none")
    for form in (logits, logits.contiguous()):
        found = TASK.compute.training.losses(form, targets, 0.1)
        assert torch.allclose(found, expected.flatten(1).sum(1), rtol=1e-6)


class Knowing(nn.Module):
    """The source itself: the true log-probabilities after the last two words; after one word only, any two."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.from_numpy(true_log_probabilities()).float()

    def forward(self, x):
        words = x[:, 0, 0].long()
        before = torch.cat([words[:, :1], words[:, :-1]], 1)
        return self.table[before, words].transpose(1, 2)[:, :, None]


def test_the_source_itself_has_the_perplexity_of_its_entropy():
    """Of 20,480 words, so to the accuracy of their mean: a standard error of 0.008 nats, measured here, too."""
    recipe = load_recipe("rpc_lm_tiny")[1]
    found = TextSource(recipe, None, Accelerator(cpu=True))
    scores = held_out_scores(Knowing(), found, "test", 50)
    text = load_data("grammar", "test")
    table, words = true_log_probabilities(), text.stream
    exact = -table[words[1:-2], words[2:-1], words[3:]]
    assert scores["loss"] == pytest.approx(exact.mean(), abs=2e-3)
    assert abs(scores["loss"] - text.entropy) < 4 * exact.std() / len(exact) ** 0.5
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))


def test_a_killed_training_goes_on_bit_identically(tmp_path, small, parts):
    whole, _ = whole_and_resumed(small(), tmp_path)
    header = read_header(whole)
    last = list(csv.DictReader(whole.with_suffix(".csv").read_text().splitlines()))[-1]
    assert float(header["val_perplexity"]) == pytest.approx(math.exp(float(last["val_loss"])), abs=1e-3)
    assert "test_perplexity" in header
    assert len(header["density_of_S"].split(",")) == 1


def test_the_command_trains_and_says_the_perplexity(tmp_path, capsys, parts, small):
    small()
    assert main(["train", str(tmp_path / "small.toml"), "-o", str(tmp_path), "--set", "epochs=1"]) == 0
    found = capsys.readouterr()
    assert "test perplexity" in found.out
    assert "val perplexity" in found.err
    assert "perplexity" in (tmp_path / "small.csv").read_text().splitlines()[0]
    model = load_model("rpc_lm_tiny", tmp_path / "small.safetensors", vocab_size=7, window=6, embed_dim=8, hidden=8)
    assert model(torch.zeros(1, 1, 1, 6)).shape == (1, 7, 1, 6)
    assert evaluate(model, parts["val"], protocol="clean").spec.data.classes == 7
    other = Text("grammar", "val", parts["val"].stream, Vocabulary([END, *"bacdef"]))
    with pytest.raises(BadInputError, match="another vocabulary"):
        evaluate(model, other, protocol="clean")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text.window": 99}, "windows of 99"),
        ({"batch_size": 32}, "at least 32 windows"),
        ({"max_shift": 1}, r"\[text\] there is no"),
        ({"model_options": {"vocab_size": 5, "window": 6}}, r"a model of 5 classes.* at least 7.*vocab_size"),
        ({"data": "digits"}, "'digits' is for classification"),
    ],
)
def test_recipes_that_do_not_fit(tmp_path, small, parts, changes, message, request):
    if "data" in changes:
        request.getfixturevalue("monkeypatch").setattr("robustbench_kpca.training.source.load_data", load_data)
    with pytest.raises(BadInputError, match=message):
        train(*small(changes), tmp_path)
