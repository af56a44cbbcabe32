"""What a check of a member found."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from robustbench_kpca._core.errors import BenchmarkError, UnfitError, reason_of
from robustbench_kpca.attacks.foreign import isolated


class Broken(UnfitError):  # noqa: N818 (a finding, not an error)
    """A promise that is not kept; the message says how."""


@dataclass(frozen=True)
class Finding:
    """One promise of a member.

    Attributes:
        promise: what is promised, in words.
        broken: how it is broken; "" where it is kept.
    """

    promise: str
    broken: str = ""


def checked(promise: str, check: Callable[[], None]) -> Finding:
    """Make a check, away from what is printed and from global generators; whatever it raises breaks the promise."""
    try:
        with isolated(0, torch.device("cpu")):
            check()
    except (Broken, BenchmarkError) as error:
        return Finding(promise, reason_of(error))
    except Exception as error:  # noqa: BLE001 (code of others may raise anything)
        return Finding(promise, f"it fails ({reason_of(error)})")
    return Finding(promise)


def require(holds: bool, broken: str) -> None:
    """Break the promise where it is not kept."""
    if not holds:
        raise Broken(broken)
