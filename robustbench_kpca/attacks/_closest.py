"""Remember the closest misclassified image of a search that may leave the ball."""

import torch

from robustbench_kpca.attacks.shared.rows import choose
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Mask, PerSample, State


def record_closest(state: State, closer: Mask, shown: Images, far: PerSample, threat: Threat) -> State:
    """Where `closer`, keep the image shown and its distance; propose the closest so far if it lies in the ball."""
    best = choose(closer, shown, state["best"])
    best_distance = torch.where(closer, far, state["best_distance"])
    x = choose(best_distance <= threat.eps, best, state["clean"])
    return state | {"x": x, "best": best, "best_distance": best_distance}
