"""Attacks of other libraries as functions that tell which images a model resists, and networks of others."""

from collections.abc import Callable
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import torch
from torch import Tensor, nn

BATCH_SIZE = 64  # of ours and of torchattacks: the default of `evaluate`
ENSEMBLE_BATCH_SIZE = 128  # of the reference AutoAttack, whose time depends little on it
REFERENCE = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Maps (model, images, labels) to a boolean per image: whether the model is robust."""


def _correct(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(images)
    return logits.argmax(1) == labels


def torchattacks(name: str, **options: Any) -> REFERENCE:
    """Attack with torchattacks and classify the results."""

    def run(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        import torchattacks as library

        torch.manual_seed(0)
        attacker, robust = getattr(library, name)(model, **options), []
        for x, y in zip(images.split(BATCH_SIZE), labels.split(BATCH_SIZE), strict=True):
            attacked = attacker(x, y)
            robust.append(_correct(model, x, y) & _correct(model, attacked, y))
        return torch.cat(robust)

    return run


def foolbox(reach: float, name: str, **options: Any) -> REFERENCE:
    """Run an attack of foolbox; images farther away than `reach` in the attack's norm do not count."""

    def run(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        import foolbox as library
        from foolbox.models.pytorch import PyTorchModel

        torch.manual_seed(0)
        attack, robust = getattr(library.attacks, name)(**options), []
        for x, y in zip(images.split(BATCH_SIZE), labels.split(BATCH_SIZE), strict=True):
            *_, broken = attack(PyTorchModel(model, bounds=(0, 1)), x, y, epsilons=[reach])
            robust.append(_correct(model, x, y) & ~broken[0])
        return torch.cat(robust)

    return run


def reference_autoattack(eps: float, only: str | None = None, norm: str = "Linf") -> REFERENCE:
    """Run the authors' ensemble, or one of its attacks with its settings there."""

    def run(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        import pyautoattack as library

        attack = library.AutoAttack(model, norm=norm, eps=eps, version="standard", seed=0)
        attack.attacks_to_run = attack.attacks_to_run if only is None else [only]
        _, answers = attack.run_standard_evaluation(images, labels, batch_size=ENSEMBLE_BATCH_SIZE)
        robust: Tensor = answers == labels
        return robust

    return run


@cache
def peer(path: str, network: str = "cifar10_robust") -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network of a file of peers, with all images and labels.

    The file is a Python file with functions named as its networks, each of which returns a model of images in [0, 1],
    and with `cifar10(PART)`, which returns images and labels.
    """
    spec = spec_from_file_location("peers", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    images, labels = module.cifar10("test_jpeg")
    return getattr(module, network)(), images.contiguous(), labels
