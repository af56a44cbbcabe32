"""Load a model by name: a bundled one, an architecture with a checkpoint, `SOURCE:NAME`, or `module.path:factory`."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustbench_kpca._core.early_exit import no_early_exit
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models import factory
from robustbench_kpca.models.build import create_model
from robustbench_kpca.models.bundle import attention_of, bundled, vocabulary_of
from robustbench_kpca.models.checkpoint import load_strictly
from robustbench_kpca.models.names import config_of, home_data, require_model
from robustbench_kpca.models.sources import SOURCES, source_of
from robustbench_kpca.models.weights_file import read_state

DIGITS = tuple("0123456789")
"""The classes of bundled models of digits, so that no folder of ten other classes is taken for them."""


@no_early_exit()
def load_model(
    name: str,
    checkpoint: Path | str | None = None,
    *,
    untrained: bool = False,
    resize_positions: bool = False,
    **options: Any,
) -> nn.Module:
    """Load a trained model in evaluation mode: images in [0, 1] to logits.

    Args:
        name: a bundled model (`symvit_digits_adv`), an architecture of `rbk list models` with a `checkpoint`, a model
            of a source (`timm:NAME`, `torchvision:NAME`, `robustbench:NAME`, `hf:OWNER/NAME`, `onnx:FILE`; see
            `models.sources`), or `module.path:factory` or `file.py:factory`, a callable that
            returns a module; its code is run.
        checkpoint: safetensors or torch file with the weights, or `hf-hub:OWNER/NAME`; names and shapes must fit.
            `FILE::KEY` names one of several state dicts in it. No code in it is run.
        untrained: allow an architecture without weights; it has the same ones each time, drawn with seed 0.
        resize_positions: resample a position embedding of another image size; see `load_strictly`.
        **options: passed to the architecture or the factory.

    Raises:
        BadInputError: unknown name, no weights, or weights that do not fit.

    Examples:
        >>> from robustbench_kpca import load_data, load_model
        >>> images, labels = load_data("digits", limit=4).tensors()
        >>> (load_model("vit_digits")(images).argmax(1) == labels).tolist()
        [True, True, True, True]
    """
    source, rest = source_of(name)
    with torch.random.fork_rng():  # initial weights are random; the caller's generator stays as it is
        if untrained:
            torch.manual_seed(0)
        if source:
            model: nn.Module = SOURCES.get(source)(rest, checkpoint is None and not untrained, dict(options))
        elif ":" in name:
            model = factory.build(name, options)
        else:
            model, checkpoint = _of_package(name, checkpoint, untrained=untrained, options=options)
    if checkpoint is not None:
        state, entry = read_state(checkpoint)
        trained = attention_of(checkpoint)
        if trained is not None and "attention" not in options and not source and ":" not in name:
            raise BadInputError(
                f"checkpoint {checkpoint} was trained with attention {trained}, and '{name}' has another",
                fix=f"add --set model.attention={trained}, and model.layers as in the training",
            )
        prefix = load_strictly(model, state, f"checkpoint {checkpoint}", resize_positions=resize_positions).prefix
        notes = [f"entry {entry}"] * bool(entry) + [f"names without {prefix}"] * bool(prefix)
        model.how_read = ", ".join(notes)  # type: ignore[assignment] # see `describe`
        model.vocabulary_sha256 = vocabulary_of(checkpoint)  # type: ignore[assignment] # see `describe`
    elif resize_positions:
        raise BadInputError("model.resize_positions without a checkpoint", fix="add --checkpoint FILE, or leave it out")
    return model.eval()


def _of_package(
    name: str, checkpoint: Path | str | None, *, untrained: bool, options: dict[str, Any]
) -> tuple[nn.Module, Path | str | None]:
    require_model(name)
    weights = bundled()
    if name in weights and checkpoint is None and not untrained:
        model = create_model(**config_of(name) | options)
        model.class_names = DIGITS if home_data(name) == "digits" else None
        return model, weights[name]
    if checkpoint is None and not untrained:
        raise BadInputError(
            f"model '{name}' comes without weights", fix="add --checkpoint FILE, or --set model.untrained=true"
        )
    return create_model(**config_of(name) | options), checkpoint
