"""Steps that set their own size, as Auto-PGD takes them: with momentum, halved where a search does not get on.

Croce & Hein (2020), "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
attacks", arXiv:2003.01690, section 3. With eta the step size, `into` the projection and x_t the points of a search,

    z       = into(x_t + eta direction(grad loss(x_t)))
    x_{t+1} = into(x_t + 0.75 (z - x_t) + 0.25 (x_t - x_{t-1})),      x_1 = z.

At a checkpoint, if the loss rose in at most the fraction `rho` of the iterations since the last one, or if eta was not
halved there and the best loss is what it was, eta is halved and the search goes on from the point of highest loss. As
in the authors' program, the first iteration counts as a rise if its loss is above zero.

A state holds `iteration`, from 0 on, and what `fresh` returns; at iteration 0 everything from before is forgotten.
"""

from collections.abc import Callable

import torch

from robustbench_kpca.attacks.shared.ball import ascent_direction, per_sample
from robustbench_kpca.protocols.threat import Norm
from robustbench_kpca.types import Images, Labels, Mask, PerSample, State


def fresh(x: Images, keys: Labels) -> State:
    """Return the state before anything is known; the values mean nothing yet."""
    count, scalar, no = torch.zeros_like(keys), x.new_zeros(len(x)), torch.zeros_like(keys, dtype=torch.bool)
    return {
        "previous": x,
        "best": x,
        "best_gradient": torch.zeros_like(x),
        "best_loss": scalar,
        "loss": scalar,
        "rises": count,
        "step_size": scalar,
        "halved": no,  # at the last checkpoint
        "checked_loss": scalar,  # the best one at the last checkpoint
    }


def checkpoints(steps: int) -> list[int]:
    """Return for iterations 0 to `steps` the number of iterations since the last checkpoint, 0 where there is none.

    They come after 0.22 `steps` iterations, then in intervals shorter by 0.03 `steps` each, down to 0.06 `steps`.
    """
    windows, at, length = [0] * (steps + 1), 0, max(int(0.22 * steps), 1)
    while (at := at + length) <= steps:
        windows[at] = length
        length = max(length - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))
    return windows


def note(state: State, point: Images, loss: PerSample, gradient: Images, first_step: PerSample | float) -> State:
    """Take in loss and gradient at `point`; `first_step` is eta at iteration 0."""
    first = state["iteration"] == 0
    better = first | (loss > state["best_loss"])
    return state | {
        "best": torch.where(per_sample(better, point), point, state["best"]),
        "best_gradient": torch.where(per_sample(better, point), gradient, state["best_gradient"]),
        "best_loss": torch.where(better, loss, state["best_loss"]),
        "rises": torch.where(first, 0, state["rises"] + (loss > state["loss"])),
        "loss": torch.where(first, 0, loss),  # 0, not the loss at x_0: the authors' comparison
        "step_size": torch.where(first, first_step, state["step_size"]),
        "halved": first | state["halved"],  # the first checkpoint looks at the rises alone
        "checked_loss": torch.where(first, loss, state["checked_loss"]),
        "previous": torch.where(per_sample(first, point), point, state["previous"]),
    }


def halve(state: State, window: Labels, rho: float) -> tuple[State, Mask]:
    """Halve eta where a search is at a checkpoint (`window` > 0) and did not get on; return where that was."""
    here = window > 0
    stuck = ~state["halved"] & (state["checked_loss"] >= state["best_loss"])
    back = here & ((state["rises"] <= rho * window) | stuck)
    checked = {
        "step_size": torch.where(back, state["step_size"] / 2, state["step_size"]),
        "halved": torch.where(here, back, state["halved"]),
        "checked_loss": torch.where(here, state["best_loss"], state["checked_loss"]),
        "rises": torch.where(here, 0, state["rises"]),
    }
    return state | checked, back


def move(
    state: State, point: Images, back: Mask, gradient: Images, into: Callable[[Images], Images], norm: Norm
) -> tuple[Images, Images]:
    """Step from `point`, or where `back` is true from the best one; return where to, and where from."""
    back = per_sample(back, gradient)
    x = torch.where(back, state["best"], point)
    direction = ascent_direction(torch.where(back, state["best_gradient"], gradient), norm)
    z = into(x + per_sample(state["step_size"], x) * direction)
    share = per_sample(torch.where(state["iteration"] == 0, 1.0, 0.75), x).to(x.dtype)
    return into(x + share * (z - x) + (1 - share) * (x - state["previous"])), x
