"""The diagnosis of one model: every claim with its statistics, nulls and verdict; written by `rbk diagnose`.

The compute half writes it, tables and pages are made from it alone; this file needs no torch.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.files import sha256, write_atomic
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.record import DataInfo, Environment, ModelInfo
from robustbench_kpca.strict import STRICT, validate_json

SCHEMA_VERSION = 1
FILE = "diagnosis.json"
BLOCK = 5
"""Images that are looked at together, and each other's null, unless another number is asked for."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Outcome = Literal["supported", "not supported", "not testable"]


class Protocol(BaseModel):
    """Everything the measurement was told; `thresholds` are those of the verdicts."""

    model_config = STRICT
    claims: tuple[str, ...]
    images: int
    block: int
    seed: int
    tokens: Literal["all"] = "all"
    """Class and distillation tokens count as tokens, as in the study; padding does not."""
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    thresholds: dict[str, float]

    def digest(self) -> str:
        """SHA-256 of the protocol."""
        return sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode())


class LayerInfo(BaseModel):
    """One attention layer of the model, and how many tokens its images had."""

    model_config = STRICT
    index: int
    name: str
    kind: str
    heads: tuple[int, ...]
    width: int
    tokens: tuple[int, int]
    """Fewest and most."""
    has_values: bool


class Null(BaseModel):
    """What a statistic is by chance: `p` by the add-one rule over `draws` permutations of images within their blocks.

    `chance` is the mean over pairs of different images. `z` counts deviations of the draws from their mean, above 0 if
    it speaks for the claim; as a draw leaves about one image a block in its place, z cannot exceed (block - 1) times
    the root of the number of blocks.
    """

    model_config = STRICT
    what: str
    draws: int
    chance: Finite
    z: Finite | None
    """None where the draws do not vary."""
    p: Finite
    least_p: Finite
    """The smallest p that these draws and so many images could give."""


class Unit(BaseModel):
    """A statistic in one head of one layer: mean and deviation over images; with a null, what it says (see `Null`).

    `p_holm` is adjusted for all heads of the model (Holm 1979).
    """

    model_config = STRICT
    layer: int
    head: int
    mean: Finite
    deviation: Finite
    chance: Finite | None = None
    z: Finite | None = None
    p: Finite | None = None
    p_holm: Finite | None = None


class Measured(BaseModel):
    """A statistic over the model: mean over heads, then images, whose number the interval (Student's t) is based on."""

    model_config = STRICT
    what: str
    better: Literal["more", "less", "neither"]
    estimate: Estimate
    null: Null | None
    units: tuple[Unit, ...]


class Finding(BaseModel):
    """A number that others stated, beside what was measured here.

    `confirmed` if the whole interval lies between `least` and `most`, `contradicted` if it lies outside, else
    `undecided`, as it always is from a single image, which has no interval.
    """

    model_config = STRICT
    statement: str
    source: str
    statistic: str
    least: Finite | None
    most: Finite | None
    measured: Estimate
    outcome: Literal["confirmed", "contradicted", "undecided"]


class Judged(BaseModel):
    """A claim with all that speaks for or against it. `why` states the rule of the verdict and the numbers it met."""

    model_config = STRICT
    title: str
    source: str
    outcome: Outcome
    why: str
    statistics: dict[str, Measured]
    profiles: dict[str, tuple[Finite, ...]]
    """Means over images and heads of statistics that are a list each, such as eigenvalues by rank."""
    findings: tuple[Finding, ...]


class Chance(BaseModel):
    """What a similarity is between matrices that have nothing to do with each other: mean and deviation over draws."""

    model_config = STRICT
    pair: str
    statistic: str
    tokens: int
    width: int
    mean: Finite
    deviation: Finite
    draws: int


class Diagnosis(BaseModel):
    """All claims about one model on one set of images or texts."""

    model_config = STRICT
    schema_version: Literal[1] = 1
    model: ModelInfo
    data: DataInfo
    protocol: Protocol
    protocol_digest: str
    layers: tuple[LayerInfo, ...]
    claims: dict[str, Judged]
    chance: tuple[Chance, ...]
    environment: Environment
    created: str
    seconds: float

    def save(self, folder: Path) -> Path:
        """Write `diagnosis.json` whole or not at all; return its path."""
        path = folder / FILE
        write_atomic(path, (self.model_dump_json(indent=1) + "\n").encode())
        return path


def load_diagnosis(path: Path) -> Diagnosis:
    """Read a diagnosis, or the one in a folder.

    Raises:
        BadInputError: missing, damaged, of another version, or altered in its protocol.

    """
    path = path / FILE if path.is_dir() else path
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"cannot read diagnosis {path} ({error.strerror})", fix="run: rbk diagnose MODEL") from None
    diagnosis = validate_json(Diagnosis, text, str(path))
    if diagnosis.protocol.digest() != diagnosis.protocol_digest:
        raise BadInputError(f"{path}: its protocol is not the one it was made with", fix="diagnose again")
    return diagnosis


def finding(
    statement: str, source: str, statistic: str, measured: Estimate, *, least: float | None, most: float | None
) -> Finding:
    """Compare a measured interval with the range that others stated."""
    low = -float("inf") if least is None else least
    high = float("inf") if most is None else most
    told = measured.n > 1
    inside = told and low <= measured.low and measured.high <= high
    outside = told and (measured.high < low or measured.low > high)
    outcome: Literal["confirmed", "contradicted", "undecided"] = (
        "confirmed" if inside else "contradicted" if outside else "undecided"
    )
    return Finding(
        statement=statement, source=source, statistic=statistic, least=least, most=most, measured=measured,
        outcome=outcome,
    )  # fmt: skip
