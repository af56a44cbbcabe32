"""Initial weights of a training: timm's, those of the released RPC code, or a trained encoder."""

from typing import Any

from torch import nn

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.models.checkpoint import load_strictly, parameters_sha256, read_state
from robustbench_kpca.training.recipe import Recipe


def start(model: Any, recipe: Recipe) -> dict[str, str]:
    """Set a new model's weights as the recipe says; return what identifies weights that were read.

    Raises:
        BadInputError: encoder weights for a model without an encoder, or weights that do not fit.

    """
    if recipe.init == "torch":
        _start_as_released(model)
    if recipe.encoder_checkpoint is None:
        return {}
    if not hasattr(model, "encoder"):
        raise BadInputError(f"encoder_checkpoint for model '{recipe.model}'", expected="a segmenter")
    where = f"checkpoint {recipe.encoder_checkpoint}"
    load_strictly(model.encoder, read_state(recipe.encoder_checkpoint), where, resize_positions=True)
    return {"encoder_sha256": parameters_sha256(model.encoder)}


def _start_as_released(model: nn.Module) -> None:
    """Initialise as the released RPC code does.

    Linear layers have torch's default; class token and position embedding are truncated normal, deviation 0.02.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    for name, parameter in model.named_parameters():
        if name.endswith(("cls_token", "pos_embed")):
            nn.init.trunc_normal_(parameter, std=0.02)
