"""Attacks of other libraries behind the `Attack` protocol: `torchattacks:PGD`, `pyautoattack:standard`, `foolbox:NAME`.

The whole attack is one step. The library is called once per batch with a wrapped model that counts passes and refuses
NaN or infinite gradients. The images it returns are judged like any proposal: by the loop's forward pass, inside
ball and box. Importing this package needs none of the libraries; the extra `reference` installs them.

Two things differ from native attacks. These libraries draw random numbers per batch, not per sample: the generators are
seeded from the key of the batch's first sample, so a result may depend on the other samples of the batch. The cost of a
single sample is unknown: the exact number of passes of a batch is divided evenly among its samples.
"""

import contextlib
import importlib
import io
import random
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import Parameter
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError, BenchmarkError, EvaluationError, install_extra, reason_of
from robustbench_kpca._core.registry import did_you_mean, unknown_name
from robustbench_kpca.attacks.foreign import foolbox, pyautoattack, torchattacks
from robustbench_kpca.attacks.foreign._recipe import Recipe as Recipe
from robustbench_kpca.attacks.foreign._recipe import arguments as arguments
from robustbench_kpca.attacks.shared.ball import (
    SLACK,
    distance,
    furthest,
    per_sample,
    require_box,
    require_norm,
)
from robustbench_kpca.protocols.threat import Threat, parse_step
from robustbench_kpca.types import Images, Keys, Labels, Mask, Query, State

LIBRARIES: dict[str, Any] = {
    "torchattacks": torchattacks,
    "pyautoattack": pyautoattack,
    "foolbox": foolbox,
}


@dataclass(frozen=True)
class Foreign:
    """One attack of another library, with the options given in the protocol."""

    version: ClassVar[int] = 1
    name: str
    recipe: Recipe
    options: dict[str, Any]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin at the clean image.

        Raises:
            BadInputError: the attack does not support the norm, clipping is off, or there is a target.
        """
        require_norm(threat, self.name, *self.recipe.norms)
        require_box(threat, self.name)
        return {"x": x, "y": y, "key": keys, "finished": torch.zeros_like(keys, dtype=torch.bool)}

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Run the library's whole attack.

        Raises:
            EvaluationError: the library failed, a gradient was NaN or infinite, or it returned images outside the box
                or (if `bounded`) outside the ball.
        """
        x, y, seed, model = state["x"], state["y"], int(state["key"][0]), query.module()
        options = {name: self._parse_number(name, value, threat.eps) for name, value in self.options.items()}
        with torch.inference_mode(mode=False), torch.enable_grad(), isolated(seed, x.device):
            try:
                returned = self.recipe.run(model, x.detach().clone(), y.clone(), threat, seed=seed, options=options)
            except BenchmarkError:
                raise
            except Exception as error:  # the library may raise anything
                raise _model_failure(model) or _failure(self.name, error) from error
        if failure := _model_failure(model):  # the library caught the exception
            raise failure
        return state | {"x": self._checked_images(returned, x, threat), "finished": torch.ones_like(state["finished"])}

    def check(self) -> None:
        """Refuse unknown and missing options, and strings that are not numbers where a number is expected.

        Raises:
            BadInputError: the first such option.
        """
        options = self.recipe.options
        for name, value in self.options.items():
            if name not in options:
                hint = did_you_mean(name, options) if options else "it has no options"
                raise BadInputError(f"attack '{self.name}': unknown key '{name}'", fix=hint)
            self._parse_number(name, value, 1.0)
        missing = [name for name, default in options.items() if default is Parameter.empty and name not in self.options]
        if missing:
            raise BadInputError(f"attack '{self.name}': key '{missing[0]}' is missing", fix="add it")

    def _parse_number(self, name: str, value: Any, eps: float) -> Any:
        """Convert strings such as `"2/255"` and `"0.25 eps"` to numbers where the default is a number."""
        number = isinstance(self.recipe.options[name], (int, float)) and not isinstance(self.recipe.options[name], bool)
        if number and isinstance(value, bool):  # in Python, true is 1
            raise BadInputError(f"attack '{self.name}': {name} = {str(value).lower()}", expected="a number")
        return parse_step(value, eps) if number and isinstance(value, str) else value

    def _checked_images(self, returned: Any, clean: Images, threat: Threat) -> Images:
        """Return images inside the ball: an image outside is replaced by the clean one or is an error.

        An attack without a budget may return any image of the box: outside the ball, the clean image takes its place.
        Images outside the box, or with NaN, are an error: they say nothing about the sample.
        """
        if not isinstance(returned, Tensor) or returned.shape != clean.shape:
            shape = tuple(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
            raise EvaluationError(f"attack '{self.name}' returned {shape}", expected=f"images {tuple(clean.shape)}")
        returned = returned.detach().to(clean)
        boxed = returned.clamp(0, 1)
        in_box = ((returned - boxed).abs() <= SLACK).flatten(1).all(1)  # false for NaN
        self._require(in_box, "with values outside [0, 1] or NaN", threat)
        reach = distance(boxed, clean, threat.norm)
        in_ball = reach <= furthest(threat.eps)
        if self.recipe.bounded:
            self._require(in_ball, f"at a distance of {float(reach.max()):.6g}", threat)
        return torch.where(per_sample(in_ball, clean), boxed, clean)

    def _require(self, usable: Mask, fault: str, threat: Threat) -> None:
        if not bool(usable.all()):
            raise EvaluationError(
                f"attack '{self.name}' returned {int((~usable).sum())} of {len(usable)} images {fault}",
                expected=f"{threat.norm} <= {threat.eps:.6g} inside [0, 1]",
                fix="the result cannot be used: check the library and the attack's options",
            )


def build(name: str, options: dict[str, Any]) -> Foreign:
    """Return the attack `LIBRARY:NAME` with its options.

    Raises:
        BadInputError: unknown library or attack, library not installed, or unknown option.
    """
    library, _, attack = name.partition(":")
    if library not in LIBRARIES:
        raise unknown_name("attack library", library, LIBRARIES)
    module = load(library, name)
    names = LIBRARIES[library].names(module)
    if attack not in names:
        raise unknown_name(f"attack of {library}", attack, names)
    built = Foreign(name, LIBRARIES[library].recipe(module, attack), options)
    built.check()
    return built


def load(library: str, wanted_by: str) -> ModuleType:
    """Import a library.

    Raises:
        BadInputError: the library is missing or cannot be imported.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(library)
    except Exception as error:  # noqa: BLE001 (missing, or incompatible with newer packages)
        raise BadInputError(
            f"attack '{wanted_by}' needs {library}, which cannot be imported ({reason_of(error)})",
            fix=install_extra("reference"),
        ) from None


@contextlib.contextmanager
def isolated(seed: int, device: torch.device) -> Iterator[None]:
    """Seed all global generators and restore them afterwards; suppress the library's prints, warnings and tracing."""
    numpy_state, state, trace = np.random.get_state(), random.getstate(), sys.gettrace()  # noqa: NPY002
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(state)
        if sys.gettrace() is not trace:
            sys.settrace(trace)


def _model_failure(model: nn.Module) -> EvaluationError | None:
    """Return the failure that the wrapped model recorded, even if the library caught the exception."""
    failure: EvaluationError | None = getattr(model, "failure", None)
    return failure


def _failure(name: str, error: Exception) -> EvaluationError:
    message = f"attack '{name}' failed ({reason_of(error)})"
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return EvaluationError(message, fix="choose a smaller --batch-size")
    if isinstance(error, ImportError):
        return EvaluationError(message, fix=f"pip install {error.name or 'what it needs'}")
    return EvaluationError(message, fix="check its options")
