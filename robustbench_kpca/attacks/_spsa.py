"""What the forms of SPSA share: estimate the gradient of the margin from pairs of probes, and descend it with Adam.

Spall (1992), doi:10.1109/9.119632; Uesato, O'Donoghue, van den Oord & Kohli (2018), arXiv:1802.05666, algorithm 1.
"""

from collections import deque
from collections.abc import Iterator

import torch

from robustbench_kpca.attacks._adam import adam
from robustbench_kpca.attacks.shared.ball import into_box, per_sample, project
from robustbench_kpca.attacks.shared.draws import signs
from robustbench_kpca.attacks.shared.losses import margin
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Query, State


def begin(x: Images, clean: Images, y: Labels, keys: Keys) -> State:
    """Return the state at the iterate `x`, before the first step."""
    return {
        "x": x,
        "clean": clean,
        "y": y,
        "key": keys,
        "mean": torch.zeros_like(x),
        "square": torch.zeros_like(x),
        "step": torch.zeros_like(keys),
        "finished": torch.zeros_like(keys, dtype=torch.bool),
    }


def estimate(at: Images, state: State, samples: int, delta: float, threat: Threat, query: Query) -> Images:
    """Return mean_i [J(at + delta v_i) - J(at - delta v_i)] / (2 delta) v_i, with J = z_y - max_{k != y} z_k.

    v_i are `samples` / 2 images of random signs, of the sample's key and step. Probes are clipped to the box.
    """
    y, pairs, total = state["y"], samples // 2, torch.zeros_like(at)
    directions: deque[Images] = deque()

    def probes() -> Iterator[Images]:
        for pair in range(pairs):
            directions.append(signs(state["key"], state["step"] * pairs + pair + 1, at))
            yield from (into_box(at + side * directions[-1], threat) for side in (delta, -delta))

    answers = query.logits_of_each(probes(), outside=True)
    for ahead, behind in zip(answers, answers, strict=True):
        difference = margin(ahead, y) - margin(behind, y)
        total = total + per_sample(difference.to(at.dtype), at) * directions.popleft()
    return total / (2 * delta * pairs)


def descend(state: State, gradient: Images, lr: float, steps: int, threat: Threat, query: Query) -> State:
    """Take an Adam step, project, and evaluate the new iterate; finish after `steps` of them."""
    move, mean, square = adam(gradient, state["mean"], state["square"], state["step"], lr)
    x = project(state["x"] - move, state["clean"], threat)
    query.logits(x)
    step = state["step"] + 1
    return state | {"x": x, "mean": mean, "square": square, "step": step, "finished": step >= steps}
