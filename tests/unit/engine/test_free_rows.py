"""Rows that would be empty show what comes later; outcomes, images and counted passes stay what they are one by one."""

import attack_checks
import pytest
import torch
from attack_checks import MISCLASSIFIED, Wavy, rand

from robustbench_kpca._core.errors import EvaluationError
from robustbench_kpca._engine.attack_loop.engine import Engine
from robustbench_kpca._engine.attack_loop.foresight import Layout
from robustbench_kpca._engine.inference import fewer_rows
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attacks.apgd import APGD

CPU = torch.device("cpu")
EPS = {"linf": 0.05, "l2": 0.35, "l1": 2.0}
SQUARE = {"attack": "square", "restarts": 1, "queries": 30, "p_init": 0.3}
APGD_T = {"attack": "apgd", "restarts": 1, "steps": 6, "loss": "dlr_targeted", "targets": 9, "rho": 0.75}
MALT = APGD_T | {"attack": "malt", "targets": 4, "candidates": 9}
APGD_T_L1 = {key: value for key, value in APGD_T.items() if key != "rho"} | {"attack": "apgd_l1"}
FAB = {"attack": "fab", "restarts": 2, "steps": 4, "targets": 9, "alpha_max": 0.1, "eta": 1.05, "beta": 0.9}
FAB_T = FAB | {"random_start": True}
SPARSE = {"attack": "sparse_rs", "restarts": 1, "queries": 60, "alpha_init": 0.8}
SPSA = {"attack": "spsa", "restarts": 1, "steps": 3, "samples": 32, "delta": 0.01, "lr": 0.01, "random_start": True}


class Classes(torch.nn.Module):
    """Six classes, not linear, every row computed for itself, so that the batch size changes no bit."""

    def __init__(self, shape, lead):
        super().__init__()
        self.parts = torch.nn.ModuleList([Wavy(shape, seed=2 * number) for number in range(2)])
        self.register_buffer("lead", lead * (torch.arange(6) == 0).double())

    def forward(self, x):
        return torch.cat([part(x.double()) for part in self.parts], 1) + self.lead


class OneByOne:
    """An attack that does not say what comes next."""

    def __init__(self, attack):
        self.start, self.step = attack.start, attack.step


class KilledError(Exception):
    """Ends a run in its middle."""


SHAPE = (2, 6, 6)


@pytest.fixture
def full_batches(monkeypatch):
    """Fill up every batch, so that rows shown are batches."""
    monkeypatch.setattr(fewer_rows, "FEWEST", 1000)


def attacked(stages, norm="linf", n=9, batch_size=16, lead=None, plain=False, kill_at=(), model=None, **fields):
    """Attack n images; return what is known of every sample in the end, and the runner."""
    lead = (0.9 if stages[0]["attack"] == "square" else 4.0) if lead is None else lead  # some break, some do not
    model = (model or Classes(SHAPE, lead)).eval()
    images = rand(5, n, *SHAPE, dtype=torch.float32)
    labels = model(images).argmax(1)
    found, runner = {}, Runner(model, batch_size, CPU, draws=fields.get("draws", 1))

    def engine():
        protocol = attack_checks.scenario(stages, **{"norm": norm, "eps": EPS.get(norm)} | fields)
        ids = [str(row) for row in range(n)]
        new = Engine(runner, protocol, MISCLASSIFIED, ids, 0, lambda sample: found.update({sample.index: sample}))
        for pool in new.pools:
            pool.attack = OneByOne(pool.attack) if plain else pool.attack
        return new

    running, source = engine(), iter([(list(range(n)), images, labels)])
    for batches in kill_at:
        left = [batches]

        def count(left=left):
            left[0] -= 1
            if not left[0]:
                raise KilledError

        with pytest.raises(KilledError):
            running.run(source, count)
        entries = running.snapshot()
        running, source = engine(), iter(())
        running.restore(entries, dict(enumerate(running.starting_images(images))))
    running.run(source)
    return [vars(found[row]) for row in range(n)], runner


def same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        for name, value in one.items():
            if torch.is_tensor(value):
                assert torch.equal(value, other[name]), (one["id"], name)
            elif name != "confirmed":
                assert value == other[name], (one["id"], name)


CASES = [
    *[([SQUARE], norm, {}) for norm in EPS],
    ([SQUARE], "linf", {"policy": "strongest"}),
    ([SQUARE], "linf", {"policy": "last"}),
    ([SQUARE | {"restarts": 2}], "l2", {}),
    ([APGD_T], "linf", {}),
    ([APGD_T], "l2", {"policy": "strongest"}),
    ([APGD_T], "linf", {"policy": "last"}),
    ([APGD_T_L1], "l1", {}),
    ([MALT], "linf", {}),
    ([MALT], "l2", {"policy": "strongest"}),
    ([FAB_T], "linf", {}),
    ([FAB_T], "l2", {}),
    ([FAB_T], "linf", {"policy": "strongest"}),
    ([APGD_T, FAB_T, SQUARE], "linf", {}),
    ([SPARSE], "l0", {"eps": 6}),
    ([SPARSE], "patches", {"eps": 2, "patch": 2, "corners": "grid"}),
    ([SPARSE], "patches", {"eps": 2, "patch": 2, "corners": "anywhere"}),
]


@pytest.mark.parametrize(("stages", "norm", "fields"), CASES)
def test_outcomes_and_counted_passes_are_those_of_one_by_one(stages, norm, fields):
    theirs, _ = attacked(stages, norm, plain=True, **fields)
    for batch_size in (7, 64):
        ours, _ = attacked(stages, norm, batch_size=batch_size, **fields)
        same(ours, theirs)
    if not fields:
        broken = [bool(one["broken_by"]) for one in theirs]
        assert any(broken), "nothing broke"
        assert not all(broken), "everything broke"


@pytest.mark.parametrize("norm", EPS)
def test_square_is_the_same_with_any_number_of_proposals_ahead(norm):
    theirs, _ = attacked([SQUARE], norm, n=3, plain=True)
    for batch_size in (1, 3, 6, 21, 192):
        same(attacked([SQUARE], norm, n=3, batch_size=batch_size)[0], theirs)


@pytest.mark.parametrize(("stages", "norm"), [([SQUARE], "linf"), ([APGD_T], "linf"), ([FAB_T], "l2")])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(stages, norm):
    theirs, _ = attacked(stages, norm, plain=True)
    same(attacked(stages, norm, kill_at=(5, 2, 7))[0], theirs)


class Flat(torch.nn.Module):
    def forward(self, x):
        return (torch.arange(3) == 0).float().expand(len(x), -1)


@pytest.mark.usefixtures("full_batches")
@pytest.mark.parametrize(("images", "fewer"), [(16, 3.9), (4, 14)])
def test_stubborn_images_take_fewer_batches_under_square(images, fewer):
    stage = [SQUARE | {"queries": 400}]
    alone, one_by_one = attacked(stage, n=images, batch_size=64, plain=True, model=Flat())
    _, together = attacked(stage, n=images, batch_size=64, model=Flat())
    assert {sample["forwards"] for sample in alone} == {401}
    assert one_by_one.forwards == 64 * 402, "the clean pass, every query, the last check"
    assert one_by_one.forwards >= fewer * together.forwards, f"at most {64 / images:g} times"


@pytest.mark.usefixtures("full_batches")
def test_proposals_that_are_kept_cost_little_and_nothing_is_shown_early_under_noise():
    stage = [SQUARE | {"queries": 150}]
    alone, one_by_one = attacked(stage, n=8, batch_size=32, lead=200.0, plain=True)
    _, together = attacked(stage, n=8, batch_size=32, lead=200.0)
    assert not any(sample["broken_by"] for sample in alone)
    assert one_by_one.forwards >= 2 * together.forwards
    stages = [SQUARE | {"queries": 10}, APGD_T]
    theirs, one_by_one = attacked(stages, n=4, lead=200.0, plain=True, draws=2)
    ours, together = attacked(stages, n=4, lead=200.0, draws=2)
    same(ours, theirs)
    assert one_by_one.forwards == together.forwards


@pytest.mark.usefixtures("full_batches")
@pytest.mark.parametrize(("stage", "least"), [(APGD_T, 3.5), (FAB_T, 3.5)])
def test_targets_of_stubborn_images_are_tried_side_by_side(stage, least):
    alone, one_by_one = attacked([stage], n=8, batch_size=40, lead=200.0, plain=True)
    _, together = attacked([stage], n=8, batch_size=40, lead=200.0)
    assert not any(sample["broken_by"] for sample in alone)
    assert one_by_one.backwards >= least * together.backwards


def test_a_later_run_that_fails_does_not_count_before_its_turn(monkeypatch):
    chosen, refused = [APGD_T | {"steps": 20}], []
    theirs, _ = attacked(chosen, n=6, lead=0.9, plain=True)
    assert all(sample["broken_by"] and sample["backwards"] <= 21 for sample in theirs), "all break in their first run"

    def refuse(attack, state, threat, query, step=APGD.step):
        if int(state["run"].max()) > 0:
            refused.append(len(state["run"]))
            raise EvaluationError("a gradient that only a later run meets")
        return step(attack, state, threat, query)

    monkeypatch.setattr(APGD, "step", refuse)
    same(attacked(chosen, n=6, lead=0.9)[0], theirs)
    assert refused == [16], "later runs filled the batch once, and were given up"
    with pytest.raises(EvaluationError, match="only a later run meets"):
        attacked(chosen, n=6, lead=4.0)


@pytest.mark.usefixtures("full_batches")
def test_probes_of_spsa_share_batches(monkeypatch):
    stage = [SPSA]
    ours, together = attacked(stage, n=5, batch_size=16)
    monkeypatch.setattr(Runner, "logits_of_each", lambda runner, parts: (runner.logits(x) for x in parts))
    theirs, one_by_one = attacked(stage, n=5, batch_size=16)
    same(ours, theirs)
    assert one_by_one.forwards >= 2 * together.forwards


@pytest.mark.parametrize(("length", "count"), [(1, 3), (3, 1), (3, 11), (4, 8), (7, 5), (9, 4)])
def test_answers_to_many_batches_come_in_their_order(length, count):
    model = Wavy(SHAPE).eval()
    parts = [rand(number, length, *SHAPE) for number in range(count)]
    answers = list(Runner(model, 4, CPU).logits_of_each(iter(parts)))
    assert len(answers) == count
    for part, answer in zip(parts, answers, strict=True):
        assert torch.equal(answer, model(part).float())


@pytest.mark.parametrize("count", [3, 4])
def test_the_model_is_shown_one_layout_whether_a_batch_is_full_or_not(count):
    class Layout(Wavy):
        def forward(self, x):
            seen.append(x.stride())
            return super().forward(x)

    seen, runner = [], Runner(Layout(SHAPE).eval(), 4, CPU)
    x = rand(0, count, *SHAPE).to(memory_format=torch.channels_last)
    runner.logits(x)
    runner.gradient(x, lambda logits: logits[:, 0])
    assert set(seen) == {(72, 36, 6, 1)}


def test_rows_of_a_sample_lie_together():
    layout = Layout.even(3, 8, CPU)
    assert layout.sample.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert layout.ahead.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    over = torch.tensor([False, True, True, False, False, False, True, False])
    assert layout.last(over).tolist() == [1, 5, 6]
