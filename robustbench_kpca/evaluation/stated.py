"""The model that a record, a board or a pack names, loaded as if a stranger had written that file."""

from dataclasses import replace

from torch import nn

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.models.bundle import bundled
from robustbench_kpca.models.outside_code import outside_code


def load_stated(
    name: str, request: ModelRequest, by: str, *, checkpoint: str | None = None, run_code: bool = False
) -> nn.Module:
    """Load a model that a file names; a name of the package's own trained models stands for its bundled weights.

    Args:
        name: of the model in records.
        request: what the file says of it.
        by: the file, in errors, such as "the record".
        checkpoint: its weights, given by the user, in place of those that the file names.
        run_code: run code that the file names.

    Raises:
        BadInputError: it would run code from outside the package, and that is not allowed; or as `load_model`.

    """
    asked = request if checkpoint is None else replace(request, checkpoint=checkpoint)
    if name in bundled() and (asked.model, asked.checkpoint, asked.untrained) != (name, None, False):
        raise BadInputError(f"{by} names {asked.source} for '{name}'", expected="the bundled weights of that name")
    code = outside_code(request.model, request.options, request.checkpoint if checkpoint is None else None)
    if code and not run_code:
        raise BadInputError(
            f"{by} names code: {code}", expected="models of the package, timm: or torchvision:, and weights in "
            "safetensors", fix="read that code, then add --run-code",
        )  # fmt: skip
    return asked.load()
