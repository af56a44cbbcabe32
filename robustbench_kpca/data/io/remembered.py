"""Keep decoded samples in memory, as a grid of corruptions shows them again and again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Remembered:
    """Calls `read` once an index while the results fit in `limit` bytes a process; they must not be changed.

    What was read first is kept: a grid shows the images in one order again and again, and of more images than fit, the
    most recent ones would always be gone before their turn comes.
    """

    read: Callable[[int], Any]
    limit: int = 2**28
    items: dict[int, Any] = field(default_factory=dict)
    size: int = 0

    def __call__(self, index: int) -> Any:
        """Return item number `index`."""
        if index in self.items:
            return self.items[index]
        item = self.read(index)
        if self.size + item.nbytes <= self.limit:
            self.items[index] = item
            self.size += item.nbytes
        return item
