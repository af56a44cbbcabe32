"""How often a short protocol gave the same verdicts as the long one that it stands for: measured, kept beside them.

The file `attacks/agreement.json` holds the measurements; `benchmarks/compare.py` makes it. They are no part of a
protocol or its digest, so a new measurement makes no record stale.
"""

from typing import Literal

from pydantic import BaseModel

from robustbench_kpca._core.files import read_file
from robustbench_kpca._core.strict import STRICT, validate_json
from robustbench_kpca.protocols import presets
from robustbench_kpca.protocols.scenario import Attack, Scenario

FILE = "agreement.json"


class Part(BaseModel):
    """One network at one budget.

    kind: `robust`: trained adversarially; `plain`: trained on clean images; `masked`: its gradient is zero.
    images: shown to both protocols, of which `attacked` are classified correctly before any attack, and `robust` were
        not broken by the reference.
    agreed: images of the same verdict.
    only_reference_broke, only_this_broke: the others.
    passes, reference_passes: needed forward and backward passes an image, the clean one included.
    """

    model_config = STRICT
    network: str
    kind: Literal["robust", "plain", "masked"]
    data: str
    eps: str
    images: int
    attacked: int
    robust: int
    agreed: int
    only_reference_broke: int
    only_this_broke: int
    passes: float
    reference_passes: float


class Agreement(BaseModel):
    """Measurements of one protocol.

    search: digest of the protocol without its budgets: another setting is another search, and was not measured.
    """

    model_config = STRICT
    protocol: str
    reference: str
    search: str
    date: str
    command: str
    parts: tuple[Part, ...]

    def of_kind(self, kind: str) -> tuple[Part, ...]:
        """Return the parts of one kind of network."""
        return tuple(part for part in self.parts if part.kind == kind)


class Measurements(BaseModel):
    """The content of the file."""

    model_config = STRICT
    measured: tuple[Agreement, ...]


def search_digest(protocol: Attack) -> str:
    """Return the digest of a protocol at eps = 1 without smaller budgets: what it shares with the rest of a curve."""
    return protocol.model_copy(update={"eps": 1.0, "below": ()}).digest()


def agreement_of(name: str, protocol: Scenario) -> Agreement | None:
    """Return what was measured about a protocol, at whatever eps; with no parts if its settings were changed.

    Args:
        name: label of the protocol; a changed one is `NAME+steps=5`.
        protocol: what it resolved to.

    Returns:
        None for a protocol that stands for no other.
    """
    measured = _measured() if isinstance(protocol, Attack) else ()
    digest = search_digest(protocol) if measured and isinstance(protocol, Attack) else ""
    same = next((agreement for agreement in measured if agreement.search == digest), None)
    if same is not None:
        return same
    base = next((agreement for agreement in measured if agreement.protocol == name.partition("+")[0]), None)
    return None if base is None else base.model_copy(update={"parts": ()})


def _measured() -> tuple[Agreement, ...]:
    place = next((root / "attacks" / FILE for root in presets.roots() if (root / "attacks" / FILE).is_file()), None)
    return () if place is None else validate_json(Measurements, read_file(place), str(place)).measured
