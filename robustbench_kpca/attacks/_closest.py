"""Remember the closest misclassified image of a search that may leave the ball."""

import torch

from robustbench_kpca.attacks.shared.ball import per_sample
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Mask, PerSample, State


def record_closest(state: State, closer: Mask, shown: Images, far: PerSample, threat: Threat) -> State:
    """Where `closer`, keep the image shown and its distance; propose the closest so far if it lies in the ball."""
    best = torch.where(per_sample(closer, shown), shown, state["best"])
    best_distance = torch.where(closer, far, state["best_distance"])
    near = per_sample(best_distance <= threat.eps, shown)
    return state | {"x": torch.where(near, best, state["clean"]), "best": best, "best_distance": best_distance}
