"""The update of Auto-PGD: momentum, and a step size that is halved when the loss stops rising.

Croce & Hein (2020), "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
attacks", arXiv:2003.01690, section 3. With eta the step size, `Proj` the projection and x_t the iterates,

    z       = Proj(x_t + eta direction(grad loss(x_t)))
    x_{t+1} = Proj(x_t + 0.75 (z - x_t) + 0.25 (x_t - x_{t-1})),      x_1 = z.

At a checkpoint, eta is halved and the search continues from the point of highest loss if one of two conditions holds:
the loss rose in at most the fraction `rho` of the iterations since the last checkpoint; or eta was not halved at the
last checkpoint and the best loss has not changed since. As in the authors' program, the first iteration counts as a
rise if its loss is above zero.

A state holds `iteration`, counted from 0, and the fields of `initial_state`; iteration 0 overwrites all earlier values.
"""

from collections.abc import Callable

import torch

from robustbench_kpca.attacks.shared.ball import ascent_direction, per_sample
from robustbench_kpca.attacks.shared.rows import choose
from robustbench_kpca.protocols.threat import Norm
from robustbench_kpca.types import Images, Labels, Mask, PerSample, State


def initial_state(x: Images, keys: Labels) -> State:
    """Return the state before the first iteration; its values are placeholders."""
    count, scalar, no = torch.zeros_like(keys), x.new_zeros(len(x)), torch.zeros_like(keys, dtype=torch.bool)
    return {
        "previous": x,
        "best": x,
        "best_gradient": torch.zeros_like(x),
        "best_loss": scalar,
        "loss": scalar,
        "rises": count,
        "step_size": scalar,
        "halved": no,  # whether eta was halved at the last checkpoint
        "checked_loss": scalar,  # the best loss at the last checkpoint
    }


def checkpoints(steps: int) -> list[int]:
    """Return, for iterations 0 to `steps`, the iterations since the last checkpoint; 0 if not at a checkpoint.

    The first checkpoint is after 0.22 `steps` iterations; each interval is then 0.03 `steps` shorter, down to 0.06
    `steps`.
    """
    windows, at, length = [0] * (steps + 1), 0, max(int(0.22 * steps), 1)
    while (at := at + length) <= steps:
        windows[at] = length
        length = max(length - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))
    return windows


def record(state: State, point: Images, loss: PerSample, gradient: Images, first_step: PerSample | float) -> State:
    """Record loss and gradient at `point` and update the best point; `first_step` is eta at iteration 0."""
    first = state["iteration"] == 0
    better = first | (loss > state["best_loss"])
    return state | {
        "best": choose(better, point, state["best"]),
        "best_gradient": choose(better, gradient, state["best_gradient"]),
        "best_loss": torch.where(better, loss, state["best_loss"]),
        "rises": torch.where(first, 0, state["rises"] + (loss > state["loss"])),
        "loss": torch.where(first, 0, loss),  # 0, not the loss at x_0, as in the authors' program
        "step_size": torch.where(first, first_step, state["step_size"]),
        "halved": first | state["halved"],  # so the first checkpoint uses only the count of rises
        "checked_loss": torch.where(first, loss, state["checked_loss"]),
        "previous": choose(first, point, state["previous"]),
    }


def halve(state: State, window: Labels, rho: float) -> tuple[State, Mask]:
    """Halve eta at checkpoints (`window` > 0) where the loss stopped rising; return the samples where it was halved."""
    here = window > 0
    stuck = ~state["halved"] & (state["checked_loss"] >= state["best_loss"])
    halved = here & ((state["rises"] <= rho * window) | stuck)
    checked = {
        "step_size": torch.where(halved, state["step_size"] / 2, state["step_size"]),
        "halved": torch.where(here, halved, state["halved"]),
        "checked_loss": torch.where(here, state["best_loss"], state["checked_loss"]),
        "rises": torch.where(here, 0, state["rises"]),
    }
    return state | checked, halved


def move(
    state: State, point: Images, halved: Mask, gradient: Images, proj: Callable[[Images], Images], norm: Norm
) -> tuple[Images, Images]:
    """Step from `point`, or from the best point where `halved` is true; return the new point and the starting point."""
    x = choose(halved, state["best"], point)
    direction = ascent_direction(choose(halved, state["best_gradient"], gradient), norm)
    z = proj((direction * per_sample(state["step_size"], x)).add_(x))
    share = per_sample(torch.where(state["iteration"] == 0, 1.0, 0.75), x).to(x.dtype)
    ahead = (z - x).mul_(share).add_(x)
    return proj(ahead.add_((x - state["previous"]).mul_(1 - share))), x
