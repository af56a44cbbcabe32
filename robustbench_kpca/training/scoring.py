"""Loss and scores of a model on held-out data, clean or attacked."""

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from robustbench_kpca.training.objective import adversarial_images, keys_of
from robustbench_kpca.training.recipe import OWN, STRONGER, Adversarial
from robustbench_kpca.training.source import Source


@torch.no_grad()
def held_out_scores(
    model: nn.Module, source: Source, part: str, classes: int, attack: Adversarial | None = None
) -> dict[str, float]:
    """Return the mean cross-entropy of a label as `loss`, and the task's scores; empty if there is no such part.

    Args:
        model: in evaluation mode.
        part: `val` or `test`.
        attack: each image is replaced by the last iterate of this attack at its full radius.
    """
    accelerator = source.accelerator
    every, first = accelerator.num_processes, accelerator.process_index
    counts, losses, images = zeros(accelerator, 3, classes), zeros(accelerator, 1), 0
    for clean, labels in source.held_out(part):
        if not len(clean):  # a process without a share of its own
            continue
        x = clean
        if attack is not None:
            ids = [str(first + every * (images + i)) for i in range(len(x))]  # whatever the number of processes
            x = adversarial_images(model, clean, labels, keys_of(ids, source.recipe.seed, None), attack, epoch=None)
        images += len(x)
        logits = model(x).float()
        counts += source.training.counts(logits, labels).to(counts)
        losses += source.training.losses(logits, labels, 0.0).sum().to(losses)
    counts, losses = accelerator.reduce(counts).cpu(), accelerator.reduce(losses).cpu()
    labelled = float(counts[1].sum())
    if not labelled:
        return {}
    loss = float(losses) / labelled
    return {"loss": loss} | source.training.score(counts, loss)


def zeros(accelerator: Accelerator, *shape: int) -> Tensor:
    """Return sums to begin with, in double precision where the device has it."""
    device = accelerator.device
    return torch.zeros(shape, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)


def attacked_scores(model: nn.Module, source: Source, classes: int, settings: Adversarial) -> dict[str, float]:
    """Return the scores on the validation images under the attacks that the recipe wants there, by column.

    Args:
        model: in evaluation mode.
    """
    attacks = {OWN: settings} if settings.held_out else {}
    if (stronger := settings.stronger) is not None:
        attacks[STRONGER] = settings.model_copy(update={"attack": stronger.attack, "options": stronger.options})
    by_attack = {column: held_out_scores(model, source, "val", classes, attack) for column, attack in attacks.items()}
    return {f"{column}{name}": value for column, scores in by_attack.items() for name, value in scores.items()}
