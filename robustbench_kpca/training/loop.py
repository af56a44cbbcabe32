"""The training loop: resumable after every epoch, on any device and any number of processes accelerate knows."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from robustbench_kpca.errors import BadInputError, EvaluationError
from robustbench_kpca.files import require_writable
from robustbench_kpca.models.build import create_model
from robustbench_kpca.training.generators import epoch_seed, own_generators, seed_generators
from robustbench_kpca.training.ledger import Epoch, Ledger
from robustbench_kpca.training.objective import Objective
from robustbench_kpca.training.recipe import Recipe
from robustbench_kpca.training.schedule import schedule
from robustbench_kpca.training.source import Batch
from robustbench_kpca.training.start import start
from robustbench_kpca.training.tables import source_of
from robustbench_kpca.types import IGNORE


@dataclass(frozen=True)
class Options:
    """What a run may be asked for that does not change its numbers."""

    resume: bool = False
    """Go on after the last finished epoch, if there is one."""
    fresh: bool = False
    """Start over, whatever is there under this name."""
    data: Path | None = None
    """Folder of image files or scenes, for recipes that read them."""
    keep_every: int = 0
    """Keep the weights of every so many epochs, as `<name>.epoch-010.safetensors`; 0 keeps the last only."""
    tensorboard: bool = False
    revision: str | None = None
    on_epoch: Callable[[Epoch], None] | None = None
    on_step: Callable[[int, int], None] | None = None
    """Called with the images done and to do, of the whole run."""


def train(name: str, recipe: Recipe, text: str, folder: Path, options: Options = Options()) -> Path:
    """Train `recipe` and write `<folder>/<name>.safetensors` (weights and provenance) and `<name>.csv` (curves).

    After every epoch `<name>.resume.pt` is replaced; with `resume`, training continues from it bit-identically (on
    CPU). Randomness comes from the recipe's seed alone, and the global generators are left as they were found. With a
    moving average, `<name>.ema.safetensors` is written beside.

    Raises:
        BadInputError: the folder cannot be written, holds another recipe's run to resume, or the data cannot be used.
        EvaluationError: the loss stopped being finite; the last good epoch stays on disk.

    """
    require_writable(folder)
    with own_generators():
        # Told to use the CPU where there is nothing else, accelerate joins several processes there, too. Nothing that
        # changes numbers is left to its environment variables.
        accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(),
            mixed_precision="no",
            gradient_accumulation_steps=1,
            dynamo_backend="no",
        )
        tensorboard = options.tensorboard and accelerator.is_main_process
        ledger = Ledger(
            name, text, folder, revision=options.revision, keep_every=options.keep_every, tensorboard=tensorboard
        )
        if ledger.finished(resume=options.resume, fresh=options.fresh):
            return ledger.weights_path()
        run = _Run(name, recipe, ledger, options, accelerator)
        run.restore()
        while len(run.ledger.history) < recipe.epochs:
            epoch = run.epoch()
            if options.on_epoch is not None:
                options.on_epoch(epoch)
            run.save()
        return run.finish()


class _Run:
    """The mutable state of one training run."""

    def __init__(self, name: str, recipe: Recipe, ledger: Ledger, options: Options, accelerator: Accelerator) -> None:
        self.name, self.recipe, self.ledger, self.options = name, recipe, ledger, options
        self.accelerator = accelerator
        seed_generators(recipe.seed)
        self.plain = create_model(recipe.model, **recipe.model_options)
        self.origin = start(self.plain, recipe)
        self.source = source_of(recipe, options.data, self.accelerator)
        self.compute = self.source.task.compute
        self.classes = self._require_fit()
        optimizer = self._optimizer()
        self.scheduler = schedule(recipe, optimizer, math.ceil(self.source.length / recipe.batch_size))
        self.model, self.optimizer = self.accelerator.prepare(self.plain, optimizer)
        self.objective = Objective(recipe, self.plain, self.compute.training, self.classes)
        self.ema = ModelEmaV3(self.plain, decay=recipe.ema_decay) if recipe.ema_decay is not None else None

    def _require_fit(self) -> int:
        """Refuse a model that does not fit the data; return its number of classes.

        Raises:
            BadInputError: it does not take these images, its logits have the wrong shape, or it has too few classes.

        """
        image, largest = self.source.sample()
        shown = self.compute.presentation(self.plain, attacked=False)
        try:
            with torch.no_grad():
                logits = shown.show(self.plain, image.cpu())
        except (RuntimeError, AssertionError) as error:
            raise BadInputError(f"model '{self.recipe.model}' does not take '{self.recipe.data}' ({error})") from None
        shown.require(logits, image)
        classes = int(logits.shape[1])
        if classes <= largest:
            raise BadInputError(
                f"a model of {classes} classes", expected=f"at least {largest + 1}", fix="set model_options.num_classes"
            )
        return classes

    def _optimizer(self) -> Any:
        recipe = self.recipe
        try:
            return create_optimizer_v2(self.plain, opt=recipe.optimizer, lr=recipe.lr, weight_decay=recipe.weight_decay)
        except (ValueError, AssertionError, KeyError, TypeError, RuntimeError) as error:
            raise BadInputError(f"optimizer '{recipe.optimizer}' cannot be made ({error})") from None

    def epoch(self) -> Epoch:
        """Pass once over the data."""
        number = len(self.ledger.history)
        seed_generators(epoch_seed(self.recipe.seed, number, self.accelerator))
        self.scheduler.step(number)
        self.model.train()
        sums = self._sums(4)
        steps = math.ceil(self.source.length / self.recipe.batch_size)
        for step, batch in enumerate(self.source.epoch(number)):
            self.scheduler.step_update(number * steps + step)
            losses, logits = self._step(batch, number)
            hits, labels = (logits.argmax(1) == batch.y).sum(), (batch.y != IGNORE).sum()
            sums += torch.stack([losses.sum(), torch.full_like(hits, len(batch.y)), hits, labels]).to(sums)
            if self.options.on_step is not None:
                done = int(sums[1]) * self.accelerator.num_processes
                self.options.on_step(number * self.source.length + done, self.recipe.epochs * self.source.length)
        self.model.eval()
        total, count, right, labelled = self.accelerator.reduce(sums).tolist()
        if not count:
            raise BadInputError("an epoch without one whole batch", fix="lower batch_size")
        self._gather(number)
        scores = {f"val_{name}": value for name, value in self.score(self.plain, "val").items()}
        if self.ema is not None:
            scores |= {f"ema_val_{name}": value for name, value in self.score(self.ema.module, "val").items()}
        done_epoch = Epoch(
            epoch=number,
            lr=self.optimizer.param_groups[0]["lr"],
            loss=total / count,
            train_accuracy=right / max(labelled, 1),
            scores=scores,
            unreadable=len(self.source.unreadable),
        )
        self.ledger.history.append(done_epoch)
        return done_epoch

    def _step(self, batch: Batch, number: int) -> tuple[Tensor, Tensor]:
        """Take one step of the optimiser; the loss is the mean over the labels of the global batch that count.

        It does not depend on the number of processes that share the batch.
        """
        half = self.recipe.precision == "bf16"
        with torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=half):
            losses, logits = self.objective(self.model, batch, number)
        loss = losses.sum() * (self.accelerator.num_processes / batch.count)
        if not math.isfinite(loss.item()):
            raise self._diverged(number, f"loss {loss.item()}")
        self.optimizer.zero_grad()
        self.accelerator.backward(loss)
        if self.recipe.clip_grad is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.recipe.clip_grad)
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update(self.plain)
        return losses.detach(), logits.detach()

    def _sums(self, *shape: int) -> Tensor:
        device = self.accelerator.device
        return torch.zeros(shape, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)

    def _gather(self, number: int) -> None:
        """Let all processes agree on unreadable files and on batch statistics; refuse weights that are not finite.

        Raises:
            EvaluationError: the last step left NaN or infinite weights.

        """
        self.source.unreadable = set(gather_object(sorted(self.source.unreadable)))
        averages = [self.ema.module] if self.ema is not None else []
        for model in (self.plain, *averages):
            if self.accelerator.num_processes > 1:
                for buffer in model.buffers():
                    torch.distributed.broadcast(buffer, 0)
            if not all(bool(torch.isfinite(value).all()) for value in model.state_dict().values()):
                raise self._diverged(number, "the weights are no longer finite")

    def _diverged(self, number: int, how: str) -> EvaluationError:
        return EvaluationError(
            f"training '{self.name}' diverged in epoch {number} ({how})",
            fix=f"lower lr; the last good epoch, if there is one, is in {self.ledger.resume_path}",
        )

    @torch.no_grad()
    def score(self, model: nn.Module, part: str) -> dict[str, float]:
        """Return the task's scores on `val` or `test`, over all processes; empty if there is no such part."""
        sums = self._sums(3, self.classes)
        for x, y in self.source.held_out(part):
            sums += self.compute.training.counts(model(x), y).to(sums)
        return self.compute.training.score(self.accelerator.reduce(sums).cpu())

    def restore(self) -> None:
        """Continue from the last finished epoch, if asked to and there is one."""
        content = self.ledger.restore(self.accelerator.device) if self.options.resume else None
        if content is not None:
            self.plain.load_state_dict(content["model"])
            self.optimizer.load_state_dict(content["optimizer"])
            self.source.unreadable = set(content["unreadable"])
            if self.ema is not None:
                self.ema.module.load_state_dict(content["ema"])

    def save(self) -> None:
        """Replace the file to resume from, and write what else is kept of an epoch."""
        if self.accelerator.is_main_process:
            ema = self.ema.module.state_dict() if self.ema is not None else None
            states = {"model": self.plain.state_dict(), "optimizer": self.optimizer.state_dict(), "ema": ema}
            self.ledger.save(states, self.plain, self.source.unreadable)
        self.accelerator.wait_for_everyone()

    def finish(self) -> Path:
        """Write the weights with their provenance."""
        models = {"": self.plain} | ({".ema": self.ema.module} if self.ema is not None else {})
        images = self._held_out_images()
        for suffix, model in models.items():
            if self.recipe.storage == "fp16":
                _round_to_half(model)
            found = dict(self.origin)
            for part in ("val", "test"):
                found |= {f"{part}_{name}": f"{value:.4f}" for name, value in self.score(model, part).items()}
            if self.accelerator.is_main_process:
                half = self.recipe.storage == "fp16"
                self.ledger.write_weights(suffix, model, self.recipe.seed, found, images, half=half)
        if self.accelerator.is_main_process:
            self.ledger.close()
        self.accelerator.wait_for_everyone()
        return self.ledger.weights_path()

    def _held_out_images(self) -> Tensor:
        """Return at most two batches of `test`, or of `val` where there is no test part."""
        for part in ("test", "val"):
            batches = [x for x, _ in itertools.islice(self.source.held_out(part), 2)]
            if batches:
                return torch.cat([x for x in batches if x.shape[1:] == batches[0].shape[1:]])
        raise BadInputError("no held-out images", fix="give the data a validation part")


@torch.no_grad()
def _round_to_half(model: nn.Module) -> None:
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(value.half())
