"""One training run: its model, its optimiser and its data, and what happens in each epoch."""

import itertools
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler, PolyLRScheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError, EvaluationError, reason_of
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca._engine.attack_loop.passes import passes_of
from robustbench_kpca.data import DATASETS
from robustbench_kpca.data.load import kind_of
from robustbench_kpca.models.build import create_model
from robustbench_kpca.models.bundle import VOCABULARY
from robustbench_kpca.models.source import require_words
from robustbench_kpca.training.image_files import ImageFileSource
from robustbench_kpca.training.ledger import Epoch, Ledger, Options
from robustbench_kpca.training.machine import Machine, difference, epoch_seed, seed_generators, this_machine
from robustbench_kpca.training.objective import Objective, attack_of
from robustbench_kpca.training.recipe import Recipe
from robustbench_kpca.training.scene_files import SceneSource
from robustbench_kpca.training.scoring import attacked_scores, held_out_scores, zeros
from robustbench_kpca.training.source import Batch, InMemory, Source
from robustbench_kpca.training.start import start
from robustbench_kpca.training.text_windows import TextSource
from robustbench_kpca.types import IGNORE

MIN_LR_SHARE = 0.01  # of lr: the first and the last learning rate, where the recipe sets no warmup_lr or min_lr


class InverseSquareRoot:
    """lr (w / t)^(1/2) at step t, after a linear warm-up of w steps; Vaswani et al. (2017), arXiv:1706.03762."""

    def __init__(self, optimizer: Any, lr: float, warmup: int, first: float) -> None:
        self.optimizer, self.lr, self.warmup, self.first = optimizer, lr, warmup, first

    def step(self, epoch: int) -> None:
        """Do nothing: this rate changes at every step, in `step_update`."""

    def step_update(self, number: int) -> None:
        """Set the learning rate of step `number`, from 0."""
        share = number / self.warmup
        rate = self.first + (self.lr - self.first) * share if share < 1 else self.lr * share**-0.5
        for group in self.optimizer.param_groups:
            group["lr"] = rate


def schedule(recipe: Recipe, optimizer: Any, steps: int) -> Any:
    """Return a scheduler like timm's; call `step(epoch)` before every epoch and `step_update(t)` before step t, from 0.

    Args:
        steps: number of steps of an epoch; 0 if unknown.

    Raises:
        BadInputError: the schedule counts steps, and their number is unknown.
    """
    low_rates = {
        "lr_min": recipe.min_lr or recipe.lr * MIN_LR_SHARE,
        "warmup_lr_init": recipe.warmup_lr or recipe.lr * MIN_LR_SHARE,
    }
    if recipe.schedule == "cosine":
        return CosineLRScheduler(optimizer, t_initial=recipe.epochs, warmup_t=recipe.warmup_epochs, **low_rates)
    if not steps:
        raise BadInputError(f"schedule '{recipe.schedule}' for data of unknown length", fix="set schedule = 'cosine'")
    if recipe.schedule == "inverse_sqrt":
        return InverseSquareRoot(optimizer, recipe.lr, recipe.warmup_epochs * steps, low_rates["warmup_lr_init"])
    return PolyLRScheduler(
        optimizer,
        t_initial=recipe.epochs * steps,
        power=recipe.power,
        warmup_t=recipe.warmup_epochs * steps,
        t_in_epochs=False,
        **low_rates,
    )


TABLES: dict[str, type[Source]] = {"images": ImageFileSource, "scenes": SceneSource, "text": TextSource}
"""Table of a recipe -> what reads its data. Recipes without such a table use data sets that fit into memory."""


def source_of(recipe: Recipe, folder: Path | None, accelerator: Accelerator) -> Source:
    """Return the source of a recipe's batches.

    Raises:
        UnknownNameError: a recipe without a table names data that is not held in memory.
        BadInputError: the data cannot be used.
    """
    for table, source in TABLES.items():
        if getattr(recipe, table) is not None:
            return source(recipe, folder, accelerator)
    in_memory = [name for name in DATASETS.names() if issubclass(kind_of(name), InMemory.reads)]
    if recipe.data.partition(":")[0] not in in_memory:
        kind = kind_of(recipe.data)
        table = next((table for table, source in TABLES.items() if issubclass(kind, source.reads)), "images")
        raise unknown_name("data set", recipe.data, in_memory, f"such files need the table [{table}]")
    return InMemory(recipe, folder, accelerator)


DATA, CONTENT = "data_sha256", "content_sha256"
"""Entries of a header of weights: digests of the data that they were trained on, as a `Source` has them."""


def require_same_data(before: Mapping[str, str], source: Source, where: Path) -> None:
    """Refuse to go on with other data; an entry that an older run does not have is not compared.

    Args:
        before: the header, or as much of it as is known.
    """
    for entry, now in ((DATA, source.data_sha256), (CONTENT, source.content_sha256)):
        if before.get(entry, now) != now:
            raise BadInputError(
                f"{where} was trained on other data ({before[entry][:12]}, now {now[:12]})",
                fix="give the same --data, or add --fresh",
            )


class Run:
    """The mutable state of one training run.

    Attributes:
        plain: the model as it was created; `model` is the same one, prepared by the accelerator.
    """

    def __init__(self, name: str, recipe: Recipe, ledger: Ledger, options: Options, accelerator: Accelerator) -> None:
        self.name, self.recipe, self.ledger, self.options = name, recipe, ledger, options
        self.accelerator = accelerator
        seed_generators(recipe.seed)
        self.plain = create_model(recipe.model, **recipe.model_options)
        self.start = start(self.plain, recipe)
        self.source = source_of(recipe, options.data, self.accelerator)
        require_words(self.plain, self.source.vocabulary_sha256, recipe.data)
        self.training = self.source.training
        self.classes = self._require_fit()
        optimizer = self._optimizer()
        self.scheduler = schedule(recipe, optimizer, math.ceil(self.source.length / recipe.batch_size))
        self.model, self.optimizer = self.accelerator.prepare(self.plain, optimizer)
        self._require_attacks()
        self.objective = Objective(recipe, self.plain, self.training, self.classes)
        self.ema = ModelEmaV3(self.plain, decay=recipe.ema_decay) if recipe.ema_decay is not None else None

    @property
    def done(self) -> int:
        """The number of finished epochs."""
        return len(self.ledger.history)

    def _require_attacks(self) -> None:
        """Refuse attacks of the recipe now, and not after an epoch."""
        settings = self.recipe.adversarial
        if settings is None:
            return
        attack = attack_of(settings)
        if settings.stronger is not None:
            attack_of(settings.stronger)
        if not getattr(attack, "one_label", True) and not self.source.task.compute.success.graded:
            raise BadInputError(f"attack '{settings.attack}' on images of one label", expected="such as pgd")
        needs_gradients = "trades_beta" if settings.trades_beta is not None else "[mixup]" if self.recipe.mixup else ""
        passes = passes_of(attack, classes=2)  # (forward, backward); whether there are any does not depend on classes
        if needs_gradients and passes is not None and not passes[1]:
            raise BadInputError(f"attack '{settings.attack}' with {needs_gradients}", expected="an attack by gradients")

    def _require_fit(self) -> int:
        """Refuse a model that does not fit the data; return its number of classes."""
        image, largest_label = self.source.sample()
        presentation = self.source.task.compute.presentation(self.plain, "clean")
        try:
            with torch.no_grad():
                logits = presentation.show(self.plain, image.cpu())
        except (RuntimeError, AssertionError) as error:
            raise BadInputError(
                f"model '{self.recipe.model}' fails on images of '{self.recipe.data}' ({reason_of(error)})"
            ) from None
        presentation.require(logits, image)
        classes = int(logits.shape[1])
        if classes <= largest_label:
            raise BadInputError(
                f"a model of {classes} classes",
                expected=f"at least {largest_label + 1}",
                fix="set num_classes or vocab_size in model_options",
            )
        return classes

    def _optimizer(self) -> Any:
        recipe = self.recipe
        betas = {"betas": recipe.betas} if recipe.betas else {}
        try:
            return create_optimizer_v2(
                self.plain, opt=recipe.optimizer, lr=recipe.lr, weight_decay=recipe.weight_decay, **betas
            )
        except (ValueError, AssertionError, KeyError, TypeError, RuntimeError) as error:
            raise BadInputError(f"optimizer '{recipe.optimizer}' cannot be made ({reason_of(error)})") from None

    def epoch(self) -> Epoch:
        """Train on all images once; return the numbers of the epoch."""
        number = self.done
        seed_generators(epoch_seed(self.recipe.seed, number, self.accelerator))
        self.scheduler.step(number)
        self.model.train()
        sums, images = zeros(self.accelerator, 4), 0  # losses, images, right labels, labels that count
        steps = math.ceil(self.source.length / self.recipe.batch_size)
        for step, batch in enumerate(self.source.epoch(number)):
            self.scheduler.step_update(number * steps + step)
            losses, logits = self._step(batch, number)
            right, labelled = (logits.argmax(1) == batch.y).sum(), (batch.y != IGNORE).sum()
            sums += torch.stack([losses.sum(), torch.full_like(right, len(batch.y)), right, labelled]).to(sums)
            images += len(batch.y)
            self.report(number, images * self.accelerator.num_processes)
        return self.close(number, self.accelerator.reduce(sums))

    def report(self, number: int, images: int) -> None:
        """Report progress: `images` images of epoch `number` were trained on."""
        if self.options.on_step is not None:
            before, total = number * self.source.length, self.recipe.epochs * self.source.length
            self.options.on_step(before + images, total, stage=f"epoch {number + 1}/{self.recipe.epochs}")

    def close(self, number: int, sums: Tensor) -> Epoch:
        """Score the model after an epoch; append its numbers to the history and return them.

        Args:
            sums: sums of losses, images, right labels and labels that count.

        Raises:
            BadInputError: there was no whole batch.
            EvaluationError: some weights are NaN or infinite.
        """
        self.model.eval()
        total, count, right, labelled = sums.tolist()
        if not count:
            raise BadInputError("an epoch without one whole batch", fix="lower batch_size, or give more images")
        self._sync_and_require_finite(number)
        scores = {f"val_{name}": value for name, value in self.score(self.plain, "val").items()}
        if (adversarial := self.recipe.adversarial) is not None:
            scores |= attacked_scores(self.plain, self.source, self.classes, adversarial)
            if remark := adversarial.overfitting(scores, next(iter(self.source.task.scores))):
                self._note(f"'{self.name}' shows catastrophic overfitting in epoch {number + 1}: {remark}")
                self.ledger.provenance.setdefault("catastrophic_overfitting", f"epoch {number + 1}: {remark}")
        if self.ema is not None:
            scores |= {f"ema_val_{name}": value for name, value in self.score(self.ema.module, "val").items()}
        done_epoch = Epoch(
            epoch=number,
            lr=self.optimizer.param_groups[0]["lr"],
            loss=total / count,
            train_accuracy=right / max(labelled, 1),
            scores=scores,
        )
        self.ledger.history.append(done_epoch)
        return done_epoch

    def _step(self, batch: Batch, number: int) -> tuple[Tensor, Tensor]:
        """Take one step of the optimiser; the loss is the mean over those labels of the global batch that count.

        This mean does not depend on the number of processes that share the batch.
        """
        is_bf16 = self.recipe.precision == "bf16"
        with torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=is_bf16):
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

    def _sync_and_require_finite(self, number: int) -> None:
        """Make batch statistics the same in all processes; refuse weights that are not finite."""
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

    def score(self, model: nn.Module, part: str) -> dict[str, float]:
        """Return the scores of a model on the part `val` or `test`: see `held_out_scores`."""
        return held_out_scores(model, self.source, part, self.classes)

    def restore(self) -> None:
        """Continue after the last finished epoch, if `resume` is set and there is one.

        Raises:
            BadInputError: it was trained on other data, or began with the weights of another checkpoint.
        """
        content = self.ledger.restore(self.accelerator.device) if self.options.resume else None
        if content is not None:
            require_same_data(self.ledger.provenance, self.source, self.ledger.resume_path)
            if any(self.ledger.provenance.get(name) != value for name, value in self.start.origin.items()):
                raise BadInputError(
                    f"{self.ledger.resume_path} began with other weights than its checkpoint has now",
                    fix="put the old checkpoint back, or add --fresh",
                )
            self.plain.load_state_dict(content["model"])
            self.optimizer.load_state_dict(content["optimizer"])
            if self.ema is not None:
                self.ema.module.load_state_dict(content["ema"])

    def begin(self, replaced: list[Machine], together: int = 1) -> None:
        """Write machine, data and initial weights into the ledger; tell what was adapted, and if the machine changed.

        Args:
            replaced: the machines of the finished run that this one replaces.
            together: the number of runs that are trained in one pass.
        """
        machine, ledger = this_machine(self.accelerator, together), self.ledger
        last_machines, verb = replaced[-1:], "was trained before"  # at most one machine
        if ledger.machines:
            last_machines, verb = ledger.machines[-1:], "began"
        if last_machines and (changed := difference(last_machines[0], machine)):
            self._note(f"'{self.name}' {verb} on another machine ({changed}): the last bits of its numbers will differ")
        if last_machines != [machine] or not ledger.machines:
            ledger.machines.append(machine)
        if not ledger.history:
            vocabulary = self.source.vocabulary_sha256
            ledger.provenance = self.start.header() | {"recipe_sha256": self.recipe.digest(self.start.origin)}
            ledger.provenance |= {DATA: self.source.data_sha256} | ({VOCABULARY: vocabulary} if vocabulary else {})
            ledger.provenance |= {CONTENT: self.source.content_sha256} if self.source.content_sha256 else {}
            for note in (*self.start.notes, *self.source.notes):
                self._note(note)

    def _note(self, text: str) -> None:
        if self.options.on_note is not None:
            self.options.on_note(text)

    def save(self) -> None:
        """Write the files of an epoch: the state to resume from, the curves, and perhaps the weights."""
        if self.accelerator.is_main_process:
            ema = self.ema.module.state_dict() if self.ema is not None else None
            states = {"model": self.plain.state_dict(), "optimizer": self.optimizer.state_dict(), "ema": ema}
            self.ledger.save(states, self.plain)
        self.accelerator.wait_for_everyone()

    def late(self) -> bool:
        """Tell whether `stop_at` has passed in any process: all of them stop after the same epoch."""
        stop_at = self.options.stop_at
        return stop_at is not None and any(gather_object([time.monotonic() >= stop_at]))

    def finish(self) -> Path:
        """Write the weights with their provenance; return their path."""
        # a model that draws noise gets the same scores when this is called by a run that was resumed
        seed_generators(epoch_seed(self.recipe.seed, self.recipe.epochs, self.accelerator))
        models = {"": self.plain} | ({".ema": self.ema.module} if self.ema is not None else {})
        images = self._held_out_images()
        for suffix, model in models.items():
            if self.recipe.storage == "fp16":
                _round_to_half(model)
            entries: dict[str, str] = {}
            for part in ("val", "test"):
                entries |= {f"{part}_{name}": f"{value:.4f}" for name, value in self.score(model, part).items()}
            if self.accelerator.is_main_process:
                half = self.recipe.storage == "fp16"
                self.ledger.write_weights(suffix, model, self.recipe.seed, entries, images, half=half)
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
        raise BadInputError("no held-out images", expected="data with a validation part")


@torch.no_grad()
def _round_to_half(model: nn.Module) -> None:
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(value.half())
