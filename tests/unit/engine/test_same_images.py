"""Gradients of several losses at the same images: the same numbers as one after the other, and fewer passes."""

import pytest
import torch
from attack_checks import Wavy, rand
from torch import nn

from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca._engine.inference.same_images import gradient_of_each

SHAPE, BATCH, LOSSES = (2, 6, 6), 16, 5


def losses():
    return [lambda logits, a=a, b=b: logits[:, a] - (b + 1) * logits[:, b] ** 2 for a in range(2) for b in range(3)][
        :LOSSES
    ]


def found(model, rows, together, batch=BATCH, draws=1):
    runner = Runner(model.eval(), batch, torch.device("cpu"), draws=draws)
    x = rand(rows, rows, *SHAPE, dtype=torch.float32)
    if together:
        return list(gradient_of_each(runner, x, losses())), runner
    return [runner.gradient(x, loss) for loss in losses()], runner


def same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


class Spoiled(torch.autograd.Function):
    """Passes gradients on; to go back a second time gives twice as much, or fails."""

    fails = False

    @staticmethod
    def forward(ctx, x):
        ctx.times = 0
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.times += 1
        if Spoiled.fails and ctx.times > 1:
            raise RuntimeError("this graph is used up")
        return gradient * ctx.times


class OnlyOnce(nn.Module):
    """A network whose graphs can be gone through once only."""

    def __init__(self):
        super().__init__()
        self.inner = Wavy(SHAPE, dtype=torch.float32)

    def forward(self, x):
        return self.inner(Spoiled.apply(x))


def wavy():
    return Wavy(SHAPE, dtype=torch.float32)


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 20])
def test_gradients_are_those_of_one_loss_after_the_other(rows):
    same(found(wavy(), rows, True)[0], found(wavy(), rows, False)[0])


@pytest.mark.parametrize(
    ("rows", "forwards", "backwards"),
    [
        (3, 1, 1),  # all five in one batch
        (5, 2, 2),  # three and two
        (9, 2, 6),  # one graph; the second gradient is computed once more
        (20, 10, 10),  # more than a batch: one after the other
    ],
)
def test_batches_or_the_forward_pass_are_shared(rows, forwards, backwards):
    runner = found(wavy(), rows, True)[1]
    if rows <= BATCH:
        assert (runner.forwards / BATCH, runner.backwards / BATCH) == (forwards, backwards)
        list(gradient_of_each(runner, rand(0, rows, *SHAPE, dtype=torch.float32), losses()))
        again = (forwards, backwards) if rows < 9 else (1, LOSSES)  # that is done once for a runner
        assert runner.forwards / BATCH == forwards + again[0]
        assert runner.backwards / BATCH == backwards + again[1]
    else:
        assert runner.keeps_graphs is None


@pytest.mark.parametrize("fails", [True, False])
def test_a_graph_that_cannot_be_used_twice_is_not(monkeypatch, fails):
    monkeypatch.setattr(Spoiled, "fails", fails)
    theirs, _ = found(OnlyOnce(), 9, False)
    ours, runner = found(OnlyOnce(), 9, True)
    same(ours, theirs)
    assert runner.keeps_graphs is False
    before = runner.forwards
    same(list(gradient_of_each(runner, rand(9, 9, *SHAPE, dtype=torch.float32), losses())), theirs)
    assert runner.forwards - before == LOSSES * BATCH


def test_draws_are_not_shared():
    same(found(wavy(), 3, True, draws=2)[0], found(wavy(), 3, False, draws=2)[0])


def test_memory_that_runs_out_changes_nothing():
    class Small(Wavy):
        def forward(self, x):
            if len(x) > 8:
                raise torch.OutOfMemoryError("out of memory")
            return super().forward(x)

    small = Small(SHAPE, dtype=torch.float32)
    ours, runner = found(small, 9, True)
    same(ours, found(wavy(), 9, False, batch=8)[0])
    assert runner.batch_size == 8
