"""The projection loss of one training run, epoch by epoch, as `rbk diagnose FOLDER` stores it; needs no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from robustbench_kpca._core.files import as_csv, read_file, write_atomic
from robustbench_kpca._core.strict import STRICT, validate_json
from robustbench_kpca.records.spec import DataInfo
from robustbench_kpca.study.diagnostics.diagnosis import Finite

FILE = "trajectory.json"
TABLE, FIGURE = "trajectory.csv", "trajectory.svg"
TERMS = {
    "scaled_signed": "J_proj = mean (|phi(q)|^2 - |h|^2)",
    "phi": "mean |phi(q)|^2",
    "h": "mean |h|^2",
    "scaled_absolute": "mean ||phi(q)|^2 - |h|^2|",
    "inequality": "share of |h|^2 <= |phi(q)|^2",
    "official_log": "official log",
}
COLUMNS = ("Split", "Epoch", *TERMS.values())


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

    def rows(self) -> list[tuple[str, ...]]:
        """Return one row per split and epoch: means over layers."""
        return [
            (course.data.split, str(epoch.epoch), *(f"{epoch.mean(name):.4g}" for name in TERMS))
            for course in self.courses
            for epoch in course.epochs
        ]

    def csv(self) -> str:
        """Return one line per split, epoch, statistic and layer; the layer `all` is the mean over layers."""
        rows: list[Sequence[object]] = [("split", "epoch", "statistic", "layer", "value")]
        for course in self.courses:
            for epoch in course.epochs:
                for name, values in epoch.by_layer.items():
                    where = (course.data.split, epoch.epoch, name)
                    numbered = [("all", epoch.mean(name)), *zip(self.layers, values, strict=True)]
                    rows += [(*where, layer, f"{value:.8g}") for layer, value in numbered]
        return as_csv(rows)

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
    return validate_json(Trajectory, read_file(path, "trajectory", fix="run: rbk diagnose FOLDER -o OUT"), str(path))
