"""A `Query` whose images a test sees, for driving an attack by hand; and a model whose rows do not depend on others."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from robustbench_kpca.types import Images, Loss, Mask

Look = Callable[[Images, Any, bool], None]


def rand(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw uniform numbers of [0, 1)."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class Wavy(nn.Module):
    """Three classes, not linear, every row computed for itself; `lead` is added to the logit of class 0."""

    def __init__(
        self, shape: Sequence[int], lead: float = 0.0, seed: int = 0, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        weight, phase = rand(seed, 3, *shape) - 0.5, 6 * rand(seed + 1, 3, *shape)
        self.weight, self.phase = (nn.Parameter(part.flatten(1).to(dtype)) for part in (weight, phase))
        self.lead: Tensor
        self.register_buffer("lead", torch.tensor([lead, 0, 0], dtype=dtype))

    def forward(self, x: Images) -> Tensor:
        """Return logits, (batch, 3)."""
        return (self.weight * torch.sin(5 * x.flatten(1)[:, None] + self.phase)).sum(2) + self.lead


def _ignore(images: Images, rows: Any, outside: bool) -> None:
    pass


class WatchedQuery:
    """`look` sees every image shown, the numbers of its rows, and whether it may lie outside the ball."""

    def __init__(self, model: Any, look: Look = _ignore, rows: Tensor | None = None) -> None:
        self.model, self.look, self.index = model, look, rows
        self.classes: int = getattr(model, "vocab_size", 0)
        self.forwards = self.backwards = 0

    def logits(self, x: Images, *, outside: bool = False) -> Tensor:
        """See `Query`."""
        self.look(x, self.index, outside)
        self.forwards += 1
        with torch.no_grad():
            answer: Tensor = self.model(x)
        return answer

    def logits_of_each(self, proposals: Iterable[Images], *, outside: bool = False) -> Iterator[Tensor]:
        """See `Query`."""
        return (self.logits(x, outside=outside) for x in proposals)

    def gradient(self, x: Images, loss: Loss, *, outside: bool = False) -> tuple[Tensor, Images]:
        """See `Query`."""
        self.look(x, self.index, outside)
        self.forwards += 1
        self.backwards += 1
        x = x.detach().requires_grad_()
        losses = loss(self.model(x))
        return losses.detach(), torch.autograd.grad(losses.sum(), x)[0]

    def gradient_of_each(
        self, x: Images, losses: Sequence[Loss], *, outside: bool = False
    ) -> Iterator[tuple[Tensor, Images]]:
        """See `Query`."""
        return (self.gradient(x, loss, outside=outside) for loss in losses)

    def rows(self, mask: Mask) -> "WatchedQuery":
        """See `Query`."""
        index = mask.nonzero()[:, 0] if self.index is None else self.index[mask]
        return WatchedQuery(self.model, self.look, index)

    def module(self) -> nn.Module:
        """See `Query`."""
        return cast("nn.Module", self.model)
