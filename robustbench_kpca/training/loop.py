"""The training loop: resumable after every epoch, on any device accelerate knows, from a recipe and nothing else."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.data import DATASETS
from robustbench_kpca.errors import BadInputError, EvaluationError
from robustbench_kpca.files import require_writable, sha256, write_atomic
from robustbench_kpca.models.build import create_model
from robustbench_kpca.models.checkpoint import save_checkpoint
from robustbench_kpca.models.mixing import densities
from robustbench_kpca.training.adversarial import adversarial_images
from robustbench_kpca.training.recipe import Recipe

MIN_LR_SHARE = 0.01  # the cosine schedule ends at this share of the peak


@dataclass(frozen=True)
class Epoch:
    """What one epoch showed."""

    epoch: int
    lr: float
    loss: float
    train_accuracy: float
    val_accuracy: float


def train(
    name: str,
    recipe: Recipe,
    text: str,
    folder: Path,
    *,
    resume: bool = False,
    revision: str | None = None,
    report: Callable[[Epoch], None] | None = None,
) -> Path:
    """Train `recipe` and write `<folder>/<name>.safetensors` (weights and provenance) and `<name>.csv` (curves).

    After every epoch `<name>.resume.pt` is replaced; with `resume`, training continues from it bit-identically (on
    CPU). Randomness comes from the recipe's seed alone, and the global generators are left as they were found.

    Raises:
        BadInputError: the folder cannot be written, or holds another recipe's run to resume.
        EvaluationError: the loss stopped being finite; the last good epoch stays on disk.

    """
    require_writable(folder)
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        run = _Run(name, recipe, text, folder)
        if resume:
            run.restore()
        while len(run.history) < recipe.epochs:
            epoch = run.epoch()
            if report is not None:
                report(epoch)
            run.checkpoint()
    return run.finish(revision)


class _Run:
    """The mutable state of one training run."""

    def __init__(self, name: str, recipe: Recipe, text: str, folder: Path) -> None:
        self.name, self.recipe, self.text, self.folder = name, recipe, text, folder
        self.accelerator = Accelerator()
        device = self.accelerator.device
        train_set = DATASETS.get(recipe.data)("train")
        self.ids = train_set.ids
        self.images, self.labels = (part.to(device) for part in train_set.tensors())
        self.val_images, self.val_labels = (part.to(device) for part in DATASETS.get(recipe.data)("val").tensors())
        model = create_model(recipe.model, **recipe.model_options)
        self._require_fit(model)
        try:
            optimizer = create_optimizer_v2(model, opt=recipe.optimizer, lr=recipe.lr, weight_decay=recipe.weight_decay)
        except (ValueError, AssertionError, KeyError, TypeError, RuntimeError) as error:
            raise BadInputError(f"optimizer '{recipe.optimizer}' cannot be made ({error})") from None
        self.scheduler = CosineLRScheduler(
            optimizer,
            t_initial=recipe.epochs,
            lr_min=recipe.lr * MIN_LR_SHARE,
            warmup_t=recipe.warmup_epochs,
            warmup_lr_init=recipe.lr * MIN_LR_SHARE,
        )
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.history: list[Epoch] = []

    def _require_fit(self, model: nn.Module) -> None:
        """Refuse a model that does not take these images or has too few classes."""
        try:
            with torch.no_grad():
                classes = model(self.images[:1].cpu()).shape[-1]
        except (RuntimeError, AssertionError) as error:
            raise BadInputError(f"model '{self.recipe.model}' does not take '{self.recipe.data}' ({error})") from None
        if classes <= int(self.labels.max()):
            raise BadInputError(f"a model of {classes} classes", expected=f"at least {int(self.labels.max()) + 1}")

    def epoch(self) -> Epoch:
        """Pass once over the data."""
        number, recipe = len(self.history), self.recipe
        self.scheduler.step(number)
        self.model.train()
        total = hits = 0.0
        for index, x in self._batches(number):
            y = self.labels[index]
            if recipe.adversarial is not None:
                ids = [self.ids[i] for i in index.tolist()]
                x = adversarial_images(self.model, x, y, ids, recipe.adversarial, seed=recipe.seed, epoch=number)
            logits = self.model(x)
            loss = F.cross_entropy(logits, y, label_smoothing=recipe.smoothing)
            if not math.isfinite(loss.item()):
                raise EvaluationError(
                    f"training '{self.name}' diverged in epoch {number} (loss {loss.item()})",
                    fix=f"lower lr; the last good epoch is in {self._resume_path()}",
                )
            self.optimizer.zero_grad()
            self.accelerator.backward(loss)
            self.optimizer.step()
            total += loss.item() * len(y)
            hits += float((logits.argmax(1) == y).sum())
        self.model.eval()
        count = len(self.labels)
        done = Epoch(
            number, self.optimizer.param_groups[0]["lr"], total / count, hits / count,
            accuracy(self.model, self.val_images, self.val_labels),
        )  # fmt: skip
        self.history.append(done)
        return done

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        rng = torch.Generator().manual_seed(self.recipe.seed * 100_003 + epoch)
        order = torch.randperm(len(self.labels), generator=rng)
        reach = self.recipe.max_shift
        for index in order.split(self.recipe.batch_size):
            x = self.images[index]
            if reach:
                offsets = torch.randint(0, 2 * reach + 1, (len(index), 2), generator=rng)
                x = shift(x, offsets, reach)
            yield index, x

    def checkpoint(self) -> None:
        """Replace the file to resume from."""
        content = {
            "recipe": sha256(self.text.encode()),
            "model": self.accelerator.unwrap_model(self.model).state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "history": [asdict(epoch) for epoch in self.history],
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_atomic(self._resume_path(), buffer.getvalue())

    def restore(self) -> None:
        """Continue from the last finished epoch, if there is one."""
        path = self._resume_path()
        if not path.is_file():
            return
        try:
            content = torch.load(path, self.accelerator.device, weights_only=True)
            recipe = content["recipe"]
        except Exception as error:  # noqa: BLE001 (a damaged file can fail anywhere in its reader)
            raise BadInputError(f"{path} cannot be read ({type(error).__name__})", fix="drop --resume") from None
        if recipe != sha256(self.text.encode()):
            raise BadInputError(f"{path} belongs to another recipe", fix="train into another folder, or drop --resume")
        self.accelerator.unwrap_model(self.model).load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.history = [Epoch(**epoch) for epoch in content["history"]]

    def finish(self, revision: str | None) -> Path:
        """Write the weights with their provenance, and the curves."""
        model: Any = self.accelerator.unwrap_model(self.model)
        device = self.accelerator.device
        images, labels = (part.to(device) for part in DATASETS.get(self.recipe.data)("test").tensors())
        metadata = {
            "name": self.name,
            "config": json.dumps(model.config),
            "recipe": self.text,
            "seed": str(self.recipe.seed),
            "revision": revision or "unknown",
            "val_accuracy": f"{self.history[-1].val_accuracy:.4f}",
            "test_accuracy": f"{accuracy(model, images, labels):.4f}",
            "density_revision": revision or "unknown",
            "density_of_S": json.dumps([round(density, 6) for density in densities(model, images)]),
        }
        path = self.folder / f"{self.name}.safetensors"
        save_checkpoint(path, model, metadata)
        curves = io.StringIO()
        writer = csv.DictWriter(curves, list(asdict(self.history[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(epoch) for epoch in self.history)
        write_atomic(self.folder / f"{self.name}.csv", curves.getvalue().encode())
        self._resume_path().unlink(missing_ok=True)
        return path

    def _resume_path(self) -> Path:
        return self.folder / f"{self.name}.resume.pt"


def shift(images: Tensor, offsets: Tensor, reach: int) -> Tensor:
    """Move image i by `offsets[i] - reach` pixels (down, right); what comes in is black."""
    _, _, height, width = images.shape
    padded = F.pad(images, (reach, reach, reach, reach))
    rows = [padded[i, :, 2 * reach - dy : 2 * reach - dy + height, 2 * reach - dx : 2 * reach - dx + width]
            for i, (dy, dx) in enumerate(offsets.tolist())]  # fmt: skip
    return torch.stack(rows)


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int = 256) -> float:
    """Share of images classified correctly."""
    hits: int = sum(
        int((model(x).argmax(1) == y).sum())
        for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True)
    )
    return hits / len(labels)
