"""Interface `PerturbationSet`: which inputs an attack may propose, and which proposals decide a sample."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from robustbench_kpca._engine.attack_loop.checks import Checks
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Attack, Images, Mask


@dataclass(frozen=True)
class PerturbationSet(ABC):
    """What a threat model allows."""

    threat: Threat

    @abstractmethod
    def require_attack(self, name: str, attack: Attack) -> None:
        """Refuse an attack that does not search in such a set.

        Raises:
            BadInputError: such an attack.
        """

    @abstractmethod
    def check(self, x: Tensor, clean: Images, attack: str, checks: Checks, *, outside: bool = False) -> None:
        """Refuse proposals that are not allowed, or, with `outside`, that are no inputs at all: a bug of the attack."""

    @abstractmethod
    def is_input(self, x: Tensor) -> bool:
        """Tell whether proposals are inputs. Others are points to search from: passes count, but decide nothing."""

    @abstractmethod
    def beyond(self, x: Images, clean: Images) -> Mask:
        """Tell which inputs are too far from the clean one."""

    @abstractmethod
    def example(self) -> Images:
        """Return one clean input, on which options of attacks can be tried."""
