"""Initial weights of a training: random ones as timm or the released RPC code draws them, or those of a checkpoint."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models.bundle import attention_of, bundled, vocabulary_of
from robustbench_kpca.models.checkpoint import load_strictly, parameters_sha256, state_sha256
from robustbench_kpca.models.weights_file import read_state
from robustbench_kpca.training.recipe import Recipe


@dataclass(frozen=True)
class Start:
    """Where a run begins.

    Attributes:
        origin: what identifies weights that were read: `encoder_sha256` or `init_sha256`, of names, shapes and values.
        initial_sha256: the same of all weights before the first step.
        notes: what was adapted, for the reader; empty where nothing was.
    """

    origin: dict[str, str]
    initial_sha256: str
    notes: tuple[str, ...] = ()

    def header(self) -> dict[str, str]:
        """Return the provenance of the initial weights."""
        adapted = {"init_adapted": "; ".join(self.notes)} if self.notes else {}
        return self.origin | {"initial_sha256": self.initial_sha256} | adapted


def start(model: Any, recipe: Recipe) -> Start:
    """Set a new model's weights as the recipe says.

    Raises:
        BadInputError: encoder weights for a model without an encoder, or weights that do not fit.
    """
    if recipe.init == "torch":
        _start_as_released(model)
    origin: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    if recipe.encoder_checkpoint is not None:
        if not hasattr(model, "encoder"):
            raise BadInputError(f"encoder_checkpoint for model '{recipe.model}'", expected="a segmenter")
        where = f"checkpoint {recipe.encoder_checkpoint}"
        load_strictly(model.encoder, read_state(recipe.encoder_checkpoint).state, where, resize_positions=True)
        origin = {"encoder_sha256": parameters_sha256(model.encoder)}
    if recipe.init_checkpoint is not None:
        origin, notes = _continue_from(model, recipe.init_checkpoint, recipe.model_options.get("attention"))
    return Start(origin, parameters_sha256(model), notes)


def _continue_from(model: nn.Module, checkpoint: str, attention: str | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """Load a whole model's weights; return what identifies them, and what was adapted."""
    file = bundled().get(checkpoint, checkpoint)
    state, entry = read_state(file)
    loaded = load_strictly(
        model,
        state,
        f"init_checkpoint {checkpoint}",
        resize_positions=True,
        own_head=True,
        placed=attention if attention != attention_of(file) else None,
    )
    model.vocabulary_sha256 = vocabulary_of(file)  # type: ignore[assignment] # see `require_words`
    notes = [f"{checkpoint} was read from entry {entry}"] * bool(entry)
    if loaded.prefix:
        notes.append(f"{loaded.prefix} was taken off the names of {checkpoint}")
    if loaded.kept:
        notes.append(f"{', '.join(loaded.kept)} begin anew: {checkpoint} has another number of classes")
    if loaded.resized:
        notes.append("the position embedding of {} tokens was resampled to {}".format(*loaded.resized))
    if loaded.fitted:
        notes.append(f"{', '.join(loaded.fitted)} take from {checkpoint} what fits attention {attention}")
    if loaded.begun:
        notes.append(f"{', '.join(loaded.begun)} begin anew")
    return {"init_sha256": state_sha256(state)}, tuple(notes)


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
