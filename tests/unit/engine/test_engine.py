"""The loop: exact pass counts, refilling that changes nothing, verification, cascades, resumption, refusals."""

import io
from functools import partial

import attack_checks
import pytest
import torch
from torch import nn

from robustbench_kpca import attack, evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.attack_loop import passes, saved
from robustbench_kpca._engine.attack_loop.engine import Engine
from robustbench_kpca._engine.inference import fewer_rows
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.audit.run import audit
from robustbench_kpca.metrics.accuracy import correct

pytestmark = pytest.mark.usefixtures("few_resamples")
EPS = 0.1


def scenario(*stages, eps=EPS, norm="linf"):
    stages = stages or ({"attack": "pgd", "restarts": 1, "steps": 10, "step_size": "0.1 eps", "random_start": False},)
    return attack_checks.scenario(stages, eps=eps, norm=norm)


def rows_of(outcomes):
    return list(zip(*[column.tolist() for column in outcomes.columns.values()], strict=True))


run = partial(attack_checks.attacked, arriving=5)


@pytest.fixture
def known(linear):
    """One pixel, logits (0, x - 1/2): PGD moves towards 1/2 by eps / 10 a step, so x breaks at a known step."""
    model = linear(torch.ones(1, 1, 1), -0.5).eval()
    gaps = torch.tensor([0.005, 0.015, 0.045, 0.095, 0.15, 0.3, -0.25])
    return model, (0.5 + gaps).view(-1, 1, 1, 1), torch.ones(7, dtype=torch.int64)


def test_exact_pass_counts(known):
    model, images, labels = known
    samples = run(model, images, labels, scenario())
    # broken by x_t: t steps and one look at x_t cost t + 1 passes both ways, one plain forward confirms;
    # the last iterate, x_10, is only looked at by that forward
    assert [sample.backwards for sample in samples] == [2, 3, 6, 10, 10, 10, 0]
    assert [sample.forwards for sample in samples] == [3, 4, 7, 11, 11, 11, 0]
    assert [sample.broken_by for sample in samples] == ["pgd"] * 4 + ["", "", "clean"]
    assert [sample.retracted for sample in samples] == [0] * 7


def test_restarts_and_later_stages_are_for_survivors_only(known):
    model, images, labels = known
    stage = {"attack": "pgd", "restarts": 3, "steps": 10, "step_size": "0.1 eps", "random_start": False}
    samples = run(model, images, labels, scenario(stage))
    assert [sample.backwards for sample in samples] == [2, 3, 6, 10, 30, 30, 0]
    assert [sample.forwards for sample in samples] == [3, 4, 7, 11, 33, 33, 0]
    model, images, labels = known
    weak = {"attack": "pgd", "restarts": 1, "steps": 2, "step_size": "0.1 eps", "random_start": False}
    samples = run(model, images, labels, scenario(weak, {"attack": "fgsm", "restarts": 1}))
    assert [sample.broken_by for sample in samples] == ["pgd", "pgd", "fgsm", "fgsm", "", "", "clean"]
    assert [sample.backwards for sample in samples] == [2, 2, 3, 3, 3, 3, 0]


def test_a_small_batch_is_always_full_and_its_parameters_are_left_alone(known):
    model, images, labels = known
    sizes = []
    model.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    model.bias.requires_grad_(False)
    evaluate(model, images, labels, protocol="pgd20-linf-8_255", batch_size=4, audit=False)
    assert set(sizes) == {4}
    assert model.weight.requires_grad
    assert not model.bias.requires_grad
    assert model.weight.grad is None


@pytest.mark.parametrize("name", ["symvit_digits", pytest.param("rpc_symvit_digits", marks=pytest.mark.slow)])
def test_order_refilling_fewer_rows_and_workers_change_no_bit(name, monkeypatch):
    model, data = load_model(name), load_data("digits", limit=40)
    how = {"protocol": "pgd20-linf-4_255", "batch_size": 16}
    sizes = []
    model.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    whole = evaluate(model, data, **how, audit=False).outcomes
    assert sizes.count(8) > 5
    with monkeypatch.context() as patch:
        patch.setattr(fewer_rows, "FEWEST", 16)
        assert evaluate(model, data, **how, audit=False).outcomes.to_csv() == whole.to_csv()
    assert 3 < correct(whole).sum() < 37
    rows = {row[0]: row for row in rows_of(whole)}
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    assert evaluate(model, data.take(order), **how, audit=False).outcomes.to_csv() == whole.to_csv()
    part = evaluate(model, data.take(order[:17]), **how, audit=False).outcomes
    assert [rows[row[0]] for row in rows_of(part)] == rows_of(part)
    assert evaluate(model, data, **how, workers=2, audit=False).outcomes.to_csv() == whole.to_csv()


def test_the_seed_matters_and_is_all_that_matters():
    model, data = load_model("symvit_digits"), load_data("digits", limit=10)
    first, again, other = (
        evaluate(model, data, protocol="pgd20-linf-4_255", seed=s, audit=False).outcomes for s in (0, 0, 1)
    )
    assert first.digest() == again.digest() != other.digest()


class _Lies(nn.Module):
    """Has another score while gradients are recorded."""

    def __init__(self, lie):
        super().__init__()
        self.weight, self.lie = nn.Parameter(torch.ones(1)), lie

    def forward(self, x):
        score = (x.flatten(1).sum(1) - 0.5) * self.weight
        score = self.lie(score) if torch.is_grad_enabled() else score
        return torch.stack([torch.zeros_like(score), score], 1)


def test_what_a_plain_forward_does_not_confirm_is_retracted_and_counted():
    model = _Lies(lambda score: -score.abs()).eval()
    images, labels = torch.full((3, 1, 1, 1), 0.9), torch.ones(3, dtype=torch.int64)
    for sample in run(model, images, labels, scenario()):
        assert sample.broken_by == ""
        assert sample.retracted == 10
        assert sample.backwards == 10
    record = evaluate(model, images, labels, protocol="pgd20-linf-8_255", audit=False)
    assert record.metrics["robust_accuracy"].value == 1
    (flag,) = record.flags
    assert flag.startswith("3 samples were misclassified in a gradient pass")


class _Flat(nn.Module):
    def forward(self, x):
        score = (x.flatten(1).sum(1) > 0.5).float() + 0 * x.flatten(1).sum(1)
        return torch.stack([1 - 2 * score, 2 * score], 1)


def test_masked_gradients_are_refused_or_flagged(tmp_path):
    images, labels = torch.full((3, 1, 1, 1), 0.9), torch.ones(3, dtype=torch.int64)
    with pytest.raises(EvaluationError, match="gradients"):
        evaluate(
            _Lies(lambda score: score * torch.nan).eval(), images, labels, protocol="pgd20-linf-8_255", audit=False
        )
    record = evaluate(_Flat().eval(), images, labels, protocol="fgsm-linf-8_255", audit=False)
    (flag,) = record.flags
    assert flag.startswith("3 samples met a gradient that was zero everywhere")
    opaque = _Says(lambda x: x.detach().flatten(1).repeat(1, 2) * torch.tensor([0, 1])).eval()
    with pytest.raises(BadInputError, match="differentiate"):
        evaluate(opaque, images, labels, protocol="fgsm-linf-8_255", audit=False)
    images, labels = torch.full((3, 1, 1, 1), 0.9), torch.ones(3, dtype=torch.int64)
    with pytest.raises(EvaluationError, match=r"gradient .*3 of 3 .*'pgd'"):
        evaluate(_Blind().eval(), images, labels, protocol="pgd20-linf-8_255", out=tmp_path, audit=False)
    assert not list(tmp_path.iterdir())


class _Blind(nn.Module):
    """Finite logits, NaN gradients: what a masked defence looks like to an attack."""

    def forward(self, x):
        score = x.flatten(1).sum(1) - 0.5 + 0 * (x - x).flatten(1).sum(1).sqrt()
        return torch.stack([torch.zeros_like(score), score], 1)


class _Cheat:
    def __init__(self, move):
        self.move = move

    def start(self, x, y, threat, keys):
        return {"x": x, "finished": torch.zeros_like(y, dtype=torch.bool)}

    def step(self, state, threat, query):
        x = self.move(state["x"])
        query.logits(x)
        return {"x": x, "finished": torch.ones_like(state["finished"])}


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (lambda x: x - 1.5 * EPS, "0.15"),
        (lambda x: x + 0.99 * EPS, "outside"),
        (lambda x: x * torch.nan, "outside"),
    ],
)
def test_a_proposal_outside_is_refused_not_clipped(linear, move, message):
    runner = Runner(linear(torch.ones(1, 1, 1), -0.5).eval(), 4, torch.device("cpu"))
    engine = Engine(runner, scenario(), attack_checks.MISCLASSIFIED, ["0"], 0, lambda sample: None)
    engine.pools[0].attack = _Cheat(move)
    with pytest.raises(EvaluationError, match=message):
        engine.run(iter([([0], torch.full((1, 1, 1, 1), 0.95), torch.tensor([1]))]))


def test_the_worst_image_is_returned_and_a_loader_is_as_good_as_tensors(known):
    model, images, labels = known
    result = attack(model, images, labels, "pgd20-linf-8_255", eps=EPS)
    assert torch.equal(result.broken, torch.tensor([True] * 4 + [False, False, True]))
    with torch.no_grad():
        assert torch.equal(model(result.images).argmax(1) != labels, result.broken)
    assert float((result.images - images).abs().max()) <= EPS + 1e-6
    assert torch.equal(result.images[-1], images[-1])  # a clean error is never attacked
    assert float((images[5] - result.images[5]).abs()) == pytest.approx(EPS, abs=1e-6)  # stands, at the worst point
    model, images, labels = known
    pairs = [(images[:3], labels[:3]), (images[3:], labels[3:])]
    assert (
        evaluate(model, pairs, protocol="clean", audit=False).outcomes.digest()
        == evaluate(model, images, labels, protocol="clean", audit=False).outcomes.digest()
    )


@pytest.mark.parametrize(
    "how",
    [
        {"protocol": "pgd20-linf-4_255", "eps": "4.4/255", "storage": "png"},
        {"protocol": "noise-blur-contrast-32px", "severities": [2, 5]},
    ],
)
def test_an_interrupted_evaluation_goes_on_in_mid_attack(tmp_path, monkeypatch, how):
    model, data = load_model("symvit_digits"), load_data("digits", limit=20)
    how = how | {"name": "m", "batch_size": 8}
    calls = []
    model.register_forward_hook(lambda *a: calls.append(1))
    whole = evaluate(model, data, **how, audit=False).outcomes
    needed = len(calls)
    monkeypatch.setattr(Journal, "due", lambda self: True)
    monkeypatch.setattr(passes, "EVERY", 0.0)

    def stop(done, total, **news):
        if done >= total // 2:
            raise KeyboardInterrupt

    calls.clear()
    other_order = data.take(range(len(data) - 1, -1, -1))  # must not matter to what is resumed
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, other_order, **how, out=tmp_path, progress=stop, audit=False)
    first = len(calls)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".shards", ".npz"}, "of samples to look at"
    assert {path.suffix for path in tmp_path.rglob(".*.shards/*")} <= {".partial", ".json"}, "done, and how far it is"
    assert list(tmp_path.rglob("*.partial"))
    resumed = evaluate(model, data, **how, out=tmp_path, audit=False)
    assert resumed.outcomes.to_csv() == whole.to_csv()
    assert not list(tmp_path.glob(".*"))
    assert len(calls) - first < needed  # finished work was not repeated
    calls.clear()
    assert evaluate(model, data, **how, out=tmp_path, audit=False).outcomes.digest() == whole.digest()
    assert len(calls) == 1, "a finished record is taken as it is, after one look at what the model answers"
    evaluate(model, data, **how, out=tmp_path, fresh=True, audit=False)
    assert len(calls) > 2


def test_a_journal_of_another_run_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(Journal, "due", lambda self: True)
    data = load_data("digits", limit=40)

    def stop(done, total, **news):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(load_model("vit_digits"), data, protocol="clean", name="m", out=tmp_path, progress=stop, audit=False)
    other = evaluate(load_model("symvit_digits"), data, protocol="clean", name="m", out=tmp_path, audit=False).outcomes
    assert (
        other.digest() == evaluate(load_model("symvit_digits"), data, protocol="clean", audit=False).outcomes.digest()
    )


IMAGES, LABELS = torch.full((4, 1, 1, 1), 0.9), torch.ones(4, dtype=torch.int64)


class _Says(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, x):
        return self.answer(x)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES * 255, LABELS, r"230 .*\[0, 1\]"),
        (IMAGES - 1, LABELS, "-0.1"),
        (IMAGES * torch.nan, LABELS, "NaN"),
        ((IMAGES * 255).byte(), LABELS, "dtype torch.uint8"),
        (IMAGES[:, 0], LABELS, "shape"),
        (IMAGES, "abcd", "tensor"),
        (IMAGES, LABELS[:3], r"\(3,\)"),
        (IMAGES, LABELS.float(), "dtype torch.float32"),
        (IMAGES, LABELS - 2, "label -1"),
        (IMAGES[:0], LABELS[:0], "no images"),
        (IMAGES, None, "loader"),
        ([], None, "no batches"),
        ("digit", None, "did you mean 'digits'"),
    ],
)
def test_images_and_labels_that_cannot_be_used(linear, images, labels, message, tmp_path):
    model = linear(torch.ones(1, 1, 1), -0.5).eval()
    with pytest.raises(BadInputError, match=message):
        evaluate(model, images, labels, protocol="pgd20-linf-8_255", out=tmp_path, audit=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ask", [evaluate, audit, attack])
def test_training_mode_is_refused_by_the_name_of_what_is_in_it(linear, ask):
    how = {audit: {}, attack: {"protocol": "fgsm-linf-8_255"}}.get(ask, {"protocol": "clean", "audit": False})
    part = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.BatchNorm1d(1)).eval()
    part[1].train()
    named = r"module '1' of the model \(Dropout\)"
    noisy = linear(torch.ones(1, 1, 1), 0.0)
    noisy.stochastic = True
    whole = rf"the model \({type(noisy).__name__}\)"
    for model, which in ((linear(torch.ones(1, 1, 1), 0.0), whole), (noisy, whole), (part, named)):
        with pytest.raises(BadInputError, match=f"^{which} in training mode; .* call model.eval"):
            ask(model, IMAGES, LABELS, **how)
    part[2].train()
    with pytest.raises(BadInputError, match=f"^{named} and 1 more in training mode"):
        ask(part, IMAGES, LABELS, **how)


def test_corruption_protocols_check_images_too(linear):
    model, images = linear(torch.ones(3, 1, 1), -0.5).eval(), IMAGES.expand(-1, 3, -1, -1)
    for wrong in (images * 255, images * torch.nan):
        with pytest.raises(BadInputError, match="images"):
            evaluate(model, wrong, LABELS, protocol="noise-blur-contrast", audit=False)


def test_equal_weights_are_not_yet_an_equal_model(linear, tmp_path):
    class Other(linear):
        def forward(self, x):
            return super().forward(1 - x)

    Other.__name__ = linear.__name__
    for kind, right in ((linear, 1.0), (Other, 0.0)):
        model = kind(torch.ones(1, 1, 1), -0.5).eval()
        assert (
            evaluate(model, IMAGES, LABELS, protocol="clean", out=tmp_path, audit=False).metrics["clean_accuracy"].value
            == right
        )


def test_a_newer_record_is_never_replaced(linear, tmp_path):
    from robustbench_kpca.records.record import find_records

    model = linear(torch.ones(1, 1, 1), -0.5).eval()
    evaluate(model, IMAGES, LABELS, protocol="clean", out=tmp_path, audit=False)
    (path,) = find_records(tmp_path)
    newer = path.read_text().replace('"schema_version": 4', '"schema_version": 5')
    path.write_text(newer)
    with pytest.raises(BadInputError, match="schema 5"):
        evaluate(model, IMAGES, LABELS, protocol="clean", out=tmp_path, audit=False)
    assert path.read_text() == newer


@pytest.mark.parametrize(("protocol", "eps"), [("pgd20-l2-128_255", 128), ("sld-l1-10", 100_000)])
def test_a_ball_larger_than_the_box_is_refused(known, protocol, eps):
    model, images, labels = known
    with pytest.raises(BadInputError, match=r"eps = .*/255"):
        evaluate(model, images, labels, protocol=protocol, eps=eps, audit=False)


def test_a_journal_holds_no_clean_image_and_no_tensor_twice():
    clean = torch.rand(3, 20, 20, generator=torch.Generator().manual_seed(0))
    zero = torch.zeros_like(clean)
    best = clean + 0.1
    content = {
        "x": best[None].clone(), "best": best.clone(), "clean": clean.clone(),
        "found": {1: (clean[None].clone(), "clean")},
        "signs": [zero, -zero], "odd": torch.full_like(clean, torch.nan), "few": torch.zeros(3), "none": None,
    }  # fmt: skip
    stored = saved.packed(content, clean)
    buffer = io.BytesIO()
    torch.save(stored, buffer)
    assert buffer.tell() < 4 * clean.nbytes + 8000, "best, 0, -0 and NaN once each; clean not at all"
    buffer.seek(0)
    back = saved.unpacked(torch.load(buffer, weights_only=True), clean)
    assert list(back) == list(content)
    assert back["found"][1][1] == "clean"
    for key in ("x", "best", "clean", "odd", "few"):
        assert back[key].numpy().tobytes() == content[key].numpy().tobytes()
        assert back[key].shape == content[key].shape
    assert [one.signbit().any().item() for one in back["signs"]] == [False, True]
    back["x"].zero_()
    assert torch.equal(back["best"], best), "nothing shares its storage afterwards"
