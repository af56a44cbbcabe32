"""Attention that needs the values V of an earlier layer, and the chain that hands them on.

Each layer of a chain keeps its V until the first layer runs again, which clears all: none is used in another pass. So V
is there when a layer is computed a second time in the backward pass (gradient checkpointing), where layers run from the
last to the first. The model is not changed: `models.place` makes the chain.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.shared.heads import Heads
from robustbench_kpca.attention.shared.weights import WeightedAttention


class ChainedAttention(WeightedAttention):
    """A layer of a chain; `reach` says whose V it gets. The first layer gets none, and is softmax attention."""

    reach: ClassVar[Literal["first", "previous"]] = "previous"

    def __init__(self, dim: int, num_heads: int = 8, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self.chain: tuple[ChainedAttention, ...] = ()
        self.place = 0
        self.handed: Heads | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the values of the last pass, whose graph cannot be copied."""
        return self.__dict__ | {"handed": None}

    def earlier(self, v: Heads) -> Heads | None:
        """Hand V on; return that of the earlier layer, None in the first.

        Raises:
            BadInputError: the layer is in no chain, or the earlier one did not run in this pass.
        """
        if not self.chain:
            raise BadInputError(
                f"{type(self).__name__} without the values of an earlier layer",
                expected="a model that it was placed into",
                fix="place(model, NAME), or attention=NAME of create_model",
            )
        if not self.place:
            for layer in self.chain:
                layer.handed = None
        self.handed = v
        if not self.place:
            return None
        values = self.chain[0 if self.reach == "first" else self.place - 1].handed
        if values is None or values.shape != v.shape:
            raise BadInputError(
                f"layer {self.place} of {type(self).__name__} alone", expected="a pass through all layers"
            )
        return values


def chain(layers: Sequence[nn.Module]) -> None:
    """Let layers hand their values on, if they are of that kind; the first begins every pass.

    Raises:
        BadInputError: there is one layer only, which would be softmax attention.
    """
    linked = tuple(layer for layer in layers if isinstance(layer, ChainedAttention))
    if len(linked) == 1:
        raise BadInputError(f"{type(linked[0]).__name__} in one layer", expected="two layers or more, such as all")
    for place, layer in enumerate(linked):
        layer.chain, layer.place = linked, place
