"""The words the compute half speaks: shapes of tensors, and what models, attacks and corruptions promise."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from robustbench_kpca.protocols.threat import Threat

Images: TypeAlias = Float[Tensor, "batch channel height width"]
Labels: TypeAlias = Int64[Tensor, " batch *place"]  # one class per image, or one per pixel (or IGNORE)
Logits: TypeAlias = Float[Tensor, "batch class *place"]
PerSample: TypeAlias = Float[Tensor, " batch"]
Mask: TypeAlias = Bool[Tensor, " batch"]
Keys: TypeAlias = Int64[Tensor, " batch"]

IGNORE = -1
"""Label of a pixel that counts nowhere."""

State: TypeAlias = dict[str, Tensor]
Loss: TypeAlias = Callable[[Tensor], Tensor]
"""Maps logits to one loss per sample, to be increased by the attacker."""


@runtime_checkable
class Query(Protocol):
    """The only way from an attack to the model. Every image shown is a proposal: it must lie in the ball and the box.

    The loop behind it runs the model, counts the passes of each sample and notices misclassified proposals. With
    `outside`, images may leave the ball (never the box): minimal attacks search there. One that is misclassified then
    counts only if it lies in the ball.
    """

    def logits(self, x: Images, *, outside: bool = False) -> Logits:
        """One forward pass per sample."""
        ...

    def gradient(self, x: Images, loss: Loss, *, outside: bool = False) -> tuple[PerSample, Images]:
        """One forward and one backward pass per sample: `loss` and its gradient with respect to `x`."""
        ...

    def rows(self, mask: Mask) -> "Query":
        """Restrict to some samples: what is shown next are images of those only, and they alone pay."""
        ...

    def module(self) -> nn.Module:
        """Return the bare model, for an attack of another library: batches of any size, counted but not judged.

        A gradient that is NaN or infinite is refused there, too.
        """
        ...


@runtime_checkable
class Attack(Protocol):
    """A small state machine over samples.

    Every tensor of the state has a leading sample axis, so the loop can drop, refill, move, save and resume samples.
    Two keys are required: `x`, the current proposal, and `finished`, true once the budget is spent.
    """

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin at clean images `x` in [0, 1] with labels `y`; `keys` are the samples' random streams."""
        ...

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Advance every sample by one iteration; return a new state, leave the old one as it was."""
        ...


@runtime_checkable
class Corruption(Protocol):
    """A common corruption of one image: uint8 (height, width, 3) in, the same out; the image given is left as it is."""

    parameters: dict[str, tuple[Any, ...]]
    """Profile -> the parameters of severities 1 to 5."""

    def exact(self, image: NDArray[np.uint8], parameter: Any, rng: np.random.RandomState) -> NDArray[np.uint8]:
        """Make, bit for bit, what the reference makes of the same stream of random numbers."""
        ...

    def fast(self, image: NDArray[np.uint8], parameter: Any, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Make a picture of the same distribution, as fast as can be."""
        ...
