"""The model that a record or a board names, loaded as if a stranger had written that file."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from robustbench_kpca._core.address import require
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.audit.preflight import CHECKS
from robustbench_kpca.evaluation.command import START, parse
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.models.bundle import bundled
from robustbench_kpca.models.loading import load_model
from robustbench_kpca.models.outside_code import outside_code
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.spec import Spec


@dataclass(frozen=True)
class Conditions:
    """Under which conditions records are made again, and what the user says of their model.

    Attributes:
        run: how outcomes are made; its device, if there is one, in place of that of the record's command.
        other_versions: go on although packages have other versions than a record names, or the processor, though of the
            same name, gives other digits; rows are then compared with allowance for rounding.
        run_code: run code that a file names, such as that of `FILE.py:FACTORY`.
        model: name of the model in place of the one that a file names; its code is run.
        checkpoint: file with its weights, in place of those that a file names.
    """

    run: RunOptions = field(default_factory=lambda: RunOptions(workers=0))
    other_versions: bool = False
    run_code: bool = False
    model: str | None = None
    checkpoint: str | None = None

    def options(self, spec: Spec, made: RunOptions) -> RunOptions:
        """Return the options that make a record again; `made` are those of its command."""
        return replace(
            self.run,
            seed=spec.seed,
            batch_size=spec.batch_size,
            device=self.run.device or made.device,
            frost_folder=made.frost_folder,
            compile=made.compile,
            tf32=made.tf32,
            allow=tuple(CHECKS),
        )


AS_RECORDED = Conditions()


def load_for(record: Record, how: Conditions, stated: Sequence[str] = ()) -> nn.Module:
    """Load the model that the user names, else that of a stated command, of the record's command, or of its name.

    Raises:
        BadInputError: a command cannot be read, or as `load_stated`.
    """
    if how.model is not None:
        return load_model(how.model, how.checkpoint)
    name, words = record.spec.model.name, stated or record.command
    request = parse(words).model if stated or tuple(words[:2]) == START else ModelRequest(name)
    return load_stated(name, request, "the board" if stated else "the record", how)


def require_allowed(addresses: Sequence[str], how: Conditions) -> None:
    """Refuse to run the code that a record names, unless the user has allowed it and it is there."""
    if addresses and not how.run_code:
        raise BadInputError(
            f"the record names code: {addresses[0]} would be imported and run",
            expected="attacks, corruptions and data of the package",
            fix="read that code, then add --run-code",
        )
    for address in addresses:
        require(address, "address")


def load_stated(name: str, request: ModelRequest, by: str, how: Conditions) -> nn.Module:
    """Load a model that a file names; a name of the package's own trained models stands for its bundled weights.

    Args:
        by: the file, in errors, such as "the record".

    Raises:
        BadInputError: it would run code from outside the package, and that is not allowed; or as `load_model`.
    """
    weights = request.checkpoint if how.checkpoint is None else how.checkpoint
    wanted = replace(request, checkpoint=weights)
    if name in bundled() and (wanted.model, wanted.checkpoint, wanted.untrained) != (name, None, False):
        raise BadInputError(f"{by} names {wanted.source} for '{name}'", expected="the bundled weights of that name")
    code = outside_code(request.model, request.options, request.checkpoint if how.checkpoint is None else None)
    if code and not how.run_code:
        raise BadInputError(
            f"{by} names code: {code}",
            expected="models of the package, timm: or torchvision:, and weights in safetensors",
            fix="read that code, then add --run-code",
        )
    return wanted.load()
