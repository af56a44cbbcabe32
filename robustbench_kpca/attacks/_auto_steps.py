"""The update of Auto-PGD: momentum, and a step size that is halved when the loss stops rising.

Croce & Hein (2020), "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
attacks", arXiv:2003.01690, section 3. With x_t the iterates, g the gradient of the loss at x_t, eta the step size and
`Proj` the projection,

    z       = Proj(x_t + eta direction(g))
    x_{t+1} = Proj(x_t + a (z - x_t) + (1 - a) (x_t - x_{t-1})),      a = 0.75, but 1 at t = 0, so that x_1 = z.

At a checkpoint, eta is halved and x_t is replaced by the point of highest loss if one of two conditions holds:
the loss rose in at most the fraction `rho` of the iterations since the last checkpoint; or eta was not halved at the
last checkpoint and the best loss has not changed since. As in the authors' program, the first iteration counts as a
rise if its loss is above zero.

A state holds t as `iteration`, and the fields of `initial_state`; iteration 0 overwrites all earlier values.
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
        "previous": x,  # x_{t-1}
        "best": x,  # the point of highest loss
        "best_gradient": torch.zeros_like(x),
        "best_loss": scalar,
        "loss": scalar,  # at x_{t-1}
        "rises": count,  # how often the loss rose since the last checkpoint
        "step_size": scalar,  # eta
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


def ascend(
    state: State,
    x: Images,
    loss: PerSample,
    g: Images,
    *,
    eta_0: PerSample | float,
    window: Labels,
    rho: float,
    proj: Callable[[Images], Images],
    norm: Norm,
) -> tuple[Images, State]:
    """Return x_{t+1} and the state of iteration t + 1.

    Args:
        state: state of iteration t.
        x: x_t.
        loss: at x_t.
        g: gradient of the loss at x_t.
        eta_0: eta at iteration 0.
        window: iterations since the last checkpoint; 0 if iteration t is not at a checkpoint (`checkpoints`).
        rho: see above.
        proj: Proj.
        norm: norm of the ball, which decides on `direction`.
    """
    state = _record(state, x, loss, g, eta_0)
    state, halved = _halve(state, window, rho)
    x, g = choose(halved, state["best"], x), choose(halved, state["best_gradient"], g)
    z = proj((ascent_direction(g, norm) * per_sample(state["step_size"], x)).add_(x))
    a = per_sample(torch.where(state["iteration"] == 0, 1.0, 0.75), x).to(x.dtype)
    x_next = proj((z - x).mul_(a).add_(x).add_((x - state["previous"]).mul_(1 - a)))
    return x_next, state | {"previous": x, "iteration": state["iteration"] + 1}


def _record(state: State, x: Images, loss: PerSample, g: Images, eta_0: PerSample | float) -> State:
    """Record loss and gradient at x_t, and update the best point."""
    first = state["iteration"] == 0
    better = first | (loss > state["best_loss"])
    return state | {
        "best": choose(better, x, state["best"]),
        "best_gradient": choose(better, g, state["best_gradient"]),
        "best_loss": torch.where(better, loss, state["best_loss"]),
        "rises": torch.where(first, 0, state["rises"] + (loss > state["loss"])),
        "loss": torch.where(first, 0, loss),  # 0, not the loss at x_0, as in the authors' program
        "step_size": torch.where(first, eta_0, state["step_size"]),
        "halved": first | state["halved"],  # so the first checkpoint uses only the count of rises
        "checked_loss": torch.where(first, loss, state["checked_loss"]),
        "previous": choose(first, x, state["previous"]),
    }


def _halve(state: State, window: Labels, rho: float) -> tuple[State, Mask]:
    """Halve eta at checkpoints where the loss stopped rising; return the samples where it was halved."""
    at_checkpoint = window > 0
    no_better = ~state["halved"] & (state["checked_loss"] >= state["best_loss"])
    halved = at_checkpoint & ((state["rises"] <= rho * window) | no_better)
    checked = {
        "step_size": torch.where(halved, state["step_size"] / 2, state["step_size"]),
        "halved": torch.where(at_checkpoint, halved, state["halved"]),
        "checked_loss": torch.where(at_checkpoint, state["best_loss"], state["checked_loss"]),
        "rises": torch.where(at_checkpoint, 0, state["rises"]),
    }
    return state | checked, halved
