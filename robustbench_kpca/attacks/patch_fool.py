"""Patch-Fool: the patches that get most attention, changed by Adam so that the model errs and attends to the first.

Fu, Zhang, Wu, Wan & Lin (2022), "Patch-Fool: Are Vision Transformers Always Robust Against Adversarial Perturbations?",
arXiv:2203.08392, section 3, and the authors' program. Surgery as in Yu et al. (2020), arXiv:2001.06782.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks._adam import adam
from robustbench_kpca.attacks.shared.ball import per_sample, require_norm
from robustbench_kpca.attacks.shared.draws import uniforms
from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.attacks.shared.patches import most_gain
from robustbench_kpca.protocols.scenario import Count
from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import (
    AttentionLoss,
    AttentionMaps,
    AttentionQuery,
    Images,
    Keys,
    Labels,
    Mask,
    PerSample,
    Query,
    State,
)

TINY = 1e-12
"""Least attention in the logarithm."""


@dataclass(frozen=True, config=FORBID)
class PatchFool:
    """x <- x + lr_t * Adam(g) inside eps patches, from uniform values there, lr_t = step_size * decay^(t // every).

    Places: those with most attention in layer `rank_layer` (from 0; the last, if there are fewer) at the clean image,
    averaged over heads and queries; with `rank = "gradient"`, with most |grad_x CE(f(x), y)|, as in `patch`. With a_lj
    the attention, averaged over heads, that query j gives to the cells of the first patch in layer l, the direction is

        g = c + weight * sum_l s(g_l, c),    c = grad CE(f(x), y),    g_l = grad mean_j log a_lj

    inside the patches, over layers 1 to L / 2 - 1 of L, at most `layers` of them, and at least one. Surgery: where
    g_l . c < 0, s = g_l - (g_l . c) c / |c|^2 with "textbook", and divided by |c| instead with "released", as in the
    authors' program; else s = g_l.

    As released: 250 steps of 0.22, decay 0.95 every 10, 5 layers, weight 0.002, layer 4, "released". The authors score
    the last image, the loop all of them. The model must have attention maps that can be read.
    """

    norms: ClassVar[tuple[Norm, ...]] = ("patches",)
    reads_attention: ClassVar[bool] = True
    most_passes: ClassVar[tuple[str, str]] = (
        "backwards + 1 + (rank == 'attention')",
        "steps * (1 + layers) + (rank == 'gradient')",
    )
    steps: Count
    step_size: Annotated[float, Field(gt=0, le=1)]
    decay: Annotated[float, Field(gt=0, le=1)]
    every: Count
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    layers: Count
    rank: Literal["attention", "gradient"]
    rank_layer: Annotated[int, Field(ge=0, strict=True)]
    surgery: Literal["released", "textbook"]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin before the places are chosen."""
        require_norm(threat, "patch_fool", *self.norms)
        none = torch.zeros_like(keys)
        outside, zeros = torch.zeros_like(x[:, :1], dtype=torch.bool), torch.zeros_like(x)
        return {
            "x": x,
            "y": y,
            "key": keys,
            "step": none - 1,
            "inside": outside,
            "first": outside,
            "mean": zeros,
            "square": zeros,
            "finished": none > 0,
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Choose the places of images that have none, and change the values of the others."""
        if not isinstance(query, AttentionQuery):
            raise BadInputError("patch_fool where no attention is read", expected="an evaluation, or `attack`")
        begins = state["step"] < 0
        after = _in_rows(state, begins, lambda rows: self._placed(rows, threat, query.rows(begins)))
        return _in_rows(after, ~begins, lambda rows: self._moved(rows, threat, query.rows(~begins)))

    def _placed(self, state: State, threat: Threat, query: AttentionQuery) -> State:
        x = state["x"]
        if self.rank == "attention":
            maps = query.attention_maps(x)
            at = maps[min(self.rank_layer, len(maps) - 1)].mean(1, keepdim=True)
            gain = F.interpolate(at, size=x.shape[2:])[:, 0].clamp_min(0).to(x.dtype)
        else:
            gain = query.gradient(x, lambda logits: threat.sign * cross_entropy(logits, state["y"]))[1].abs().sum(1)
        inside, first = most_gain(gain, threat), most_gain(gain, replace(threat, eps=1))
        drawn = uniforms(state["key"], torch.zeros_like(state["step"]), x[0].numel()).view(x.shape).to(x)
        return state | {"x": torch.where(inside, drawn, x), "inside": inside, "first": first, "step": state["step"] + 1}

    def _moved(self, state: State, threat: Threat, query: AttentionQuery) -> State:
        x, step = state["x"], state["step"]

        def error(logits: Tensor, maps: AttentionMaps) -> PerSample:  # noqa: ARG001
            return threat.sign * cross_entropy(logits, state["y"])

        def log_attention(layer: int, logits: Tensor, maps: AttentionMaps) -> PerSample:  # noqa: ARG001
            a = maps[layer]
            cells = F.adaptive_max_pool2d(state["first"].to(a.dtype), a.shape[2:])
            return (a.clamp_min(TINY).log() * cells).sum((2, 3)).mean(1) / cells.sum((1, 2, 3))

        losses: list[AttentionLoss] = [error]
        losses += [partial(log_attention, layer) for layer in taken(query.layers, self.layers)]
        own, *others = (g * state["inside"] for _, g in query.gradients_on_attention(x, losses))
        total = own + self.weight * torch.stack([operated(other, own, self.surgery) for other in others]).sum(0)
        descent, mean, square = adam(-total, state["mean"], state["square"], step, self.step_size)
        rate = per_sample(self.decay ** (step // self.every).to(x.dtype), x)
        x = (x - rate * descent * state["inside"]).clamp(0, 1)
        finished = step + 1 >= self.steps
        return state | {"x": x, "mean": mean, "square": square, "step": step + 1, "finished": finished}


def taken(layers: int, most: int) -> list[int]:
    """Return the layers in whose attention the loss is: of twelve 1 to 5."""
    return list(range(1, layers // 2))[:most] or [min(1, layers - 1)]


def operated(other: Images, own: Images, surgery: Literal["released", "textbook"]) -> Images:
    """Return `other` without its part against `own`, image by image."""
    product, length = (other * own).flatten(1).sum(1), own.flatten(1).norm(dim=1)
    part = product.clamp_max(0) / (length if surgery == "released" else length.square()).clamp_min(TINY)
    return other - per_sample(part, own) * own


def _in_rows(state: State, mask: Mask, change: Callable[[State], State]) -> State:
    at = mask.nonzero()[:, 0]
    if not len(at):
        return state
    part = change({name: rows[at] for name, rows in state.items()})
    return {name: rows.index_copy(0, at, part[name]) for name, rows in state.items()}


ATTACK = PatchFool
