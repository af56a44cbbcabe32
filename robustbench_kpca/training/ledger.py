"""What a training run leaves on disk: the epoch to resume from, its curves, and weights that tell their origin."""

import csv
import io
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.files import sha256, write_atomic
from robustbench_kpca.models.checkpoint import read_header, save_checkpoint
from robustbench_kpca.models.mixing import densities
from robustbench_kpca.tasks import TASKS
from robustbench_kpca.types import Images


@dataclass(frozen=True)
class Epoch:
    """The numbers of one epoch.

    Attributes:
        epoch: its number, from 0.
        lr: learning rate at its end.
        loss: mean over the epoch.
        train_accuracy: share of the labels that were predicted right.
        scores: on held-out data: `val_` or `ema_val_` and the name of a score -> a number in [0, 1].
        unreadable: how many different files could not be read as images, up to now.

    """

    epoch: int
    lr: float
    loss: float
    train_accuracy: float
    scores: Mapping[str, float]
    unreadable: int = 0

    def row(self) -> dict[str, Any]:
        """Return the numbers by the name of their column; None where there is no number."""
        fixed = {name: getattr(self, name) for name in (*_FIRST, _LAST)}
        return {name: fixed.get(name, self.scores.get(name)) for name in columns()}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Epoch":
        """Return the epoch of a row: the inverse of `row`."""
        scores = {name: value for name, value in row.items() if name not in (*_FIRST, _LAST) and value is not None}
        fixed = {name: row[name] for name in (*_FIRST, _LAST)}
        return cls(**fixed, scores=scores)


_FIRST, _LAST = ("epoch", "lr", "loss", "train_accuracy"), "unreadable"


def columns() -> list[str]:
    """Return the columns of curves, the same for all tasks.

    Each score that some task has is a column, and so is the main score of each task for averaged weights.
    """
    tasks = [list(TASKS.get(name).scores) for name in TASKS.names()]
    main = [names[0] for names in tasks]
    held_out: list[str] = []
    for name in dict.fromkeys(name for names in tasks for name in names):
        held_out += [f"val_{name}", f"ema_val_{name}"] if name in main else [f"val_{name}"]
    return [*_FIRST, *held_out, _LAST]


class Ledger:
    """The files of one run in its folder; only the main process writes."""

    def __init__(
        self, name: str, text: str, folder: Path, *, revision: str | None, keep_every: int, tensorboard: bool
    ) -> None:
        self.name, self.text, self.folder = name, text, folder
        self.revision, self.keep_every = revision or "unknown", keep_every
        self.history: list[Epoch] = []
        self.resume_path = folder / f"{name}.resume.pt"
        self._board: Any = _summary_writer(folder / f"{name}.tensorboard") if tensorboard else None

    def finished(self, *, resume: bool, fresh: bool) -> bool:
        """Tell whether this very run is done already; refuse to overwrite what was not asked to be.

        Raises:
            BadInputError: a finished or begun run of that name is there, and neither `resume` nor `fresh` was asked
                for, or it is another recipe's.

        """
        if fresh:
            self.resume_path.unlink(missing_ok=True)
            return False
        path = self.weights_path()
        if self.resume_path.is_file():
            if not resume:
                raise BadInputError(f"{self.resume_path} holds a run that was begun", fix="add --resume, or --fresh")
            return False
        if path.is_file():
            if resume and read_header(path).get("recipe") == self.text:
                return True
            raise BadInputError(f"{path} is trained already", fix="choose another --name or --out, or add --fresh")
        return False

    def restore(self, device: torch.device) -> dict[str, Any] | None:
        """Read the last finished epoch, if there is one."""
        if not self.resume_path.is_file():
            return None
        try:
            content: dict[str, Any] = torch.load(self.resume_path, device, weights_only=True)
            text, history = content["recipe"], [Epoch.of(row) for row in content["history"]]
        except Exception as error:  # noqa: BLE001 (a damaged file can fail anywhere in its reader)
            raise BadInputError(
                f"{self.resume_path} cannot be read ({type(error).__name__})", fix="add --fresh in place of --resume"
            ) from None
        if text != sha256(self.text.encode()):
            raise BadInputError(
                f"{self.resume_path} belongs to another recipe", fix="choose another --name or --out, or add --fresh"
            )
        self.history = history
        return content

    def save(self, states: dict[str, Any], model: nn.Module, unreadable: Collection[str]) -> None:
        """Replace the file to resume from and the curves; keep the weights if it is their turn."""
        content = {"recipe": sha256(self.text.encode()), "history": [epoch.row() for epoch in self.history], **states}
        content["unreadable"] = sorted(unreadable)
        if unreadable:
            names = "".join(f"{name}\n" for name in sorted(unreadable))
            write_atomic(self.folder / f"{self.name}.unreadable.txt", names.encode())
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_atomic(self.resume_path, buffer.getvalue())
        self._write_curves()
        done = len(self.history)
        if self.keep_every and done % self.keep_every == 0:
            path = self.folder / f"{self.name}.epoch-{done:03d}.safetensors"
            save_checkpoint(path, model, self._origin(model) | {"epoch": str(done)})
        if self._board is not None:
            for key, value in self.history[-1].row().items():
                if key != "epoch" and value is not None:
                    self._board.add_scalar(key, value, done)
            self._board.flush()

    def weights_path(self, suffix: str = "") -> Path:
        """Return where the finished weights lie."""
        return self.folder / f"{self.name}{suffix}.safetensors"

    def write_weights(
        self, suffix: str, model: nn.Module, seed: int, found: dict[str, str], images: Images, *, half: bool = False
    ) -> None:
        """Write the finished weights: config, recipe, seed, revision, what was found, and density of S on `images`."""
        metadata = self._origin(model) | {"seed": str(seed)} | found
        metadata |= {
            "density_revision": self.revision,
            "density_of_S": json.dumps([round(density, 6) for density in densities(model, images)]),
        }
        if self.history[-1].unreadable:
            metadata["unreadable"] = str(self.history[-1].unreadable)
        save_checkpoint(self.weights_path(suffix), model, metadata, half=half)

    def close(self) -> None:
        """Tidy up after the last epoch."""
        self.resume_path.unlink(missing_ok=True)
        if self._board is not None:
            self._board.close()

    def _origin(self, model: Any) -> dict[str, str]:
        return {
            "name": self.name,
            "config": json.dumps(model.config),
            "recipe": self.text,
            "revision": self.revision,
        }

    def _write_curves(self) -> None:
        curves = io.StringIO()
        writer = csv.DictWriter(curves, columns(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(epoch.row() for epoch in self.history)
        write_atomic(self.folder / f"{self.name}.csv", curves.getvalue().encode())


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BadInputError(
            "--tensorboard without the tensorboard package", fix="pip install 'robustbench-kpca[tensorboard]'"
        ) from None
    return SummaryWriter(str(folder))
