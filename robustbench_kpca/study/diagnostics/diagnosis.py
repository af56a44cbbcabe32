"""The diagnosis of one model: every claim with its statistics, null models and verdict; written by `rbk diagnose`.

Tables and pages are made from this file alone; it needs no torch.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import read_file, sha256, write_atomic
from robustbench_kpca._core.strict import STRICT, validate_json
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.spec import DataInfo, Environment, ModelInfo

FILE = "diagnosis.json"
BLOCK = 5
"""Default number of images per block; the images of a block serve as each other's null model."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Outcome = Literal["supported", "not supported", "not testable"]


class Protocol(BaseModel):
    """All settings of the measurement; `thresholds` are the limits used in the verdicts."""

    model_config = STRICT
    procedure: str = "corrected"
    """`corrected`, or the name of a literal twin; see `procedures`."""
    claims: tuple[str, ...]
    images: int
    """The largest number of images of a claim."""
    images_of: dict[str, int]
    """The number of images of every claim."""
    block: int
    seed: int
    tokens: Literal["all"] = "all"
    """Class and distillation tokens are included, as in the study; padding is not."""
    layers: tuple[int, ...] | None = None
    heads: None = None
    thresholds: dict[str, float]

    def digest(self) -> str:
        """SHA-256 of the protocol."""
        return sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode())


class LayerInfo(BaseModel):
    """One attention layer of the model, and the number of tokens of its images."""

    model_config = STRICT
    index: int
    name: str
    kind: str
    heads: tuple[int, ...]
    width: int
    tokens: tuple[int, int]
    """Smallest and largest number."""
    has_values: bool


class Null(BaseModel):
    """Null model of a statistic: `draws` permutations of images within their blocks; `p` uses the add-one rule.

    `chance` is the mean over pairs of different images. `z` is the distance of the statistic from the mean of the draws
    in standard deviations of the draws, positive if it supports the claim. A draw leaves about one image per block in
    its place, so z cannot exceed (block - 1) times the square root of the number of blocks.
    """

    model_config = STRICT
    what: str
    draws: int
    chance: Finite
    z: Finite | None
    """None if all draws are equal."""
    p: Finite
    least_p: Finite
    """The smallest p possible with these draws and this number of images."""


class Unit(BaseModel):
    """A statistic in one head of one layer: mean and deviation over images; with a null model, its result (see `Null`).

    `p_holm` is adjusted over all heads of the model (Holm 1979).
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
    """A statistic over the model: mean over heads, then over images; the interval (Student's t) is over images."""

    model_config = STRICT
    what: str
    better: Literal["more", "less", "neither"]
    estimate: Estimate
    null: Null | None
    units: tuple[Unit, ...]


class LayerProfile(BaseModel):
    """A profile in one layer: means and standard deviations over the heads of all images."""

    model_config = STRICT
    layer: int
    mean: tuple[Finite, ...]
    deviation: tuple[Finite, ...]


class Profile(BaseModel):
    """A statistic with several values, such as eigenvalues by rank; `mean` is over layers, heads and images."""

    model_config = STRICT
    what: str
    mean: tuple[Finite, ...]
    layers: tuple[LayerProfile, ...]


class Finding(BaseModel):
    """A published number, beside the value measured here.

    `confirmed` if the whole confidence interval lies between `least` and `most`, `contradicted` if it lies outside,
    else `undecided`. With a single image there is no interval: always `undecided`.
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
    """A claim with its statistics and verdict. `why` states the rule of the verdict and the numbers that it used."""

    model_config = STRICT
    title: str
    source: str
    outcome: Outcome
    why: str
    statistics: dict[str, Measured]
    profiles: dict[str, Profile]
    findings: tuple[Finding, ...]


class Chance(BaseModel):
    """A similarity of unrelated random matrices: mean and deviation over draws."""

    model_config = STRICT
    pair: str
    statistic: str
    tokens: int
    width: int
    mean: Finite
    deviation: Finite
    draws: int


class Diagnosis(BaseModel):
    """All claims about one model on one set of images."""

    model_config = STRICT
    schema_version: Literal[2] = 2
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
        """Write `diagnosis.json` atomically; return its path."""
        path = folder / FILE
        write_atomic(path, (self.model_dump_json(indent=1) + "\n").encode())
        return path


def load_diagnosis(path: Path) -> Diagnosis:
    """Read a diagnosis file, or the one in a folder.

    Raises:
        BadInputError: the file is missing, damaged, of another version, or its protocol was altered.
    """
    path = path / FILE if path.is_dir() else path
    diagnosis = validate_json(Diagnosis, read_file(path, "diagnosis", fix="run: rbk diagnose MODEL"), str(path))
    if diagnosis.protocol.digest() != diagnosis.protocol_digest:
        raise BadInputError(f"{path}: its protocol does not match its digest", fix="run rbk diagnose again")
    return diagnosis


def finding(
    statement: str, source: str, statistic: str, measured: Estimate, *, least: float | None, most: float | None
) -> Finding:
    """Compare a measured confidence interval with a published range."""
    low = -float("inf") if least is None else least
    high = float("inf") if most is None else most
    has_interval = measured.n > 1
    inside = has_interval and low <= measured.low and measured.high <= high
    outside = has_interval and (measured.high < low or measured.low > high)
    outcome: Literal["confirmed", "contradicted", "undecided"] = (
        "confirmed" if inside else "contradicted" if outside else "undecided"
    )
    return Finding(
        statement=statement,
        source=source,
        statistic=statistic,
        least=least,
        most=most,
        measured=measured,
        outcome=outcome,
    )
