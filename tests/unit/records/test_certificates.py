"""Certificates: worked cases, other implementations, attacks on true and on planted false ones, and false records."""

import tomllib
from itertools import combinations_with_replacement, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from attack_checks import rand
from board_pages import board_text
from scipy.stats import beta, norm
from stand_ins import attack_protocol
from torch import nn

from robustbench_kpca import evaluate, load_data
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca._core.strict import validate
from robustbench_kpca.cli.main import main
from robustbench_kpca.metrics import measure
from robustbench_kpca.models.loading import load_model
from robustbench_kpca.models.sources.ablated import Ablated
from robustbench_kpca.models.sources.masked import Masked
from robustbench_kpca.models.sources.smoothed import Noisy, Sparse
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records import proof
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.proof import Bands, Masks, Noise, Pixels
from robustbench_kpca.records.record import OutcomesFile
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import BoardSpec, Column, Row
from robustbench_kpca.report.consistency import load_consistent
from robustbench_kpca.report.contradictions import require_no_contradiction
from robustbench_kpca.report.matching import load_board, read
from robustbench_kpca.report.proofs import broken_proof
from robustbench_kpca.report.table import cells

pytestmark = pytest.mark.usefixtures("few_resamples")
SIDE, COUNT, CLASSES = 8, 200, 3
PATCH, L2, L0 = "certified-patch-4", "certified-l2-0.25", "certified-l0-4"
NOISE = (
    attack_protocol("Random squares", "noise")
    .replace('norm = "linf"\neps = "8/255"', 'norm = "patches"\neps = 1\npatch = {patch}\ncorners = "anywhere"')
    .replace("restarts = 1", "restarts = 20")
)


class Small(nn.Module):
    """Answers that depend on every pixel, and differ from view to view."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            conv, last = nn.Conv2d(3, 6, 3, bias=False), nn.Linear(6 * 36, CLASSES, bias=False)
            self.net = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), last)
        self.eval()

    def forward(self, x):
        return self.net(x - 0.5)


class Bright(nn.Module):
    """Class 1 where any pixel is bright: one bright column more is one vote more."""

    dtype = torch.float32

    def forward(self, x):
        bright = (x.amax((1, 2, 3)) > 0.6).to(self.dtype)
        return torch.stack([1 - bright, bright], 1)


class OfBatch(nn.Module):
    """Takes the mean of its batch off: batch statistics."""

    def forward(self, x):
        return (x - x.mean(0)).mean((2, 3)) * 100


def images():
    x = rand(0, COUNT, 3, SIDE, SIDE, dtype=torch.float32)
    x[::2] = 0.2 * x[::2] + 0.8 * x[::2, :, :1, :1]
    return x, torch.arange(COUNT) % CLASSES


def certified(model, protocol, x, y, **how):
    return evaluate(model, x, y, **{"protocol": protocol, "quiet": True, "batch_size": 50, "classes": CLASSES} | how)


def answer(model, image, seen, fill=0.5):
    return int(model(torch.where(seen, image, fill)[None])[0].argmax())


@pytest.mark.parametrize(
    ("own", "counts", "radius"),
    [
        (Bands(band=4), (25, 7), 6), (Bands(band=4), (24, 8), 5), (Bands(band=4), (24, 8 + 1), 4),
        (Bands(band=19), (137, 87), 7), (Bands(band=19), (225, 124), 32), (Bands(band=19), (224, 125), 31),
        (Bands(band=4, stride=2), (12, 4), 5),
        (Noise(sigma=1), (100, 0), 1.500475), (Noise(sigma=1), (100_000, 0), 3.811456),
        (Noise(sigma=1), (990, 10), 1.978009), (Noise(sigma=1), (65, 35), -1), (Noise(sigma=1), (549, 451), -1),
        (Masks(patch=5), (666, 0), 5), (Masks(patch=5), (665, 1), 0),
    ],
)  # fmt: skip
def test_worked_cases(own, counts, radius):
    assert own.radius(*counts, 1, 0.001) == radius


def test_more_worked_cases(monkeypatch):
    assert Noise(sigma=1).radius(66, 34, 1, 0.001) > 0 < Noise(sigma=1).radius(550, 450, 1, 0.001)
    assert [Masks(patch=p, masks=k).places(n) for n, p, k in ((224, 32, 6), (32, 5, 6), (8, 2, 2))] == [
        (64, [0, 33, 66, 99, 132, 160]), (9, [0, 5, 10, 15, 20, 23]), (5, [0, 3])
    ]  # fmt: skip
    assert proof.lower_bound(990, 1000, 0.001) == pytest.approx(0.976036, abs=1e-6)
    for share, pixels, keep, radius in ((1, 10, 2, 2), (1, 784, 45, 11), (0.9, 784, 45, 8), (0.75, 784, 45, 4)):
        monkeypatch.setattr(proof, "lower_bound", lambda *_, share=share: share)
        assert Pixels(keep=keep, pixels=pixels).radius(1, 0, 1, 0.05) == radius


def by_votes(model, image, views, touched):
    """Count by hand; the largest side whose patches touch too few views, wherever they lie. `touched(side)` counts."""
    votes = np.bincount([answer(model, image, seen) for seen in views], minlength=CLASSES)
    best = max(range(CLASSES), key=lambda c: (votes[c], -c))
    sides = [side for side in range(1, SIDE + 1) if all(
        votes[best] - votes[c] > 2 * touched(side) or (votes[best] - votes[c] == 2 * touched(side) and best < c)
        for c in range(CLASSES) if c != best)]  # fmt: skip
    return best, float(max(sides, default=0))


def windows(side, stride):
    return [{(start + at) % SIDE for at in range(side)} for start in range(0, SIDE, stride)]


def mask(rows, columns):
    return torch.tensor([[r in rows and c in columns for c in range(SIDE)] for r in range(SIDE)])


@pytest.mark.parametrize("kind", [Bands(band=2), Bands(band=1, stride=2), Bands(band=3, stride=2)])
def test_votes_equal_another_implementation_image_by_image(kind, tmp_path):
    (x, y), model = images(), Small()
    views = windows(kind.band, kind.stride)

    def touched(side):
        return max(sum(bool(v & set(range(left, left + side))) for v in views) for left in range(SIDE - side + 1))

    record = certified(Ablated(model, kind), PATCH, x, y, out=tmp_path)
    worst = {side: touched(side) for side in range(1, SIDE + 1)}
    own = [by_votes(model, image, [mask(range(SIDE), view) for view in views], worst.get) for image in x]
    outcomes = record.outcomes
    assert list(zip(outcomes["prediction"].tolist(), outcomes["radius"].tolist(), strict=True)) == own
    right = [label == best and radius >= 4 for (best, radius), label in zip(own, y.tolist(), strict=True)]
    assert record.metrics["certified_accuracy"].value == np.mean(right)
    assert len({radius for _, radius in own}) > 1
    [file] = tmp_path.glob("*.record.json")
    assert load_consistent(file).metrics == record.metrics


def by_masks(model, image, squares):
    """PatchCleanser as its paper tells it, one prediction at a time."""
    two = {
        (i, j): answer(model, image, ~(squares[i] | squares[j]))
        for i, j in combinations_with_replacement(range(len(squares)), 2)
    }
    first = [two[i, i] for i in range(len(squares))]
    majority = max(range(CLASSES), key=lambda c: (first.count(c), -c))
    for i, other in enumerate(first):
        if other != majority and all(two[min(i, j), max(i, j)] == other for j in range(len(squares))):
            return other, float(4 * (len(set(two.values())) == 1))
    return majority, float(4 * (len(set(two.values())) == 1))


def test_double_masking_equals_another_implementation_image_by_image():
    (x, y), model = images(), Small()
    side, starts = 6, [0, 2]  # ceil((8 - 4 + 1) / 2) = 3; 4 + 3 - 1 = 6; 8 - 6 = 2
    squares = [mask(range(r, r + side), range(c, c + side)) for r, c in product(starts, repeat=2)]
    outcomes = certified(Masked(model, Masks(patch=4, masks=2)), PATCH, x, y).outcomes
    own = [by_masks(model, image, squares) for image in x]
    assert list(zip(outcomes["prediction"].tolist(), outcomes["radius"].tolist(), strict=True)) == own
    assert 0 < sum(radius > 0 for _, radius in own) < COUNT


def test_smoothing_equals_another_implementation_image_by_image():
    x, y = images()
    x, y, model, sigma = x[:40], y[:40], Small(), 0.1
    record = certified(Noisy(model, Noise(sigma=sigma)), L2, x, y, selection=60, samples=300)
    outcomes = record.outcomes
    at = {name: row for row, name in enumerate(outcomes["sample"].tolist())}

    def votes(image, sample, scope, count):
        drawn = generator(sample_key(0, f"certificate {scope}", sample)).standard_normal((count, *image.shape))
        return np.bincount(model(image + sigma * torch.from_numpy(drawn).float()).argmax(1), minlength=CLASSES)

    for name, row in at.items():
        image = x[int(name)]
        best = votes(image, name, "selection", 60).argmax()
        low = beta.ppf(0.001, k := votes(image, name, "samples", 300)[best], 300 - k + 1)
        radius = sigma * norm.ppf(low) if low >= 0.5 else None
        assert outcomes["prediction"][row] == (-1 if radius is None else best)
        assert 0 <= (radius or 0) - outcomes["radius"][row] < 1.001e-6
    assert 0 < record.metrics["abstained"].value < 1


@pytest.mark.parametrize("sigma", [0.25, 0.5])
def test_smoothing_of_a_linear_model_tends_to_its_exact_distance(linear, sigma):
    weight = rand(1, 1, 4, 4, dtype=torch.float32) - 0.5
    x, y = rand(2, 6, 1, 4, 4, dtype=torch.float32), torch.zeros(6, dtype=torch.long)
    bias = -float((x.flatten(1) @ weight.flatten()).median())
    exact = (x.flatten(1) @ weight.flatten() + bias).abs() / weight.norm()
    model = Noisy(linear(weight, bias).eval(), Noise(sigma=sigma))
    how = {"protocol": L2, "quiet": True, "batch_size": 500, "classes": 2}
    few, radius = (evaluate(model, x, y, samples=n, **how).outcomes["radius"] for n in (200, 20_000))
    assert (radius <= exact.numpy()).all()
    assert np.abs(radius - exact.numpy()).max() < 0.15 * sigma < np.abs(few - exact.numpy()).max()


def test_random_ablation_shows_so_many_pixels():
    model = Sparse(Small(), Pixels(keep=5, pixels=64))
    copies = model.copies(torch.full((3, 8, 8), 0.9), 50, generator(1))
    assert ((copies == 0.9).all(1).flatten(1).sum(1) == 5).all()
    assert ((copies == 0.5).all(1).flatten(1).sum(1) == 59).all()
    x, y = images()
    outcomes = certified(Sparse(Small(), Pixels(keep=5, pixels=64)), L0, x[:10], y[:10], samples=200).outcomes
    assert set(outcomes["radius"].tolist()) <= set(range(13))
    with pytest.raises(BadInputError, match=r"model\.pixels=64"):
        certified(Sparse(Small(), Pixels(keep=5, pixels=63)), L0, x, y)


def test_logits_answer_as_votes_do_and_have_gradients():
    x, _ = images()
    for model in (Ablated(Small(), Bands(band=1)), Masked(Small(), Masks(patch=4, masks=2))):
        x.requires_grad_(True)
        logits = model(x)
        assert (logits.argmax(1) == model.evidence(model.counted(x))[0]).all()
        assert ((gradient := torch.autograd.grad(logits[:, 0].sum(), x)[0]).flatten(1).abs().amax(1) > 0).all()
        assert torch.isfinite(gradient).all()


def bracket(tmp_path, patch):
    """A certificate and an attack by squares of some side, on dark images that `Bright` ablated answers by class 0."""
    file = tmp_path / "noise.toml"
    file.write_text(NOISE.format(patch=patch))
    x, y = torch.full((3, 1, SIDE, SIDE), 0.2), torch.zeros(3, dtype=torch.long)
    model = Ablated(Bright().eval(), Bands(band=1))
    return [
        evaluate(model, x, y, protocol=p, classes=2, audit=False, quiet=True, batch_size=3) for p in (PATCH, str(file))
    ]


def test_brackets_of_attack_and_certificate(tmp_path, monkeypatch):
    certificate, attack = bracket(tmp_path, 5)
    assert certificate.outcomes["radius"].tolist() == [4.0] * 3  # 4 of 8 votes, and class 0 wins ties
    assert attack.metrics["robust_accuracy"].value == 0
    require_no_contradiction([certificate, attack], [])
    _, weaker = bracket(tmp_path, 4)
    assert weaker.metrics["robust_accuracy"].value == 1
    true = Bands.radius
    monkeypatch.setattr(Bands, "radius", lambda own, *counts: true(own, *counts) + own.stride)
    with pytest.raises(BadInputError, match=r"sample '0' by class 1 at a distance of 5, .* class 0 is proven up to 5"):
        require_no_contradiction(bracket(tmp_path, 5), [])


class Halves(Bright):
    """Answers in bfloat16, which holds whole numbers up to 256."""

    dtype = torch.bfloat16


def test_votes_are_counted_exactly_and_belong_to_networks():
    x = torch.zeros(1, 1, 1, 1024)
    x.view(-1)[:769] = 1
    model = Ablated(Halves().eval(), Bands(band=1))
    assert model.counted(x).tolist() == [[255, 769]]
    x, y = torch.full((3, 1, SIDE, SIDE), 0.2), torch.zeros(3, dtype=torch.long)
    nets = [Bright(), Bright()]
    for number, net in enumerate(nets):
        net.own = nn.Parameter(torch.tensor(float(number)))
    models = [Noisy(net.eval(), Noise(sigma=0.01)) for net in nets]
    made = [certified(m, L2, x, y, batch_size=3, classes=2, samples=100, name=f"m{k}") for k, m in enumerate(models)]
    require_no_contradiction(made, [Row(title="Both", models=("m0", "m1"))])


class Broken(Bright):
    def forward(self, x):
        return super().forward(x) * torch.where(x[:, :1].amax((1, 2, 3)) > 0.9, torch.nan, 1.0)[:, None]


def test_what_is_not_finite_has_no_vote_and_no_answer():
    """The third image makes all views fail, the second those of one band."""
    x = torch.full((3, 1, SIDE, SIDE), 0.2)
    x[1, ..., 0], x[2] = 1.0, 1.0
    model, y = Ablated(Broken().eval(), Bands(band=1)), torch.zeros(3, dtype=torch.long)
    outcomes = certified(model, PATCH, x, y, batch_size=3, classes=2).outcomes
    assert outcomes["prediction"].tolist() == [0, 0, -1]
    assert outcomes["votes"].tolist() == [8, 7, 0]
    logits = model(x)
    assert torch.isfinite(logits[:2]).all()
    assert logits[:2].argmax(1).tolist() == [0, 0]


def test_draws_are_not_lost_where_memory_runs_out(monkeypatch):
    x, y = torch.full((2, 1, SIDE, SIDE), 0.2), torch.zeros(2, dtype=torch.long)
    shown = []

    class Greedy(Bright):
        def forward(self, x):
            shown.append(len(x))
            if len(shown) == 12 and len(x) > 50:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(x)

    model = Noisy(Greedy().eval(), Noise(sigma=0.01))
    outcomes = certified(model, L2, x, y, batch_size=100, classes=2, samples=1000).outcomes
    assert max(shown[12:]) == 50
    assert outcomes["votes"].tolist() == [1000, 1000]


def test_votes_that_depend_on_the_batch_or_on_chance_are_refused():
    x, y = images()
    for allow in ((), ("batch", "stochastic")):
        with pytest.raises(BadInputError, match="other images of its batch"):
            certified(Ablated(OfBatch().eval(), Bands(band=2)), PATCH, x, y, allow=allow)
    with pytest.raises(BadInputError, match="draws noise of its own"):
        load_model("ablated:smoothed:vit_digits", sigma=0.1, band=2)


def other_rows(record, rows):
    outcomes = Outcomes.from_rows(record.outcomes.table, rows)
    numbers = measure(outcomes, parse_scenario(dict(record.spec.protocol.resolved), ""))
    follows = {"metrics": numbers, "outcomes_file": OutcomesFile.of(outcomes, record.spec)}
    return record.model_copy(update=follows).attach(outcomes)


def draws(votes, radius, **attack):
    """A certificate of one sample by 1,000 draws, and an attack on it that succeeded at `l2`."""
    x, y = images()
    model = Noisy(Small(), Noise(sigma=0.1))
    first = certified(model, L2, x[:1], y[:1], samples=100, alpha=0.0001)
    second = certified(
        model, "pgd20-l2-128_255", x[:1], y[:1], draws=attack["draws"], steps=1, audit=False, batch_size=1
    )
    rows = [dict(first.outcomes.rows()[0], prediction=0, votes=votes, rival=1000 - votes, radius=radius)]
    hit = [dict(second.outcomes.rows()[0], prediction=1, l2=attack["l2"], forwards=attack["forwards"])]
    return other_rows(first, rows), other_rows(second, hit)


@pytest.mark.parametrize(
    ("draw_count", "l2", "contradicts"), [(100, 0.05, True), (100, 0.19, False), (2, 0.05, False), (100, 0.3, False)]
)
def test_of_a_smoothed_model_a_changed_answer_counts_where_it_is_no_accident(draw_count, l2, contradicts):
    radius = Noise(sigma=0.1).radius(1000, 0, 1, 0.0001)
    records = draws(1000, radius, draws=draw_count, l2=l2, forwards=20 * draw_count)
    assert (broken_proof(*records) is not None) == contradicts


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"radius": 9.0, "certified": 1}, "radius 9 for class"), ({"certified": 1}, "radius"),
        ({"votes": -1}, "votes, which cannot be"), ({"prediction": -1}, "radius"),
    ],
)  # fmt: skip
def test_a_radius_that_its_counts_do_not_give_is_refused(change, said, tmp_path):
    x, y = images()
    record = certified(Ablated(Small(), Bands(band=6)), PATCH, x[:20], y[:20])
    rows = [dict(row, **change) if at == 3 else row for at, row in enumerate(record.outcomes.rows())]
    with pytest.raises(BadInputError, match=f"votes-give-radius.*sample '.*{said}"):
        load_consistent(other_rows(record, rows).save(tmp_path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", "vit_digits", "-p", PATCH], "the model states no proof"),
        (["-m", "ablated:vit_digits", "--set", "model.band=4", "-p", L2], "states a proof in patches"),
        (["-m", "ablated:vit_digits", "-p", PATCH], "--set model.band=N"),
        (["-m", "ablated:vit_digits", "--set", "model.band=4", "--set", "model.stride=5", "-p", PATCH], "at stride 5"),
        (["-m", "smoothed:vit_digits", "--set", "model.sigma=-1", "-p", L2], "sigma"),
        (["-m", "vit_digits", "-p", PATCH, "--set", "samples=10"], "samples = 10"),
    ],
)  # fmt: skip
def test_what_cannot_be_certified_is_refused(words, said, capsys):
    assert main(["eval", "--limit", "4", "-q", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "proof_", "views"),
    [
        (Ablated, Bands(band=4, stride=2), 16),
        (Masked, Masks(patch=4, masks=2), 10),
    ],
)
def test_more_votes_than_views_are_refused(kind, proof_, views, tmp_path):
    """A radius follows from any votes; but no image has more of them than there are views."""
    model = kind(load_model("vit_digits"), proof_).eval()
    record = certified(model, PATCH, *load_data("digits", limit=4).tensors(), classes=10, batch_size=4)

    def forged(votes, rival):
        radius = proof_.radius(votes, rival, 1, 0)
        change = {"votes": votes, "rival": rival, "radius": radius, "certified": int(radius >= 4)}
        return other_rows(record, [row | change for row in record.outcomes.rows()]).save(tmp_path)

    load_consistent(forged(views, 0))
    for votes, rival in ((views + 1, 0), (views, 2), (10**6, 0)):
        with pytest.raises(BadInputError, match=rf"votes-give-radius.* {votes} and {rival} votes, which cannot be"):
            load_consistent(forged(votes, rival))


BOARD = board_text(["ablated"], {"Patch": ("noise.toml", "robust_accuracy", {"certificate": PATCH})}, limit=6)
BOARD += '[[model]]\nname = "ablated"\nsource = "ablated:vit_digits"\noptions = { band = 28, stride = 4 }\n'


def test_columns_of_a_norm_and_brackets_of_one_training():
    l2 = '[[column]]\ntitle = "L2"\nprotocol = "ddn-l2-128_255"\ncertificate = "certified-l2-0.25"\n'
    more = '[[model]]\nname = "other"\nsource = "smoothed:vit_digits"\noptions = { sigma = 0.1 }\n'
    text = BOARD.replace("noise.toml", "patch-4-anywhere").replace('["ablated"]', '["ablated", "other", "plain"]')
    clean = '[[column]]\ntitle = "Clean"\nprotocol = "clean"\nmetric = "clean_accuracy"\n'
    spec = validate(BoardSpec, tomllib.loads(text + l2 + 'metric = "robust_accuracy"\n' + clean + more), "board")
    needs = {name: [one.protocol for one in spec.evaluations_of(name)] for name in spec.models}
    patch, ball = ["patch-4-anywhere", "certified-patch-4"], ["ddn-l2-128_255", "certified-l2-0.25"]
    assert [spec.needs("other", column) for column in spec.column] == [False, True, True]
    assert needs == {"ablated": [*patch, "clean"], "other": [*ball, "clean"], "plain": [*patch, *ball, "clean"]}
    # Where one of two attacked trainings has a certificate, nothing is certified of the row.
    column = Column(title="Patch", protocol="patch-4-anywhere", metric="robust_accuracy", certificate=PATCH)
    stub = SimpleNamespace(seeds=lambda _, asked: {0: [], 1: []} if asked is column else {0: []})
    assert Board.certified(stub, "row", column) is None


def test_a_board_shows_a_bracket(tmp_path, capsys):
    (tmp_path / "noise.toml").write_text(NOISE.format(patch=4).replace("= 20", "= 2"))
    (tmp_path / "board.toml").write_text(BOARD)
    (tmp_path / "records").mkdir()
    words = ["-m", "ablated:vit_digits", "--name", "ablated", "--set", "model.band=28", "--set", "model.stride=4"]
    words += ["--limit", "6", "-p", str(tmp_path / "noise.toml"), "-p", PATCH, "--audit", "none", "-q"]
    assert main(["eval", *words, "-o", str(tmp_path / "records")]) == 0
    board = load_board(str(tmp_path))
    [cell] = cells(board)[0]["columns"]
    assert cell["text"] == f"[{100 * cell['certified']:.1f}, {100 * cell['value']:.1f}]"
    assert cell["certified"] <= cell["value"]
    assert {record.kind for record in read((tmp_path / "records").glob("*.record.json"))} == {"attack", "certificate"}
    assert main(["records", "verify", str(tmp_path / "records"), "--samples", "2"]) == 0
    assert main(["board", "render", str(tmp_path), "-q"]) == 0
    assert cell["text"] in (tmp_path / "README.md").read_text()
    (tmp_path / "noise.toml").write_text(NOISE.format(patch=5))
    with pytest.raises(BadInputError, match=r"a certificate within .* beside an attack within"):
        load_board(str(tmp_path))
    bare = BOARD.replace('metric = "robust_accuracy"', 'metric = "clean_accuracy"')
    (tmp_path / "board.toml").write_text(bare)
    with pytest.raises(BadInputError, match="beside clean_accuracy"):
        load_board(str(tmp_path))
