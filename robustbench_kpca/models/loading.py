"""Load a model by name: a bundled one, an architecture with a checkpoint, `timm:NAME` or `module.path:factory`."""

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustbench_kpca.data.request import View
from robustbench_kpca.errors import BadInputError, BenchmarkError
from robustbench_kpca.models.build import create_model
from robustbench_kpca.models.bundle import bundled, read_header
from robustbench_kpca.models.checkpoint import load_strictly, read_state, silent_hub
from robustbench_kpca.models.families import ARCHITECTURES
from robustbench_kpca.models.normalisation import normalise_inside
from robustbench_kpca.registry import unknown_name


def load_model(
    name: str,
    checkpoint: Path | str | None = None,
    *,
    untrained: bool = False,
    ema: bool = False,
    resize_positions: bool = False,
    **options: Any,
) -> nn.Module:
    """Load a trained model in evaluation mode: images in [0, 1] to logits.

    Args:
        name: a bundled model (`symvit_digits_adv`), an architecture of `rbk list models` with a `checkpoint`,
            `timm:NAME` (normalised inside by timm's own mean and std), or `module.path:factory`, a callable that
            returns a module.
        checkpoint: safetensors or torch file with the weights, or `hf-hub:OWNER/NAME`; names and shapes must fit. No
            code in it is run.
        untrained: allow an architecture without weights.
        ema: load the averaged weights of a checkpoint that holds both.
        resize_positions: resample a position embedding of another image size; see `load_strictly`.
        **options: passed to the architecture or the factory.

    Raises:
        BadInputError: unknown name, no weights, or weights that do not fit.

    """
    with torch.random.fork_rng():  # initial weights are random; the caller's generator stays as it is
        if name.startswith("timm:"):
            model = _timm(name.removeprefix("timm:"), pretrained=checkpoint is None and not untrained, options=options)
        elif ":" in name:
            model = _factory(name, options)
        else:
            model, checkpoint = _own(name, checkpoint, untrained=untrained, options=options)
    if checkpoint is not None:
        state = read_state(checkpoint, ema=ema)
        load_strictly(model, state, f"checkpoint {checkpoint}", resize_positions=resize_positions)
    elif ema or resize_positions:
        option = "--ema" if ema else "--resize-positions"
        raise BadInputError(f"{option} without a checkpoint", fix=f"add --checkpoint FILE, or remove {option}")
    return model.eval()


def _own(
    name: str, checkpoint: Path | str | None, *, untrained: bool, options: dict[str, Any]
) -> tuple[nn.Module, Path | str | None]:
    weights = bundled()
    if name in weights and checkpoint is None and not untrained:
        return create_model(**_config(name) | options), weights[name]
    if name not in ARCHITECTURES and name not in weights:
        raise unknown_name("model", name, [*ARCHITECTURES, *weights], "(see: rbk list models)")
    if checkpoint is None and not untrained:
        raise BadInputError(f"model '{name}' comes without weights", fix="add --checkpoint FILE, or --untrained")
    return create_model(**_config(name) | options), checkpoint


def _config(name: str) -> dict[str, Any]:
    """Return what `create_model` needs for an architecture, or for a bundled model's architecture."""
    if name not in bundled():
        return {"name": name}
    config: dict[str, Any] = json.loads(read_header(bundled()[name])["config"])
    return config


def _timm(name: str, *, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    import timm

    if name.split(".")[0] not in timm.list_models():
        raise unknown_name("timm model", name, timm.list_models())
    try:
        with silent_hub():
            model: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    except Exception as error:  # noqa: BLE001 (the hub fails in many ways)
        raise BadInputError(
            f"timm model '{name}' could not be built ({str(error).splitlines()[0][:100]})",
            fix="without a network connection add --checkpoint FILE",
        ) from None
    settings: Any = model.pretrained_cfg
    return normalise_inside(model, settings["mean"], settings["std"])


def _factory(name: str, options: dict[str, Any]) -> nn.Module:
    module_name, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # noqa: BLE001 (foreign code)
        raise BadInputError(f"model factory '{name}' cannot be imported ({error})", fix="check PYTHONPATH") from None
    try:
        model = factory(**options)
    except BenchmarkError:
        raise
    except Exception as error:  # foreign code
        raise BadInputError(f"model factory '{name}' failed ({type(error).__name__}: {error})") from error
    if not isinstance(model, nn.Module):
        raise BadInputError(f"model factory '{name}' returned {type(model).__name__}", expected="a torch.nn.Module")
    return model


def input_view(model: nn.Module) -> View:
    """Return how image files are resized and cropped for a model: as timm's configuration says, else as for DeiT."""
    settings: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    size: Any = getattr(getattr(model, "patch_embed", None), "img_size", None)
    side = int(size[0]) if size is not None else int(settings.get("input_size", (3, 224, 224))[-1])
    return View(side, settings.get("crop_pct") or View.crop, settings.get("interpolation") or View.interpolation)
