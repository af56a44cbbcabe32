"""Searches that may leave the ball: where they begin, and the closest misclassified image that they remember."""

import torch

from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.attacks.shared.rows import choose
from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import Images, Keys, Labels, Mask, PerSample, State


def begin(x: Images, y: Labels, keys: Keys) -> State:
    """Return the initial state of every such search."""
    return {
        "x": x,
        "clean": x,
        "y": y,
        "best": x,
        "best_distance": torch.full_like(keys, torch.inf, dtype=torch.float64),
        "finished": torch.zeros_like(keys, dtype=torch.bool),
    }


def begin_in_ball(x: Images, y: Labels, keys: Keys, radius: float) -> State:
    """Return the state of a search from the clean image inside a ball whose radius changes."""
    number = torch.zeros_like(keys, dtype=torch.float64)
    return begin(x, y, keys) | {"at": x, "radius": number + radius, "step": torch.zeros_like(keys)}


def record_closest(state: State, closer: Mask, at: Images, reach: PerSample, threat: Threat) -> State:
    """Where `closer`, keep the image shown and its distance; propose the closest so far if it lies in the ball."""
    best = choose(closer, at, state["best"])
    best_distance = torch.where(closer, reach, state["best_distance"])
    x = choose(best_distance <= threat.eps, best, state["clean"])
    return state | {"x": x, "best": best, "best_distance": best_distance}


def misclassified(margins: PerSample) -> Mask:
    """Tell where the margin is negative; infinite logits are no answer."""
    return ~((margins >= 0) & torch.isfinite(margins))


def furthest_corner(clean: Images, norm: Norm) -> PerSample:
    """Return the distance to the furthest corner of the box."""
    return distance(clean, (clean < 0.5).to(clean.dtype), norm)
