"""Weights in another precision for a search: converted once, and in the model only while a pass of the search runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


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
                self._copies = [(weight, weight.to(self.dtype)) for weight in _converted(self.model)]
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
