"""Weights in another precision for a search: converted once, and in the model only while a pass of the search runs."""

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.types import Images, Labels

if TYPE_CHECKING:
    from robustbench_kpca._engine.inference.runner import Runner

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PASSES = 3  # timed of each precision; the fastest counts


class SearchWeights:
    """Copies of the weights that autocast would convert in every pass: of linear layers and convolutions.

    A weight that another kind of layer uses too stays as it is, and is converted in every pass. So autocast computes
    the same numbers as without the copies. They take half the memory of the weights, from the first pass on.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self._copies: list[tuple[nn.Parameter, Tensor]] | None = None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the copies into the model; put the weights back at the end."""
        if self._copies is None:
            with torch.inference_mode(mode=False), torch.no_grad():
                self._copies = [(one, one.to(self.dtype)) for one in _converted(self.model)]
        before = [weight.data for weight, _ in self._copies]
        try:
            for weight, copied in self._copies:
                weight.data = copied
            yield
        finally:
            for (weight, _), original in zip(self._copies, before, strict=True):
                weight.data = original


def _converted(model: nn.Module) -> list[nn.Parameter]:
    own, others = dict[int, nn.Parameter](), set[int]()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if isinstance(module, _LAYERS) and parameter.dtype == torch.float32:
                own[id(parameter)] = parameter
            else:
                others.add(id(parameter))
    return [parameter for key, parameter in own.items() if key not in others]


def remark(runner: "Runner", x: Images, labels: Labels) -> str:
    """Return a remark for the record if the precision of the search makes gradients slower than single precision.

    Costs four forward and backward passes in each precision, which are not counted.

    Args:
        runner: of the evaluation.
        x: one batch.
        labels: its labels.

    """
    if runner.search == torch.float32:
        return ""
    exact, rough = copy.copy(runner), copy.copy(runner)
    exact.search = torch.float32
    times: list[list[float]] = [[], []]
    for _ in range(_PASSES + 1):  # the first is warm-up
        for one, own in zip((exact, rough), times, strict=True):
            started = time.perf_counter()
            _, gradient, _ = one.gradient(x, lambda logits: cross_entropy(logits, labels))
            gradient.sum().item()
            own.append(time.perf_counter() - started)
    ratio = min(times[1][1:]) / min(times[0][1:])
    if ratio <= 1:
        return ""
    return (
        f"the search in bfloat16 does not pay here: a gradient takes {ratio:.1f} times as long as in single precision"
    )
