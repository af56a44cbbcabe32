"""What a protocol can say beside its attacks: policy, labels, space, clipping, draws, budgets."""

import itertools

import attack_checks
import pytest
import torch
from attack_checks import Counting, Wavy, drive, rand
from torch import nn

from robustbench_kpca import attack, evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.attack_loop.engine import Engine
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attacks.apgd import APGD
from robustbench_kpca.attacks.ddn import DDN
from robustbench_kpca.attacks.mim import MIM
from robustbench_kpca.attacks.pgd import PGD
from robustbench_kpca.attacks.spsa import SPSA
from robustbench_kpca.metrics.accuracy import correct
from robustbench_kpca.models.source import normalise_inside
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery

STEPS = {"attack": "pgd", "restarts": 1, "steps": 10, "step_size": "0.1 eps", "random_start": False}
ONE = torch.ones(1, 1, 1)


def run(model, images, labels, /, *stages, batch_size=8, **fields):
    chosen = attack_checks.scenario(fields.pop("stages", stages or (STEPS,)), **fields)
    return attack_checks.attacked(model, images, labels, chosen, batch_size)


def pixels(*values):
    return torch.tensor(values).view(-1, 1, 1, 1)


class Valley(nn.Module):
    """Class 0 within some distance of 0.45, class 1 elsewhere."""

    def __init__(self, half=0.1):
        super().__init__()
        self.half = half

    def forward(self, x):
        score = (x.flatten(1)[:, 0] - 0.45).abs() - self.half
        return torch.stack([torch.zeros_like(score), score], 1)


def test_the_policies_differ_where_an_attack_passes_through_a_misclassified_point():
    """Steps of 0.045 lead down into the valley and out at the other side."""
    stage = STEPS | {"steps": 2, "step_size": 0.045}
    images, labels = pixels(0.5), torch.ones(1, dtype=torch.int64)
    first, strongest, last = (
        run(Valley(0.012), images, labels, stage, eps=0.1, policy=policy)[0]
        for policy in ("stop_at_first", "strongest", "last")
    )
    assert (first.broken_by, float(first.worst)) == ("pgd", pytest.approx(0.455))
    assert (strongest.broken_by, float(strongest.worst)) == ("pgd", pytest.approx(0.455))
    assert (last.broken_by, float(last.worst)) == ("", pytest.approx(0.41))
    assert (first.forwards, strongest.forwards, last.forwards) == (3, 4, 3)
    assert (first.backwards, strongest.backwards, last.backwards) == (2, 2, 2)


class Overflowing(nn.Module):
    """Infinite logits where the margin is small, as a layer in half precision has them."""

    def forward(self, x):
        score = 4 * x.flatten(1)[:, 0] - 2
        logits = torch.stack([-score, score], 1)
        return logits * torch.where(score < 0.5, torch.inf, 1.0)[:, None]


@pytest.mark.parametrize("policy", ["stop_at_first", "strongest"])
@pytest.mark.parametrize(
    "stage",
    [
        {"attack": "ddn", "restarts": 1, "steps": 20, "gamma": 0.05, "init_norm": 0.05},
        {"attack": "fmn", "restarts": 1, "steps": 20, "step_size": 1.0, "gamma": 0.05},
        STEPS,
    ],
    ids=lambda stage: stage["attack"],
)
def test_infinite_logits_are_a_success_and_no_bug_of_the_attack(stage, policy):
    images, labels = pixels(0.7, 0.65), torch.ones(2, dtype=torch.int64)
    found = run(Overflowing(), images, labels, stage, norm="l2", eps=0.2, policy=policy)
    assert [one.broken_by for one in found] == [stage["attack"]] * 2


def test_strongest_keeps_the_lowest_margin_and_never_loses_a_success():
    # Steps of 0.09: margins 0.03, -0.06 and -0.05.
    stage = STEPS | {"steps": 3, "step_size": 0.09}
    (sample,) = run(Valley(), pixels(0.58), torch.ones(1).long(), stage, eps=0.2, policy="strongest")
    assert float(sample.worst) == pytest.approx(0.49)
    assert (sample.broken_by, sample.worst_margin) == ("pgd", pytest.approx(-0.06))
    # 0.56 -> 0.52, where it only looks broken -> 0.48, where it is.
    stage = STEPS | {"steps": 2, "step_size": 0.04}
    (sample,) = run(TwoFaced(), pixels(0.56), torch.ones(1).long(), stage, policy="strongest")
    assert (sample.broken_by, float(sample.worst), sample.retracted) == ("pgd", pytest.approx(0.48), 1)
    images, labels = pixels(0.45, 0.5), torch.ones(2, dtype=torch.int64)
    found = run(Valley(0.012), images, labels, stages=[], eps=0.1, policy="strongest", labels="true_for_all")
    assert [float(one.worst) for one in found] == pytest.approx([0.45, 0.5])
    assert [one.prediction for one in found] == [0, 1]


class TwoFaced(nn.Module):
    """Linear, but near 0.52 it is far on the other side as long as gradients are recorded."""

    def forward(self, x):
        pixel = x.flatten(1)[:, 0]
        lie = 10.0 * (((pixel - 0.52).abs() < 0.01) & torch.is_grad_enabled())
        return torch.stack([torch.zeros_like(pixel), pixel - 0.5 - lie], 1)


def test_strongest_spends_the_budget_and_keeps_the_lowest_margin(linear):
    images, labels = pixels(0.505, 0.55, 0.8, 0.3), torch.ones(4, dtype=torch.int64)
    stages = (STEPS, STEPS | {"restarts": 2, "step_size": "0.02 eps"})
    samples = run(linear(ONE, -0.5), images, labels, *stages, policy="strongest")
    assert [float(sample.worst) for sample in samples] == pytest.approx([0.405, 0.45, 0.7, 0.3])
    assert [sample.broken_by for sample in samples] == ["pgd", "pgd", "", "clean"]
    assert [sample.prediction for sample in samples] == [0, 0, 1, 0]
    # three runs of 10 steps and their last iterates; what is broken is looked at once more
    assert [sample.backwards for sample in samples] == [30, 30, 30, 0]
    assert [sample.forwards for sample in samples] == [34, 34, 33, 0]
    assert samples[0].retracted == 0


def test_predicted_labels_are_left_and_unknown_normalisation_is_refused(linear):
    # Misclassified at 0.45, and pushed over the boundary to where it is right.
    images, labels = pixels(0.45, 0.55, 0.3), torch.ones(3, dtype=torch.int64)
    samples = run(linear(ONE, -0.5), images, labels, policy="last", labels="predicted")
    assert [sample.target for sample in samples] == [0, 1, 0]
    assert [float(sample.worst) for sample in samples] == pytest.approx([0.55, 0.45, 0.4])
    assert [sample.broken_by for sample in samples] == ["", "pgd", "clean"]
    assert [sample.backwards for sample in samples] == [10, 10, 10]
    with pytest.raises(BadInputError, match="normalisation"):
        run(linear(ONE, -0.5), pixels(0.6), torch.ones(1).long(), space="normalised", clip=False)


MEAN, STD = [0.2, 0.5, 0.3], [0.25, 0.2, 0.1]


@pytest.fixture
def normalised(linear):
    """Linear in normalised inputs, with images all over the pixel range."""
    weight = (rand(0, 3, 4, 4) - 0.5).float()
    images = rand(1, 40, 3, 4, 4).float()
    model = normalise_inside(linear(weight, 0.0), MEAN, STD)
    inside = ((images - model.pixel_mean) / model.pixel_std).flatten(1)
    with torch.no_grad():
        model.bias.copy_(-(inside @ weight.flatten()).median() - 0.01)
    return model.eval(), images, weight


def test_in_normalised_space_without_clipping_the_flip_set_is_the_known_one(normalised):
    """|w.u + b| <= eps ||w||_1, whatever the pixels: nothing bounds them."""
    model, images, weight = normalised
    score = model(images)[:, 1].detach()
    labels, reach = (score > 0).long(), score.abs() / weight.abs().sum()
    eps = float(reach.sort().values[19:21].mean())
    stage = STEPS | {"step_size": "0.15 eps", "steps": 20}
    samples = run(model, images, labels, stage, eps=eps, space="normalised", clip=False, policy="last")
    assert [bool(sample.broken_by) for sample in samples] == (reach < eps).tolist()
    outcome = attack(model, images, labels, "fgsm-linf-8_255", eps=eps, space="normalised", clip=False, policy="last")
    assert torch.equal(outcome.broken, reach < eps)
    assert float(outcome.images.max()) > 1 + 0.5 * eps * min(STD)
    moved = (outcome.images - images).abs().amax((0, 2, 3))
    assert torch.allclose(moved, eps * torch.tensor(STD), atol=1e-6)


def test_cutting_normalised_inputs_off_is_shown_as_what_it_is(normalised):
    model, images, _ = normalised
    labels = model(images).argmax(1)
    cut = ((images - model.pixel_mean) / model.pixel_std).clamp(0, 1) * model.pixel_std + model.pixel_mean
    damaged = model(cut).argmax(1) != labels
    assert 3 <= int(damaged.sum()) <= 37
    alone = run(model, images, labels, eps=0.1, space="normalised", clip=True, stages=())
    assert [sample.broken_by for sample in alone] == ["clamp" if hit else "" for hit in damaged.tolist()]
    samples = run(model, images, labels, eps=0.05, space="normalised")
    assert [sample.broken_by == "clamp" for sample in samples] == damaged.tolist()
    assert all(sample.backwards == 0 for sample in samples if sample.broken_by == "clamp")
    assert {sample.broken_by for sample in samples} > {"clamp", ""}


class Noisy(nn.Module):
    """Wavy, but with noise on every logit."""

    stochastic = True

    def __init__(self, noise=0.3):
        super().__init__()
        self.inner, self.noise = Wavy((1, 4, 4), dtype=torch.float32), noise

    def forward(self, x):
        logits = self.inner(x)
        return logits + self.noise * torch.randn_like(logits)


def test_draws_average_answers_and_gradients_and_repeat_themselves():
    model, images = Noisy().eval(), rand(3, 8, 1, 4, 4, dtype=torch.float32)
    with pytest.raises(BadInputError, match="noise"):
        Runner(model, 8, torch.device("cpu"))
    few, many = (Runner(model, 8, torch.device("cpu"), draws) for draws in (4, 400))
    exact = Runner(model.inner, 8, torch.device("cpu"))
    assert torch.equal(few.logits(images), few.logits(images))
    assert torch.allclose(many.logits(images), exact.logits(images), atol=0.1)
    assert not torch.allclose(few.logits(images), exact.logits(images), atol=0.1)
    labels = torch.zeros(8, dtype=torch.int64)

    def loss(logits):
        return nn.functional.cross_entropy(logits, labels, reduction="none")

    mine, theirs = many.gradient(images, loss)[1], exact.gradient(images, loss)[1]
    assert float(nn.functional.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0)) > 0.99
    state = torch.get_rng_state()
    samples = run(model, images, model.inner(images).argmax(1), draws=4)
    again = run(model, images, model.inner(images).argmax(1), draws=4)
    assert torch.equal(state, torch.get_rng_state())
    assert [vars(one)["forwards"] for one in samples] == [vars(one)["forwards"] for one in again]
    assert all(sample.forwards % 4 == 0 for sample in samples)


@pytest.mark.parametrize("draws", [1, 3])
def test_when_the_journal_is_written_changes_nothing(draws):
    """A snapshot answers no claim early: with noise, that would be another batch and so another draw."""
    inner, images = Wavy((1, 4, 4), dtype=torch.float32).eval(), rand(3, 40, 1, 4, 4, dtype=torch.float32)
    model, labels = inner if draws == 1 else Noisy(0.2).eval(), inner(images).argmax(1)

    def outcome(often):
        found = {}
        runner = Runner(model, 8, torch.device("cpu"), draws)
        chosen, ids = attack_checks.scenario((STEPS,), draws=draws, eps=0.04), [str(i) for i in range(40)]

        def begin():
            return Engine(
                runner, chosen, attack_checks.MISCLASSIFIED, ids, 0, lambda sample: found.update({sample.index: sample})
            )

        engine, pulses = begin(), 0
        source = iter([(list(range(i, i + 8)), images[i : i + 8], labels[i : i + 8]) for i in range(0, 40, 8)])

        class StopError(Exception):
            pass

        def pulse():
            nonlocal pulses
            pulses += 1
            if often and pulses % often == 0:
                raise StopError

        while True:
            try:
                engine.run(source, pulse)
                break
            except StopError:
                entries = engine.snapshot()
                engine = begin()
                engine.restore(entries, dict(enumerate(engine.starting_images(images))))
        return [(found[i].broken_by, found[i].forwards, found[i].worst.flatten().tolist()) for i in range(40)]

    whole = outcome(0)
    assert {by for by, *_ in whole} >= {"", "pgd"}
    assert outcome(3) == whole
    assert outcome(2) == whole


@pytest.mark.parametrize("most", [1, 5, 8])
def test_out_of_memory_halves_the_batch_and_goes_on(most):
    """With or without a gradient, and also in the middle of an attack."""
    inner, images = Wavy((1, 4, 4), dtype=torch.float32).eval(), rand(3, 20, 1, 4, 4, dtype=torch.float32)
    labels = inner(images).argmax(1)
    plain = evaluate(inner, images, labels, protocol="pgd20-linf-8_255", batch_size=16, audit=False)
    model = Counting(inner, most=16).eval()
    record = evaluate(model, images, labels, protocol="pgd20-linf-8_255", batch_size=16, audit=False)
    assert not any("memory" in flag for flag in record.flags)
    model.most = most
    small = evaluate(model, images, labels, protocol="pgd20-linf-8_255", batch_size=16, audit=False)
    left = {1: 1, 5: 4, 8: 8}[most]
    assert small.flags == (f"memory ran out at batch size 16: it went on with {left}",)
    assert small.metrics == plain.metrics
    assert small.passes == plain.passes


def test_what_was_halved_stays_flagged_after_an_interruption(tmp_path, monkeypatch):
    monkeypatch.setattr(Journal, "due", lambda self: True)
    inner, images = Wavy((1, 4, 4), dtype=torch.float32).eval(), rand(3, 20, 1, 4, 4, dtype=torch.float32)
    labels, how = inner(images).argmax(1), {"protocol": "pgd20-linf-8_255", "batch_size": 16, "name": "w"}
    with pytest.raises(KeyboardInterrupt):
        evaluate(Counting(inner, stop=20, most=8).eval(), images, labels, out=tmp_path, **how, audit=False)
    record = evaluate(Counting(inner).eval(), images, labels, out=tmp_path, **how, audit=False)
    assert record.flags == ("memory ran out at batch size 16: it went on with 8",)


def test_an_interrupted_curve_repeats_no_smaller_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(Journal, "due", lambda self: True)
    inner, images = Wavy((1, 4, 4), dtype=torch.float32).eval(), rand(3, 24, 1, 4, 4, dtype=torch.float32)
    labels = inner(images).argmax(1)
    how = {"protocol": "pgd20-linf-8_255", "batch_size": 8, "name": "w", "below": ["1/255", "2/255"]}
    whole = Counting(inner).eval()
    record = evaluate(whole, images, labels, **how, audit=False)
    spent = 0
    for share in (0.3, 0.3, 0.3, 1.0):
        model = Counting(inner, stop=int(share * whole.passes)).eval()
        if share < 1:
            with pytest.raises(KeyboardInterrupt):
                evaluate(model, images, labels, out=tmp_path, **how, audit=False)
        else:
            model.stop = None
            resumed = evaluate(model, images, labels, out=tmp_path, **how, audit=False)
        spent += model.passes
    assert resumed.outcomes.digest() == record.outcomes.digest()
    assert spent <= whole.passes + 4 * 12  # the probe, the preflight and one lost batch each time
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_a_late_stage_cannot_do_is_refused_at_once(tmp_path):
    text = attack_checks.USUAL + "[[stage]]\nattack = 'noise'\nrestarts = 1\n"
    text += "[[stage]]\nattack = 'apgd'\nrestarts = 1\nsteps = 5\nloss = 'ce'\ntargets = 1\nrho = 0.75\n"
    (tmp_path / "p.toml").write_text(text)
    model = Counting(Wavy((1, 4, 4), dtype=torch.float32)).eval()
    images = rand(3, 4, 1, 4, 4, dtype=torch.float32)
    with pytest.raises(BadInputError, match=r"'apgd' .*l1"):
        evaluate(model, images, torch.zeros(4).long(), protocol=str(tmp_path / "p.toml"), norm="l1", eps=1, audit=False)
    assert model.passes == 0


def test_ddn_believes_the_mean_of_its_draws():
    """One draw says broken, two say not."""

    class Draws(WatchedQuery):
        def gradient(self, x, loss, *, outside=False):
            x = x.detach().requires_grad_()
            losses = torch.stack([loss(self.model(x) + torch.tensor([shift, 0.0])) for shift in (0.0, 0.0, 0.3)]).mean(
                0
            )
            return losses.detach(), torch.autograd.grad(losses.sum(), x)[0]

    model, images = Valley(), pixels(0.75)  # margin 0.2: 0.2, 0.2 and -0.1
    chosen = DDN(steps=5, gamma=0.1, init_norm=0.5)
    state = drive(chosen, model, images, torch.ones(1).long(), Threat("l2", 0.5), 1, query=Draws(model))
    assert float(state["radius"]) == pytest.approx(0.55)


def test_images_that_do_not_fit_alone_are_refused_in_one_line(monkeypatch):
    with pytest.raises(EvaluationError, match="single image"):
        run(Counting(Wavy((1, 4, 4)), most=0), rand(3, 4, 1, 4, 4), torch.zeros(4).long())
    inner, images = Wavy((1, 4, 4), dtype=torch.float32).eval(), rand(3, 16, 1, 4, 4, dtype=torch.float32)
    labels, move = inner(images).argmax(1), torch.Tensor.to

    def no_room(self, *where, **how):
        if self.ndim == 4 and where == (torch.device("cpu"),):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.30 GiB")
        return move(self, *where, **how)

    monkeypatch.setattr(torch.Tensor, "to", no_room)
    with pytest.raises(EvaluationError, match="images of one batch alone"):
        evaluate(inner, images, labels, protocol="clean", batch_size=16, audit=False)


def test_a_curve_is_monotone_and_reuses_what_broke(tmp_path):
    data, model = load_data("digits", limit=16), load_model("symvit_digits")
    eps = ["4/255", "1/255", "2/255"]
    how = {"protocol": "pgd20-linf-1_255", "batch_size": 16}
    asked = how | {"protocol": [how["protocol"]], "curve": eps, "out": tmp_path}
    records = evaluate(model, data, **asked, audit=False)
    assert [record.spec.protocol.resolved["eps"] for record in records] == [1 / 255, 2 / 255, 4 / 255]
    values = [record.metrics["robust_accuracy"].value for record in records]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]
    whole = evaluate(model, data, **how, eps="4/255", below=["1/255", "2/255"], audit=False)
    assert whole.outcomes.digest() == records[-1].outcomes.digest()
    assert whole.spec.digest() == records[-1].spec.digest()
    for smaller, larger in itertools.pairwise(records):
        broken = ~correct(smaller.outcomes)
        assert not correct(larger.outcomes)[broken].any()
        assert (larger.outcomes["forwards"][broken] == smaller.outcomes["forwards"][broken]).all()
        assert (larger.outcomes["linf"][broken] == smaller.outcomes["linf"][broken]).all()
    alone = evaluate(model, data, **how, eps="4/255", audit=False)
    assert whole.metrics["robust_accuracy"].value <= alone.metrics["robust_accuracy"].value
    kept = evaluate(model, data, **asked, audit=False)
    assert [one.created for one in kept] == [one.created for one in records]
    images, labels = data.tensors()
    outcome = attack(model, images, labels, **how, eps="4/255", below=["1/255", "2/255"])
    same = evaluate(model, images, labels, **how, eps="4/255", below=["1/255", "2/255"], audit=False)
    assert outcome.broken.tolist() == (~correct(same.outcomes)).tolist()
    assert outcome.forwards.tolist() == same.outcomes["forwards"].tolist()
    assert torch.equal(model(outcome.images).argmax(1) != labels, outcome.broken)


@pytest.mark.parametrize(
    "chosen",
    [
        PGD(10, "0.2 eps", True),
        MIM(steps=10, step_size="0.2 eps", decay=1.0),
        APGD(steps=10, loss="ce", targets=1, rho=0.75),
        SPSA(steps=6, samples=32, delta=0.01, lr=0.02, random_start=False),
    ],
)
def test_attacks_work_on_one_class_per_pixel(chosen, fork):
    """The loss per sample is the mean over its pixels; rows do not see each other."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 4, 3, padding=1)).eval().double()
    images = rand(0, 5, 1, 6, 6)
    labels, threat = model(images).argmax(1), Threat("linf", 0.2)
    state = drive(chosen, model, images, labels, threat, None)
    right = (model(state["x"]).argmax(1) == labels).double().mean((1, 2))
    assert (right < 0.95).all()
    alone = drive(chosen, model, images[2:3], labels[2:3], threat, None, keys=torch.tensor([2]))
    assert torch.allclose(alone["x"], state["x"][2:3], atol=1e-9)
