"""The projection loss of one training run, epoch by epoch, as `rbk diagnose FOLDER` stores it; needs no torch."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from robustbench_kpca.diagnostics.diagnosis import Finite
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.files import write_atomic
from robustbench_kpca.records.record import DataInfo
from robustbench_kpca.strict import STRICT, validate_json

FILE = "trajectory.json"
COLUMNS = ("Epoch", "log10 |phi(q)|^2", "log10 |h|^2", "J_proj", "|phi^2 - h^2|", "inequality", "official log")
TERMS = ("log10_phi", "log10_h", "scaled_signed", "scaled_absolute", "inequality", "official_log")


class EpochTerms(BaseModel):
    """Statistics of the claim `projection_loss` after one epoch: means over images and heads, by layer."""

    model_config = STRICT
    epoch: int
    parameters_sha256: str
    by_layer: dict[str, tuple[Finite, ...]]

    def mean(self, name: str) -> float:
        """Return the mean over layers."""
        return sum(self.by_layer[name]) / len(self.by_layer[name])


class Trajectory(BaseModel):
    """One training run; the images are the same at every epoch."""

    model_config = STRICT
    schema_version: Literal[1] = 1
    name: str
    data: DataInfo
    seed: int = 0
    epochs: tuple[EpochTerms, ...]

    def rows(self) -> list[tuple[str, ...]]:
        """Return one row per epoch."""
        return [(str(one.epoch), *(f"{one.mean(name):.4g}" for name in TERMS)) for one in self.epochs]

    def save(self, folder: Path) -> Path:
        """Write `trajectory.json`; return its path."""
        path = folder / FILE
        write_atomic(path, (self.model_dump_json(indent=1) + "\n").encode())
        return path


def load_trajectory(path: Path) -> Trajectory:
    """Read a trajectory file, or the one in a folder.

    Raises:
        BadInputError: the file is missing or damaged.

    """
    path = path / FILE if path.is_dir() else path
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"cannot read {path} ({error.strerror})", fix="run: rbk diagnose FOLDER -o OUT") from None
    return validate_json(Trajectory, text, str(path))
