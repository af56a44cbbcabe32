"""What a model states: which pictures it takes, how it normalises them and what its outputs mean; and its library."""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from robustbench_kpca._core.errors import BadInputError, install_extra, reason_of
from robustbench_kpca.data.request import View


def library(name: str, wanted_by: str, extra: str = "", fix: str = "") -> Any:
    """Import an optional package.

    Args:
        name: name of the package.
        wanted_by: the model that needs it, for the error.
        extra: the optional dependency of this project that has it.
        fix: what installs it, where that is more than `pip install NAME`.

    Raises:
        BadInputError: it is missing or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 (missing, or incompatible with newer packages)
        raise BadInputError(
            f"model '{wanted_by}' needs {name}, which cannot be imported ({reason_of(error)})",
            fix=install_extra(extra) if extra else fix or f"pip install {name}",
        ) from None


def normalise_inside(model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> nn.Module:
    """Make `model` compute f((x - mean) / std); return it.

    The constants are non-persistent buffers, so that checkpoints have the authors' keys only.
    """
    model.register_buffer("pixel_mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
    model.register_buffer("pixel_std", torch.tensor(std).view(-1, 1, 1), persistent=False)
    model.register_forward_pre_hook(_normalise)
    return model


def _normalise(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    images, *rest = inputs
    return ((images - model.pixel_mean) / model.pixel_std, *rest)


def describe(model: nn.Module, view: View | None = None, class_names: Sequence[str] | None = None) -> nn.Module:
    """State how pictures become the inputs of a model, and the names of its classes; return the model."""
    model.view = view  # type: ignore[assignment] # torch types attributes as tensors and modules
    model.class_names = None if class_names is None else tuple(class_names)  # type: ignore[assignment]
    return model


def stated_view(model: nn.Module) -> View | None:
    """Return how pictures become the inputs of a model as it states it, or as timm's configuration does, or None.

    Raises:
        BadInputError: timm's configuration says that pictures get a border.
    """
    view: Any = getattr(model, "view", None)
    if isinstance(view, View):
        return view
    settings: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    size: Any = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if size is None and "input_size" not in settings:
        return None
    side = int(size[0]) if size is not None else int(settings["input_size"][-1])
    mode = settings.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        raise BadInputError(
            f"timm's crop_mode = '{mode}' for this model",
            expected="center or squash",
            fix="say how its pictures are made: describe(model, View(...))",
        )
    interpolation = settings.get("interpolation") or View.interpolation
    return View(side, settings.get("crop_pct"), interpolation, squash=mode == "squash")


def how_read(model: nn.Module) -> str:
    """Say which entry of a checkpoint a model's weights are, and which prefix their names had; empty for others."""
    words: Any = getattr(model, "how_read", "")
    return words if isinstance(words, str) else ""


def class_names_of(model: nn.Module) -> tuple[str, ...] | None:
    """Return the names of a model's classes in their order, None if it does not state them."""
    names: Any = getattr(model, "class_names", None)
    return tuple(str(name) for name in names) if isinstance(names, (tuple, list)) else None


def stated_classes(model: nn.Module) -> int | None:
    """Return the number of a model's classes as it states it, None if it does not."""
    names, number = class_names_of(model), getattr(model, "num_classes", None)
    return len(names) if names else number if isinstance(number, int) and number > 0 else None


def other_words(trained: str | None, digest: str | None, name: str) -> BadInputError | None:
    """Return the error where weights were trained with other words under the same numbers.

    Args:
        trained: digest of the vocabulary that weights state; None: they state none.
        digest: digest of the vocabulary of the data; None: they have none.
        name: name of the data.
    """
    if not isinstance(trained, str) or digest is None or trained == digest:
        return None
    return BadInputError(
        f"the model was trained with another vocabulary than data '{name}' has",
        expected="the words that its weights were trained with",
        fix="give the data with the training part of that training",
    )


def require_words(model: nn.Module, digest: str | None, name: str) -> None:
    """Refuse a model whose weights were trained with other words; `digest` and `name` as in `other_words`."""
    error = other_words(getattr(model, "vocabulary_sha256", None), digest, name)
    if error is not None:
        raise error


def is_differentiable(model: nn.Module) -> bool:
    """Tell whether gradients can be taken through a model; one that runs outside torch has `differentiable = False`."""
    return bool(getattr(model, "differentiable", True))
