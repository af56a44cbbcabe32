"""Fewer rows than a full batch are shown only where that changes no bit, and nothing is tried for a single pass."""

import pytest
import torch
from attack_checks import Wavy, rand

from robustbench_kpca._engine.inference import fewer_rows
from robustbench_kpca._engine.inference.fewer_rows import rows_for
from robustbench_kpca._engine.inference.runner import Runner

SHAPE, FULL = (2, 6, 6), 32


class BySize(torch.autograd.Function):
    """Passes answers on, and gradients that depend on the size of the batch."""

    @staticmethod
    def forward(ctx, x):
        ctx.size = len(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 + 1e-7 * ctx.size)


def one_size(x):
    assert len(x) == FULL
    return x


MODELS = {
    "rows apart": (lambda x: x, True, True),
    "logits by the size": (lambda x: x * (1 + 1e-7 * len(x)), False, False),
    "gradients by the size": (BySize.apply, True, False),
    "of one size": (one_size, False, False),
}


class Model(Wavy):
    def __init__(self, change):
        super().__init__(SHAPE, dtype=torch.float32)
        self.change, self.seen = change, []

    def forward(self, x):
        self.seen.append(len(x))
        return super().forward(self.change(x))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["logits", "gradient"])
def test_answers_are_those_of_a_full_batch(name, kind, monkeypatch):
    monkeypatch.setattr(fewer_rows, "PATIENCE", 1)
    monkeypatch.setattr(fewer_rows, "ENOUGH", 6)  # three logits of every image
    change, *equal = MODELS[name]
    model = Model(change).eval()
    runner = Runner(model, FULL, torch.device("cpu"))
    fewer = equal[kind == "gradient"]

    def answer(runner, x):
        return (runner.logits(x),) if kind == "logits" else runner.gradient(x, lambda logits: logits[:, 0] ** 2)

    for number, count in enumerate((5, 5, 5, 7, 7)):
        x = rand(number, count, *SHAPE, dtype=torch.float32)
        filled = torch.cat([x, x[-1:].expand(FULL - count, *SHAPE)])
        theirs = answer(Runner(Model(change).eval(), FULL, torch.device("cpu")), filled)
        assert all(torch.equal(own, other[:count]) for own, other in zip(answer(runner, x), theirs, strict=True))
    once = [FULL, FULL, 8]  # the first pass pays for nothing; in the second, both are shown
    assert model.seen == once + ([8, FULL, 8, 8] if fewer else 3 * [FULL])


def test_few_sizes_are_tried_and_little_is_left_empty():
    counts = range(1, 1025)
    sizes = {rows_for(count) for count in counts}
    assert sizes > {8, 16, 24, 32, 40, 48, 56, 64, 80}
    assert len(sizes) == 24
    assert all(count <= rows_for(count) <= max(8, count + 7, 1.25 * count) for count in counts)


def test_nothing_is_learnt_from_numbers_that_can_be_equal_by_chance():
    runner = Runner(Model(lambda x: x).eval(), FULL, torch.device("cpu"))
    for count, learnt in ((2, []), (16, [16])):
        x = rand(0, count, *SHAPE, dtype=torch.float32)
        assert runner.agrees_apart(x, runner.logits(x))
        assert list(runner.fewer.compared.values()) == learnt
