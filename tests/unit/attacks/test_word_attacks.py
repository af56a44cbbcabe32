"""Attacks on words: against closed forms, exhaustive searches and a plain transcription, and through the loop."""

import itertools

import attack_checks
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_language_model import TinyLanguageModel, some_text

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.attack_loop.checks import Checks
from robustbench_kpca._engine.attack_loop.engine import Engine, build_attack
from robustbench_kpca._engine.attack_loop.passes import passes_of
from robustbench_kpca._engine.attack_loop.sets import set_of
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attacks import gbda
from robustbench_kpca.attacks.gbda import GBDA
from robustbench_kpca.attacks.hotflip import HotFlip
from robustbench_kpca.attacks.random_swap import RandomSwap
from robustbench_kpca.attacks.shared import words as shared_words
from robustbench_kpca.attacks.shared.words import distributions
from robustbench_kpca.data.text import Text
from robustbench_kpca.data.vocabulary import Vocabulary
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Stage
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.tasks.language.compute import COMPUTE
from robustbench_kpca.tasks.language.success import HigherLoss
from robustbench_kpca.tasks.prepare import prepare
from robustbench_kpca.types import END_OF_LINE, IGNORE
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery

TEXT = Text("text", "test", np.zeros(100), Vocabulary(["<eos>", "word"]), block=1)  # names the articles of rows
ONE = Threat("words", 0.01)  # one word, whatever the length
HOTFLIP = {"attack": "hotflip", "restarts": 1, "steps": 4, "tries": 3}
SETTINGS = {"samples": 2, "candidates": 5, "learning_rate": 0.3, "temperature": 1.0, "initial": 1.0}
CLIMB = {"attack": "gbda", "restarts": 1, "steps": 5, **SETTINGS}
RANDOM = {"attack": "random_swap", "restarts": 1, "queries": 9}


def losses(model, x, y):
    found = []
    with torch.no_grad():
        for text, labels in zip(x, y, strict=True):
            log_p = model(text[None]).double().log_softmax(1)[0, :, 0]
            scored = [(label, place) for place, label in enumerate(labels[0].tolist()) if label != IGNORE]
            found.append(-sum(log_p[label, place] for label, place in scored) / len(scored))
    return torch.stack(found)


def single_swaps(text, vocabulary):
    """Yield every text (1, 1, 1, length) with one other word, and (place, word)."""
    for place, word in itertools.product(range(text.shape[-1]), range(1, vocabulary)):
        old = int(text[..., place])
        if old not in (END_OF_LINE, word):
            swapped = text.clone()
            swapped[..., place] = word
            yield swapped[None], (place, word)


def run_plain(attack, model, x, y, threat):
    return attack_checks.drive(attack, model, x, y, threat, None)["x"]


def the_swap(text, clean):
    places = (text != clean).flatten().nonzero()[:, 0].tolist()
    return [(place, int(text.flatten()[place])) for place in places]


def test_hotflip_finds_the_best_swap_of_a_closed_form():
    """With logits near 0, p = 1/V, and a swap of w by v at t adds sum_d (mean_u A_d[v - w, u] - A_d[v - w, y_{t+d}])/n.

    A_d[w, u] is what word w adds to the logit of u, d places later; the sum runs over the scored places t + d.
    """
    model = TinyLanguageModel(9, dtype=torch.float64, linear=True, scale=1e-3)
    x, y = some_text(12, 10, 9, torch.float64)
    adds = model.embed.detach() @ model.out.detach()
    best = []
    for text, labels in zip(x[:, 0, 0].long().tolist(), y[:, 0].tolist(), strict=True):
        growth = {}
        for place, word in itertools.product(range(10), range(1, 9)):
            if text[place] not in (END_OF_LINE, word):
                change = adds[:, word] - adds[:, text[place]]
                later = [(lag, labels[place + lag]) for lag in range(3) if place + lag < 10]
                growth[place, word] = sum(change[d].mean() - change[d, u] for d, u in later if u != IGNORE)
        best.append([max(growth, key=growth.get)])
    found = run_plain(HotFlip(steps=1, tries=1), model, x, y, ONE)
    assert [the_swap(text, clean) for text, clean in zip(found, x, strict=True)] == best


def test_with_as_many_tries_as_swaps_it_is_an_exhaustive_search():
    model = TinyLanguageModel(8, dtype=torch.float64)
    x, y = some_text(6, 8, 8, torch.float64)
    found = run_plain(HotFlip(steps=1, tries=56), model, x, y, ONE)
    for text, clean, labels in zip(found, x, y, strict=True):
        swaps = [(float(losses(model, swapped, labels[None])), swap) for swapped, swap in single_swaps(clean, 8)]
        assert the_swap(text, clean) == [max(swaps)[1]]


def hotflip_literally(model, clean, labels, most, steps, tries):
    """HotFlip on one text, by lists and dictionaries; returns the words."""
    first = [int(word) for word in clean.flatten()]
    words, kept, tried, best = first, first, set(), None
    vocabulary, length = model.vocab_size, clean.numel()

    def loss_of(some):
        return float(losses(model, torch.tensor(some, dtype=clean.dtype).view(1, 1, 1, -1), labels[None])[0])

    for step in range(steps):
        mixture = torch.zeros(1, vocabulary, 1, length, dtype=clean.dtype)
        for place, word in enumerate(words):
            if word != END_OF_LINE:
                mixture[0, :, 0, place] = step / steps / (vocabulary - 1)
                mixture[0, END_OF_LINE, 0, place] = 0
            mixture[0, word, 0, place] += 1 if word == END_OF_LINE else 1 - step / steps
        mixture.requires_grad_()
        log_p = model(mixture).log_softmax(1)[0, :, 0]
        scored = [place for place in range(length) if labels[0, place] != IGNORE]
        loss = -sum(log_p[labels[0, place], place] for place in scored) / len(scored)
        (gradient,) = torch.autograd.grad(loss, mixture)
        best = float(loss.detach()) if best is None else best
        other = [place for place in range(length) if words[place] != first[place]]

        def gain(place, word):
            return float(gradient[0, word, 0, place] - gradient[0, words[place], 0, place])  # noqa: B023

        def made(place, word):
            """The text with a swap, and how much it promises; a swap too many puts the cheapest clean word back."""
            text, promise = list(words), gain(place, word)  # noqa: B023
            if len(other) >= most and place not in other:  # noqa: B023
                back = max(other, key=lambda one: gain(one, first[one]))  # noqa: B023
                text[back], promise = first[back], promise + gain(back, first[back])
            text[place] = word
            return promise, text

        possible = {
            (place, word): made(place, word)
            for place in range(length)
            for word in range(vocabulary)
            if word not in (END_OF_LINE, words[place]) and first[place] != END_OF_LINE and (place, word) not in tried
        }
        shown = sorted(possible, key=lambda swap: possible[swap][0], reverse=True)[:tries]
        texts = [possible[swap][1] for swap in shown]
        found = [loss_of(text) for text in texts]
        if found and max(found) > best:
            best, kept = max(found), texts[found.index(max(found))]
            if most > 1:
                words, tried, shown = kept, set(), []
        tried |= set(shown)
    return kept


@pytest.mark.parametrize(("eps", "steps", "tries"), [(0.01, 4, 2), (0.2, 7, 3), (0.5, 6, 1)])
def test_hotflip_equals_a_plain_transcription(eps, steps, tries):
    model = TinyLanguageModel(11, dtype=torch.float64)
    x, y = some_text(8, 15, 11, torch.float64)
    found = run_plain(HotFlip(steps=steps, tries=tries), model, x, y, Threat("words", eps))
    most = max(1, int(eps * 15))
    for text, clean, labels in zip(found, x, y, strict=True):
        assert text.flatten().tolist() == hotflip_literally(model, clean, labels, most, steps, tries)


def test_gbda_climbs_the_expected_gain_less_its_price():
    """The slope is the gradient of sum_v p_v (gain_v - price) by theta, with p = softmax(theta)."""
    theta = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    choices = torch.arange(4).expand(2, 5, 4).clone()
    choices[1, 2] = 0  # a place without candidates
    gain = (gradient - gradient[..., :1])[..., 1:]
    most = gain.amax(2).masked_fill((choices == 0).all(2), -torch.inf).sort(1, descending=True).values
    price = ((most[:, 1] + most[:, 2]) / 2).clamp_min(0)
    net = torch.cat([torch.zeros(2, 5, 1), (gain - price[:, None, None]).masked_fill(choices[..., 1:] == 0, 0)], 2)
    (expected,) = torch.autograd.grad((theta.softmax(2) * net).sum(), theta)
    torch.testing.assert_close(gbda._slope(theta.softmax(2).detach(), gradient, choices, 2), expected)


def test_gbda_finds_nearly_the_best_swap():
    """Of all single swaps, what it finds is at least 90 % of the best growth of the loss, on average."""
    model = TinyLanguageModel(8, dtype=torch.float64)
    x, y = some_text(10, 8, 8, torch.float64)
    attack = GBDA(steps=40, **SETTINGS | {"candidates": 6})
    clean, found = losses(model, x, y), losses(model, run_plain(attack, model, x, y, ONE), y)
    best = torch.stack(
        [
            max(losses(model, swapped, labels[None])[0] for swapped, _ in single_swaps(text, 8))
            for text, labels in zip(x, y, strict=True)
        ]
    )
    assert bool((found <= best + 1e-12).all())
    assert float((found - clean).mean()) > 0.9 * float((best - clean).mean())


ALL = [
    HotFlip(steps=6, tries=2),
    GBDA(steps=4, **SETTINGS),
    GBDA(steps=3, **SETTINGS | {"candidates": 40}),
    RandomSwap(queries=5),
]


@settings(max_examples=20, deadline=None)
@given(
    eps=st.floats(0.001, 1.0),
    length=st.integers(4, 24),
    vocabulary=st.integers(3, 9),
    seed=st.integers(0, 1000),
    attack=st.sampled_from(ALL),
)
def test_no_text_that_is_shown_has_more_swaps_than_allowed(eps, length, vocabulary, seed, attack):
    threat, model = Threat("words", eps), TinyLanguageModel(vocabulary, width=3, seed=seed)
    x, y = some_text(3, length, vocabulary, seed=seed)
    most, shown = max(1, int(eps * length + 1e-9)), 0

    def look(texts, rows, outside):
        nonlocal shown
        if texts.shape[1] == 1:
            shown += 1
            swaps = texts != x
            assert int(swaps.flatten(1).sum(1).max()) <= most
            assert not bool((swaps & ((x == END_OF_LINE) | (texts == END_OF_LINE))).any())
            assert bool(((texts >= 0) & (texts < vocabulary) & (texts == texts.round())).all())

    query = WatchedQuery(model, look)
    state = attack_checks.drive(attack, model, x, y, threat, None, query=query)
    look(state["x"], None, outside=False)
    assert (query.forwards + 1, query.backwards) == passes_of(attack, vocabulary)
    assert shown > 1


def test_random_swaps_are_uniform_and_all_are_made():
    model, threat = TinyLanguageModel(7, width=2), Threat("words", 0.25)
    x, y = some_text(1, 12, 7)
    seen, open_places = [], (x != END_OF_LINE).flatten()

    def look(texts, rows, outside):
        seen.append(texts.flatten())

    attack_checks.drive(RandomSwap(queries=1500), model, x, y, threat, None, query=WatchedQuery(model, look))
    swaps = torch.stack(seen) != x.flatten()
    assert swaps.sum(1).tolist() == [3] * 1500
    share = 3 / int(open_places.sum())
    expected = torch.where(open_places, share, 0.0)
    assert float((swaps.double().mean(0) - expected).abs().max()) < 5 * (share * (1 - share) / 1500) ** 0.5
    place = int(open_places.nonzero()[0])
    new = torch.stack(seen)[swaps[:, place], place].long()
    counts = torch.bincount(new, minlength=7)
    assert counts[[END_OF_LINE, int(x.flatten()[place])]].tolist() == [0, 0]
    assert float((counts[counts > 0] / len(new) - 1 / 5).abs().max()) < 5 * (0.16 / len(new)) ** 0.5


def protocol(*stages, eps=0.2, **fields):
    fields = {"norm": "words", "space": "word", "clip": False, "policy": "strongest"} | fields
    return attack_checks.scenario(stages, eps=eps, **fields)


def run(scenario, model, x, y, batch_size, order=None, interrupt=None):
    found = {}

    def engine():
        runner = Runner(model.eval(), batch_size, torch.device("cpu"))
        return Engine(runner, scenario, HigherLoss(), [str(row) for row in range(len(x))], 3, keep)

    def keep(sample):
        found[sample.index] = sample

    def source(rows):
        for part in (rows[first : first + batch_size] for first in range(0, len(rows), batch_size)):
            yield part, x[part], y[part]

    rows = list(range(len(x))) if order is None else order
    if interrupt is None:
        engine().run(source(rows))
    else:
        first, left = engine(), interrupt

        def stop():
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            first.run(source(rows), stop)
        entries, second = first.snapshot(), engine()
        known = {entry["index"] for entry in entries} | set(found)
        assert known
        second.restore(entries, dict(enumerate(second.starting_images(x))))
        second.run(source([row for row in rows if row not in known]))
    return [
        COMPUTE.rows(found[row], TEXT, InputSpace())[0] | {"worst": found[row].worst.flatten().tolist()}
        for row in range(len(x))
    ]


@pytest.fixture(scope="module")
def texts():
    model = TinyLanguageModel(12)
    return model, *some_text(9, 16, 12)


@pytest.mark.parametrize("stage", [HOTFLIP, CLIMB, RANDOM], ids=lambda stage: stage["attack"])
def test_outcomes_depend_neither_on_batches_nor_order_nor_interruptions(stage, texts):
    usual = run(protocol(stage), *texts, 4)
    assert run(protocol(stage), *texts, 1) == usual
    assert run(protocol(stage), *texts, 64) == usual
    assert run(protocol(stage), *texts, 7, order=[4, 2, 8, 0, 1, 7, 3, 6, 5]) == usual
    assert run(protocol(stage), *texts, 4, interrupt=5) == usual
    assert len({tuple(row["worst"]) for row in usual}) == 9


@pytest.mark.parametrize("stage", [HOTFLIP, CLIMB, RANDOM], ids=lambda stage: stage["attack"])
def test_rows_say_what_a_plain_pass_says_and_what_it_cost(stage, texts):
    model, x, y = texts
    rows = run(protocol(stage), model, x, y, 4)
    worst = torch.tensor([row["worst"] for row in rows]).view_as(x)
    assert [row["nll"] for row in rows] == pytest.approx(losses(model, worst, y).tolist(), rel=1e-6)
    assert [row["clean_nll"] for row in rows] == pytest.approx(losses(model, x, y).tolist(), rel=1e-6)
    assert all(row["nll"] > row["clean_nll"] for row in rows)
    assert [row["swaps"] for row in rows] == (worst != x).flatten(1).sum(1).tolist()
    assert all(1 <= row["swaps"] <= 3 and row["read"] == 16 and row["words"] == 8 for row in rows)
    forwards, backwards = passes_of(build_attack(Stage.model_validate(stage)), 12)
    assert {(row["forwards"], row["backwards"]) for row in rows} == {
        (forwards + 1, backwards)
    }  # the worst is confirmed


def test_stages_begin_at_the_clean_text_and_the_worse_of_two_rates_is_kept(texts):
    stages = HOTFLIP, HOTFLIP | {"steps": 2, "tries": 20}
    alone = ([row["nll"] for row in run(protocol(stage), *texts, 4)] for stage in stages)
    both = run(protocol(*stages), *texts, 4)
    assert [row["nll"] for row in both] == [max(pair) for pair in zip(*alone, strict=True)]
    small, large = (run(protocol(RANDOM, eps=eps), *texts, 4)[0] for eps in (0.01, 0.2))
    for pair in ((small, large), (large, small)):
        (row,) = COMPUTE.combined(*([one] for one in pair))
        assert row["nll"] == max(small["nll"], large["nll"])
        assert row["forwards"] == small["forwards"] + large["forwards"]


class Points:
    """Shows distributions whose loss is higher than that of any text; proposes the clean text."""

    replaces_words = many_labels = True

    def start(self, x, y, threat, keys):
        return {"x": x, "finished": torch.zeros_like(keys, dtype=torch.bool)}

    def step(self, state, threat, query):
        self.seen = query.gradient(self.points(state["x"], query.classes), lambda z: z.flatten(1).sum(1))
        return state | {"finished": torch.ones_like(state["finished"])}

    def points(self, x, vocabulary):
        return torch.full((len(x), vocabulary, 1, x.shape[3]), 1 / vocabulary)


def run_one(attack, texts, monkeypatch):
    monkeypatch.setattr("robustbench_kpca._engine.attack_loop.engine.build_attack", lambda stage: attack)
    return run(protocol(HOTFLIP), *texts, 4)


def test_distributions_cost_passes_and_must_fit(texts, monkeypatch):
    rows = run_one(Points(), texts, monkeypatch)
    assert all(row["nll"] == row["clean_nll"] and row["attack"] == "" and row["swaps"] == 0 for row in rows)
    assert {(row["forwards"], row["backwards"]) for row in rows} == {(2, 1)}  # and the check of the last text
    with pytest.raises(BadInputError, match="three or more"):
        distributions(CLEAN, 2)
    monkeypatch.setattr(shared_words, "MOST", 4 * 10 * 12)
    assert distributions(CLEAN, 12).sum(1).tolist() == [[[1.0] * 10]]
    with pytest.raises(BadInputError, match="--batch-size 1"):
        distributions(CLEAN.expand(2, -1, -1, -1), 12)


@pytest.mark.parametrize("factor", [1.1, float("nan")])
def test_what_is_no_distribution_is_refused(factor, texts, monkeypatch):
    attack = Points()
    attack.points = lambda x, vocabulary: factor * Points.points(attack, x, vocabulary)
    with pytest.raises(EvaluationError, match="distributions"):
        run_one(attack, texts, monkeypatch)


CLEAN = torch.tensor([5.0, 6, 0, 7, 8, 9, 4, 3, 2, 1]).view(1, 1, 1, 10)


@pytest.mark.parametrize(
    ("place", "word", "what"),
    [
        ([0, 1, 3], 9.0, "2 other words|3 other words"),
        ([2], 4.0, "no text"),
        ([3], 4.5, "no text"),
        ([3], float("nan"), "no text"),
    ],
)
def test_texts_outside_the_set_are_refused(place, word, what):
    allowed, text = set_of(Threat("words", 0.2)), CLEAN.clone()
    text[..., place] = word
    with pytest.raises(EvaluationError, match=what):
        allowed.check(text, CLEAN, "some", Checks())
    swapped = CLEAN.clone()
    swapped[..., [0, 1]] = 9
    allowed.check(swapped, CLEAN, "some", Checks())
    swapped[..., 3] = 9
    allowed.check(swapped, CLEAN, "some", Checks(), outside=True)
    assert allowed.beyond(torch.cat([swapped, CLEAN]), CLEAN.expand(2, -1, -1, -1)).tolist() == [True, False]


@pytest.mark.parametrize(("eps", "words", "most"), [(0.015, 10, 1), (0.29, 100, 29), (0.05, 128, 6), (1, 7, 7)])
def test_a_rate_is_a_number_of_words(eps, words, most):
    assert Threat("words", eps).swaps(words) == most


def test_the_rate_is_written_as_a_share():
    scenario = load_scenario("hotflip-words-1.5")[1]
    assert (str(scenario.threat), scenario.budget) == ("1.5 % of words", "1.5 % of words")
    assert load_scenario("pgd20-linf-8_255")[1].budget == "linf 8/255 in pixel space"


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("hotflip-words-1.5", {"eps": 1.5}, "a share"),
        ("hotflip-words-1.5", {"space": "pixel", "norm": "linf"}, "replaces words"),
        ("pgd20-linf-8_255", {"norm": "words"}, "together"),
        ("pgd20-linf-8_255", {"norm": "words", "space": "word", "clip": False}, "choose hotflip"),
    ],
)
def test_protocols_that_make_no_sense_are_refused(name, changes, what):
    with pytest.raises(BadInputError, match=what):
        prepare(name, changes)


@pytest.mark.parametrize("change", [{"policy": "last"}, {"policy": "stop_at_first"}, {"labels": "predicted"}])
def test_texts_are_attacked_with_the_whole_budget_and_true_words(change):
    with pytest.raises(BadInputError, match="for a text"):
        HigherLoss().check_protocol(load_scenario("hotflip-words-1.5", change)[1], {})


def test_scores_are_the_mean_log_p_of_scored_words():
    success, logits = HigherLoss(), torch.randn(2, 5, 1, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[[1, IGNORE, 3, 4]], [[IGNORE, 2, IGNORE, 0]]])
    expected = [
        sum(logits[row].double().log_softmax(0)[u, 0, t] for t, u in enumerate(labels[row, 0].tolist()) if u >= 0) / n
        for row, n in ((0, 3), (1, 2))
    ]
    assert success.judge(logits, labels)[1].tolist() == pytest.approx([float(one) for one in expected], rel=1e-6)
    logits[0, 2, 0, 3] = torch.nan
    prediction, score = success.judge(logits, labels)
    assert score[0] == -torch.inf
    assert success.unanswered(prediction).tolist() == [True, False]
    assert torch.equal(success.join(success.split(prediction)), prediction)
    assert not bool(success.reached(prediction, labels).any())
