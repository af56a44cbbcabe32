"""Gradients of several losses at the same images: the same numbers as one after the other, and fewer passes."""

import pytest
import torch
from attack_checks import Wavy, rand

from robustbench_kpca._engine.inference.runner import Runner

SHAPE, BATCH, LOSSES = (2, 6, 6), 16, 5


def losses():
    return [lambda logits, a=a, b=b: logits[:, a] - (b + 1) * logits[:, b] ** 2 for a in range(2) for b in range(3)][
        :LOSSES
    ]


def found(model, rows, together, batch=BATCH, draws=1):
    runner = Runner(model.eval(), batch, torch.device("cpu"), draws=draws)
    x = rand(rows, rows, *SHAPE, dtype=torch.float32)
    if together:
        return list(runner.gradient_of_each(x, losses())), runner
    return [runner.gradient(x, loss) for loss in losses()], runner


def same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def wavy():
    return Wavy(SHAPE, dtype=torch.float32)


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 20])
def test_gradients_are_those_of_one_loss_after_the_other(rows):
    same(found(wavy(), rows, True)[0], found(wavy(), rows, False)[0])


@pytest.mark.parametrize(("rows", "batches"), [(3, 1), (5, 2), (9, LOSSES)])
def test_batches_are_shared(rows, batches):
    runner = found(wavy(), rows, True)[1]
    assert runner.forwards == runner.backwards == BATCH * batches


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
