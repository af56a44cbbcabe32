"""The projection loss of one training run, epoch by epoch, as a pack of `rbk reproduce` stores it; needs no torch."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from robustbench_kpca._core.files import read_file, write_atomic
from robustbench_kpca._core.strict import STRICT, validate_json
from robustbench_kpca.records.spec import DataInfo
from robustbench_kpca.study.diagnostics.diagnosis import Finite

FILE = "trajectory.json"
TERMS = {
    "scaled_signed": "J_proj = mean (|phi(q)|^2 - |h|^2)",
    "phi": "mean |phi(q)|^2",
    "h": "mean |h|^2",
    "scaled_absolute": "mean ||phi(q)|^2 - |h|^2|",
    "inequality": "share of |h|^2 <= |phi(q)|^2",
    "official_log": "official log",
}


class EpochTerms(BaseModel):
    """Statistics of the claim `projection_loss` after one epoch: means over images and heads, by layer in order."""

    model_config = STRICT
    epoch: int
    parameters_sha256: str
    by_layer: dict[str, tuple[Finite, ...]]

    def mean(self, name: str) -> float:
        """Return the mean over layers."""
        return sum(self.by_layer[name]) / len(self.by_layer[name])


class Course(BaseModel):
    """One split; its images are the same at every epoch."""

    model_config = STRICT
    data: DataInfo
    epochs: tuple[EpochTerms, ...]

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Return the epochs, and the mean over layers of one statistic after each."""
        return [epoch.epoch for epoch in self.epochs], [epoch.mean(name) for epoch in self.epochs]


class Trajectory(BaseModel):
    """One training run, measured on one or several splits, in evaluation mode; `layers` are those measured."""

    model_config = STRICT
    schema_version: Literal[3] = 3
    name: str
    seed: int = 0
    layers: tuple[int, ...]
    courses: tuple[Course, ...]

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
    return validate_json(Trajectory, read_file(path, "trajectory", fix="run: rbk reproduce PACK"), str(path))
