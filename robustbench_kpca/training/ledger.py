"""The files of a training run: state to resume from, curves, weights with provenance; and the options of a run."""

import glob
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.files import as_csv, sealed, sha256, unsealed, write_atomic
from robustbench_kpca._core.progress import Progress, read_spent, spent_file
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.models.checkpoint import save_checkpoint
from robustbench_kpca.models.mixing import densities
from robustbench_kpca.tasks import TASKS
from robustbench_kpca.types import Images

if TYPE_CHECKING:  # it imports accelerate
    from robustbench_kpca.training.machine import Machine


@dataclass(frozen=True)
class Epoch:
    """The numbers of one epoch.

    Attributes:
        epoch: its number, from 0.
        lr: learning rate at its end.
        loss: mean over the epoch.
        train_accuracy: share of the labels that were predicted right.
        scores: on held-out data: name of a column, such as `val_loss` or `ema_val_accuracy` -> its value.
    """

    epoch: int
    lr: float
    loss: float
    train_accuracy: float
    scores: Mapping[str, float]

    def row(self) -> dict[str, Any]:
        """Return the numbers by the name of their column; None where there is no number."""
        fixed = {name: getattr(self, name) for name in _FIXED}
        return {name: fixed.get(name, self.scores.get(name)) for name in columns()}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Epoch":
        """Return the epoch of a row: the inverse of `row`."""
        scores = {name: value for name, value in row.items() if name not in _FIXED and value is not None}
        return cls(**{name: row[name] for name in _FIXED}, scores=scores)


_FIXED = ("epoch", "lr", "loss", "train_accuracy")


def columns() -> list[str]:
    """Return the columns of curves, the same for all tasks.

    `loss` and `train_accuracy` are of the training itself: augmented, mixed or attacked images, smoothed targets, and
    weights that change meanwhile. `val_loss` is the mean cross-entropy of the held-out labels after the epoch, without
    smoothing and penalties. Each score that some task has is a column; `ema_val_` are of averaged weights, `val_adv_`
    of held-out images under the recipe's attack at its full radius, `val_stronger_` under a stronger one.
    """
    tasks = [list(TASKS.get(name).scores) for name in TASKS.names()]
    main = ["loss", *dict.fromkeys(names[0] for names in tasks if names)]
    held_out: list[str] = []
    for name in dict.fromkeys(["loss", *(name for names in tasks for name in names)]):
        held_out += [f"val_{name}", f"ema_val_{name}"] if name in main else [f"val_{name}"]
    attacked = [f"val_{attack}_{name}" for attack in ("adv", "stronger") for name in main]
    return [*_FIXED, *held_out, *attacked]


def resume_file(weights: Path) -> Path:
    """Return where the state of a training is that is not finished."""
    return weights.with_name(f"{weights.name.removesuffix('.safetensors')}.resume.pt")


class Ledger:
    """Reads and writes the files of one run, in its folder; only the main process writes.

    Args:
        keep_every: keep the weights of every so many epochs; 0 keeps none but the last.
    """

    def __init__(self, name: str, text: str, folder: Path, *, revision: str | None, keep_every: int) -> None:
        self.name, self.text, self.folder = name, text, folder
        self.revision, self.keep_every = revision or "unknown", keep_every
        self.history: list[Epoch] = []
        self.machines: list[Machine] = []  # that it ran on, in order
        self.provenance: dict[str, str] = {}  # more entries of the header of weights
        self.resume_path = resume_file(self.weights_path())

    def forget(self) -> None:
        """Remove what an earlier run of this name left but its finished weights, which are replaced at the end."""
        epochs = self.folder.glob(f"{glob.escape(self.name)}.epoch-*.safetensors")
        for path in (self.resume_path, spent_file(self.weights_path()), *epochs):
            path.unlink(missing_ok=True)

    def finished(self, *, resume: bool) -> bool:
        """Tell whether this run is already complete; refuse to overwrite files without permission.

        Args:
            resume: continue a run that was begun.

        Raises:
            BadInputError: a run of this name is there, complete or not, and `resume` is not set; or it was trained from
                another recipe.
        """
        if self.check(resume=resume):
            return True
        spent = read_spent(self.weights_path())
        if not self.resume_path.is_file() and spent is not None and spent.epochs:
            spent_file(self.weights_path()).unlink(missing_ok=True)  # of a finished run whose weights are not here
        return False

    def check(self, *, resume: bool) -> bool:
        """Do the same; nothing is removed."""
        path = self.weights_path()
        if self.resume_path.is_file():
            if not resume:
                raise BadInputError(
                    f"{self.resume_path} holds an unfinished run",
                    fix="add --resume to continue it, or --fresh to start again",
                )
            return False
        if path.is_file():
            same = read_header(path).get("recipe") == self.text
            if resume and same:
                return True
            keep = ", or --resume to keep it" if same else ""
            raise BadInputError(f"{path} exists already", fix=f"choose another --name or --out, or add --fresh{keep}")
        return False

    def restore(self, device: torch.device) -> dict[str, Any] | None:
        """Read the state after the last finished epoch; None where there is none.

        Raises:
            BadInputError: the file is damaged, or belongs to another recipe.
        """
        if not self.resume_path.is_file():
            return None
        try:
            where = "cpu" if device.type == "cpu" else device  # torch cannot load to cpu:0, as a launch names it
            content: dict[str, Any] = torch.load(
                io.BytesIO(unsealed(self.resume_path.read_bytes())), where, weights_only=True
            )
            text, history = content["recipe"], [Epoch.of(row) for row in content["history"]]
            machines, provenance = content["machines"], content["provenance"]
        except Exception as error:  # noqa: BLE001 (a damaged file can fail anywhere in its reader)
            raise BadInputError(
                f"{self.resume_path} cannot be read ({reason_of(error)})", fix="add --fresh in place of --resume"
            ) from None
        if text != sha256(self.text.encode()):
            raise BadInputError(
                f"{self.resume_path} belongs to another recipe", fix="choose another --name or --out, or add --fresh"
            )
        self.history, self.machines, self.provenance = history, machines, provenance
        return content

    def replaced(self) -> "list[Machine]":
        """Return the machines of a finished run of the same name and recipe; none if there is no such run."""
        path = self.weights_path()
        try:
            header = read_header(path) if path.is_file() else {}
        except BadInputError:
            return []  # a damaged file is replaced, too
        machines: list[Machine] = json.loads(header.get("machines", "[]"))
        return machines if header.get("recipe") == self.text else []

    def save(self, states: dict[str, Any], model: nn.Module) -> None:
        """Write the curves, every `keep_every` epochs also the weights, and last the state to resume from.

        So nothing of an epoch is missing once the run goes on after it; what is written twice is replaced.
        """
        content = {"recipe": sha256(self.text.encode()), "history": [epoch.row() for epoch in self.history], **states}
        content |= {"machines": self.machines, "provenance": self.provenance}
        self._write_curves()
        done = len(self.history)
        if self.keep_every and done % self.keep_every == 0:
            path = self.folder / f"{self.name}.epoch-{done:03d}.safetensors"
            save_checkpoint(path, model, self._origin(model) | {"epoch": str(done)})
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_atomic(self.resume_path, sealed(buffer.getvalue()))

    def weights_path(self, suffix: str = "") -> Path:
        """Return the path of the finished weights."""
        return self.folder / f"{self.name}{suffix}.safetensors"

    def write_weights(
        self,
        suffix: str,
        model: nn.Module,
        seed: int,
        provenance: dict[str, str],
        images: Images,
        *,
        half: bool = False,
    ) -> None:
        """Write the finished weights with their provenance.

        Args:
            suffix: suffix of the file name: `.ema` for averaged weights.
            images: on which the density of the sparse part S of RPC attention is measured.
            half: whether weights are stored in half precision.
        """
        metadata = self._origin(model) | {"seed": str(seed)} | provenance
        metadata |= {
            "density_revision": self.revision,
            "density_of_S": json.dumps([round(density, 6) for density in densities(model, images)]),
        }
        save_checkpoint(self.weights_path(suffix), model, metadata, half=half)

    def close(self) -> None:
        """Remove the state to resume from, after the last epoch."""
        self.resume_path.unlink(missing_ok=True)

    def _origin(self, model: Any) -> dict[str, str]:
        return {
            "name": self.name,
            "config": json.dumps(model.config),
            "recipe": self.text,
            "revision": self.revision,
            "machines": json.dumps(self.machines),
        } | self.provenance

    def _write_curves(self) -> None:
        rows = (epoch.row().values() for epoch in self.history)
        write_atomic(self.folder / f"{self.name}.csv", as_csv([columns(), *rows]).encode())


@dataclass(frozen=True)
class Options:
    """Options of a run that do not change its numbers.

    Attributes:
        resume: continue after the last finished epoch, if there is one.
        fresh: start again, whatever is there under this name.
        data: folder of image files or scenes, for recipes that read them.
        keep_every: keep the weights of every so many epochs, as `<name>.epoch-010.safetensors`; 0 keeps the last only.
        stop_at: moment of `time.monotonic` after which no further epoch is begun; one more is, where it has passed.
        revision: revision of the code, for the provenance.
        on_epoch: called after every epoch, with the name of the run.
        on_step: called after every step with the numbers of images that are done, and of all images of the run.
        on_note: called with remarks: what was adapted of initial weights, and that the machine is another.
    """

    resume: bool = False
    fresh: bool = False
    data: Path | None = None
    keep_every: int = 0
    stop_at: float | None = None
    revision: str | None = None
    on_epoch: Callable[[str, Epoch], None] | None = None
    on_step: Progress | None = None
    on_note: Callable[[str], None] | None = None
