"""Gradient attack on a few patches or pixels: places by gradient or at random, then momentum or Adam on their values.

Brown, Mané, Roy, Abadi & Gilmer (2017), "Adversarial Patch", arXiv:1712.09665, for one image instead of all. Places
are ranked by the gradient, as by the saliency of Patch-Fool: Fu, Zhang, Wu, Wan & Lin (2022), arXiv:2203.08392.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._adam import adam
from robustbench_kpca.attacks.shared.ball import per_sample, require_norm
from robustbench_kpca.attacks.shared.draws import uniforms
from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.attacks.shared.patches import most_gain, random_places
from robustbench_kpca.attacks.shared.rows import choose
from robustbench_kpca.protocols.scenario import Count
from robustbench_kpca.protocols.threat import COUNTED, Norm, Threat
from robustbench_kpca.types import Images, Keys, Labels, Query, State


@dataclass(frozen=True, config=FORBID)
class Patch:
    """`places` runs of `steps` steps, each at eps places of its own: x <- x + step_size * direction inside them.

    Places: with `rank = "gradient"`, every place is worth the sum of |grad_x CE(f(x), y)| in it at the clean image; the
    first run takes the eps best, the second the next eps, and so on. So `places` = the number of all places / eps is
    the worst of the whole grid. With "random", each run draws its own.

    Direction: `momentum`: sign(m), m <- decay m + g / ||g||_1, with g the gradient inside the places; `adam`: Adam's
    with the learning rate `step_size`, for which `decay` is not used. Values are clipped to [0, 1]. Each run begins at
    the clean image or, with `random_start`, with uniform values in its places.

    A sample that is never misclassified costs `steps` backward passes a run, one between two runs, which shows the last
    image of the first, and one with `rank = "gradient"`; and a forward pass more, the loop's check of the last image.
    """

    version: ClassVar[int] = 1
    norms: ClassVar[tuple[Norm, ...]] = COUNTED
    many_labels: ClassVar[bool] = True
    most_passes: ClassVar[tuple[str, str]] = ("backwards + 1", "places * (steps + 1) - 1 + (rank == 'gradient')")
    steps: Count
    step_size: Annotated[float, Field(gt=0, le=1)]
    optimizer: Literal["momentum", "adam"]
    decay: Annotated[float, Field(ge=0)]
    rank: Literal["gradient", "random"]
    places: Count
    random_start: StrictBool

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin before the first run."""
        require_norm(threat, "patch", *self.norms)
        none = torch.zeros_like(keys)
        state = {
            "x": x,
            "clean": x,
            "y": y,
            "key": keys,
            "run": none - 1,
            "step": none,
            "gain": torch.zeros_like(x[:, 0]),
            "inside": torch.zeros_like(x[:, :1], dtype=torch.bool),
            "mean": torch.zeros_like(x),
            "square": torch.zeros_like(x),
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }
        return self._begun(state, threat) if self.rank == "random" else state

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Rank the places, or change the values in those of the run, or show its last image and begin the next."""
        x, y = state["x"], state["y"]
        _, gradient = query.gradient(x, lambda logits: cross_entropy(logits, y))
        ranks = state["run"] < 0
        begins = ranks | (state["step"] >= self.steps)
        gain = torch.where(ranks[:, None, None], gradient.abs().sum(1), state["gain"])
        begun = self._begun(state | {"gain": gain}, threat)
        moved = self._moved(state, gradient * state["inside"])
        finished = ~begins & (moved["step"] >= self.steps) & (state["run"] + 1 >= self.places)
        return {name: choose(begins, begun[name], values) for name, values in (moved | {"finished": finished}).items()}

    def _moved(self, state: State, gradient: Images) -> State:
        if self.optimizer == "adam":
            descent, mean, square = adam(-gradient, state["mean"], state["square"], state["step"], self.step_size)
            change = -descent * state["inside"]
        else:
            length = gradient.abs().flatten(1).sum(1).clamp_min(torch.finfo(gradient.dtype).tiny)
            mean, square = self.decay * state["mean"] + gradient / per_sample(length, gradient), state["square"]
            change = self.step_size * mean.sign()
        x = (state["x"] + change).clamp(0, 1)
        return state | {"x": x, "mean": mean, "square": square, "step": state["step"] + 1}

    def _begun(self, state: State, threat: Threat) -> State:
        """Return the states at the beginning of the next run, whose places are taken from those that are left."""
        clean, keys, run = state["clean"], state["key"], state["run"] + 1
        gain = state["gain"]
        inside = random_places(keys, run, clean, threat) if self.rank == "random" else most_gain(gain, threat)
        x = clean
        if self.random_start:
            x = torch.where(inside, uniforms(keys, run, clean[0].numel()).view(clean.shape).to(clean), clean)
        zeros = {name: torch.zeros_like(state[name]) for name in ("mean", "square", "step")}
        used = -torch.finfo(gain.dtype).tiny  # below places that have no gradient, and were not tried
        return state | zeros | {"x": x, "inside": inside, "run": run, "gain": gain.masked_fill(inside[:, 0], used)}


ATTACK = Patch
