"""Shared types: tensor shapes, and the interfaces of attacks, queries and corruptions."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
"""Label of a pixel that is excluded from every count and loss."""
PAD, UNKNOWN = 0, 1
"""Token ids of every vocabulary of labelled texts: padding after the end, and a word that is not in the vocabulary."""
END_OF_LINE = 0
"""Number of the end of a line in the vocabulary of a language model; attacks neither replace nor write it."""

State: TypeAlias = dict[str, Tensor]
Loss: TypeAlias = Callable[[Tensor], Tensor]
"""Maps logits to one loss per sample, which the attacker increases."""


@runtime_checkable
class LanguageModel(Protocol):
    """A model that predicts every word of a text from the words before it.

    Attributes:
        vocab_size: number of words that it knows.
        window: number of words that it can read at once.
    """

    vocab_size: int
    window: int

    def __call__(self, x: Images, *, last: bool = False) -> Logits:
        """Return logits of the next word, (batch, vocabulary, 1, length); with `last` of the last place only.

        Args:
            x: words by number, (batch, 1, 1, length), or distributions over them, (batch, vocabulary, 1, length).
            last: return (batch, vocabulary, 1, 1).
        """
        ...


@runtime_checkable
class Query(Protocol):
    """The only access of an attack to the model. Every image is a proposal and must lie in the ball and the box.

    For texts, a proposal is words by number, of which at most `swaps` are replaced. Distributions over words, (batch,
    vocabulary, 1, length), are no texts: their passes count, but they decide nothing.

    The attack loop runs the model, counts the passes of each sample and records misclassified proposals. With
    `outside`, images may leave the ball, but not the box: attacks that minimise the perturbation need this. A
    misclassified image then counts only if it lies in the ball.
    """

    @property
    def classes(self) -> int:
        """Number of classes of the logits; of a language model, of words."""
        ...

    def logits(self, x: Images, *, outside: bool = False) -> Logits:
        """One forward pass per sample."""
        ...

    def logits_of_each(self, proposals: Iterable[Images], *, outside: bool = False) -> Iterator[Logits]:
        """`logits` of every proposal in turn, none of which depends on the answers to others: they share batches."""
        ...

    def gradient(self, x: Images, loss: Loss, *, outside: bool = False) -> tuple[PerSample, Images]:
        """One forward and one backward pass per sample: `loss` and its gradient with respect to `x`."""
        ...

    def gradient_of_each(
        self, x: Images, losses: Sequence[Loss], *, outside: bool = False
    ) -> Iterator[tuple[PerSample, Images]]:
        """`gradient` of every loss at the same images, in turn; each counts as one forward and one backward pass."""
        ...

    def rows(self, mask: Mask) -> "Query":
        """Return a query for the samples where `mask` is true: it takes their images and counts their passes only."""
        ...

    def module(self) -> nn.Module:
        """Return the model for an attack of another library: batches of any size; passes are counted.

        Images are not checked and successes not recorded. A NaN or infinite gradient is refused.
        """
        ...


@runtime_checkable
class Attack(Protocol):
    """An attack as a state machine; one state holds a batch of samples.

    Every tensor of the state has a leading sample axis, so the loop can remove, add, move, save and resume samples. Two
    keys are required: `x`, the current proposal, and `finished`, true once the budget is used up.
    """

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Return the initial state for clean images `x` with labels `y`; `keys` are the samples' random streams."""
        ...

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Advance every sample by one iteration; return a new state and do not modify the old one."""
        ...


@runtime_checkable
class Foreseen(Protocol):
    """What an attack adds whose proposals are mostly rejected, so that its next ones can be shown in the same batch."""

    def ahead(self, state: State, threat: Threat, queries: Labels) -> State:
        """Return the states after `queries` steps (0 or more per row) if no proposal in between is kept, to the bit.

        Entries that this changes in no row, nor a step, are best returned as they are: they are not copied.
        """
        ...

    def kept(self, before: State, after: State) -> Mask:
        """Tell in which rows a step kept its proposal, so that the states foreseen beyond it are wrong."""
        ...


@runtime_checkable
class SeparateRuns(Protocol):
    """What an attack adds whose runs need nothing of each other, so that they can go on side by side.

    Its state has a key `run`, the number of the current run from 0; the step that ends a run increases it.
    """

    def runs_of(self, state: State) -> Labels:
        """Return every row's number of runs; at most 1 while it is not known."""
        ...

    def begin_run(self, state: State, threat: Threat, run: Labels) -> State:
        """Return the states at the beginning of the given runs, as if earlier runs had found nothing."""
        ...

    def join_runs(self, earlier: State, later: State, threat: Threat) -> State:
        """Return the later run's states as they would be had they begun with what the earlier runs found."""
        ...


@runtime_checkable
class Corruption(Protocol):
    """A common corruption of one image: maps uint8 (height, width, 3) to the same; the input is not modified."""

    parameters: dict[str, tuple[Any, ...]]
    """Profile -> the parameters of severities 1 to 5."""

    def exact(self, image: NDArray[np.uint8], parameter: Any, rng: np.random.RandomState) -> NDArray[np.uint8]:
        """Return the result of the reference library for the same random numbers, bit for bit."""
        ...

    def fast(self, image: NDArray[np.uint8], parameter: Any, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return an image from the same distribution, computed faster."""
        ...
