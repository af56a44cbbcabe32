"""Attacks of other libraries behind the `Attack` protocol: `torchattacks:PGD`, `pyautoattack:standard`, `foolbox:NAME`.

The whole attack is one step. Its library is called once on the batch, with a bare model that counts and refuses blind
gradients, and what it returns is judged as any proposal is: by the loop's plain forward pass, inside ball and box. None
of the libraries is needed to import the package: they come with the extra `reference`.

Two things differ from native attacks. These libraries draw for the batch, not for the sample: generators are seeded
with the stream of the batch's first sample, and a verdict may depend on its batch mates. And what they spend on each
sample is not known, so that the passes of a batch, whose total is exact, are spread evenly over it.
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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustbench_kpca.attacks.foreign import foolbox, pyautoattack, torchattacks
from robustbench_kpca.attacks.foreign._recipe import Recipe
from robustbench_kpca.attacks.shared.ball import distance, per_sample, require_box, require_norm, require_untargeted
from robustbench_kpca.errors import BadInputError, BenchmarkError, EvaluationError
from robustbench_kpca.protocols.threat import Threat, parse_step
from robustbench_kpca.registry import unknown_name
from robustbench_kpca.strict import did_you_mean
from robustbench_kpca.types import Images, Keys, Labels, Mask, Query, State

LIBRARIES: dict[str, Any] = {"torchattacks": torchattacks, "pyautoattack": pyautoattack, "foolbox": foolbox}
_ROUNDING = 1e-6  # as the loop's own slack: in pixel units, and relative to eps > 1


@dataclass(frozen=True)
class Foreign:
    """One attack of another library, with its options as the protocol states them."""

    name: str
    recipe: Recipe
    options: dict[str, Any]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:
        """Begin at the clean image.

        Raises:
            BadInputError: a norm that the attack does not search in, or an aim that the adapter cannot pass on.

        """
        require_norm(threat, self.name, *self.recipe.norms)
        require_box(threat, self.name)
        require_untargeted(threat, self.name)
        return {"x": x, "y": y, "key": keys, "finished": torch.zeros_like(keys, dtype=torch.bool)}

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Let the library do everything.

        Raises:
            EvaluationError: it failed, was blind, or returned images outside the box or the ball that it promises to
                keep.

        """
        x, y, seed, model = state["x"], state["y"], int(state["key"][0]), query.module()
        options = {name: self._number(name, value, threat.eps) for name, value in self.options.items()}
        with torch.inference_mode(mode=False), torch.enable_grad(), _alone(seed, x.device):
            try:
                found = self.recipe.run(model, x.detach().clone(), y.clone(), threat, seed, options)
            except BenchmarkError:
                raise
            except Exception as error:  # foreign code
                raise _seen(model) or _failure(self.name, error) from error
        if failure := _seen(model):  # swallowed by the library
            raise failure
        return state | {"x": self._settle(found, x, threat), "finished": torch.ones_like(state["finished"])}

    def check(self) -> None:
        """Refuse options that the attack does not have, and numbers that are none.

        Raises:
            BadInputError: the first of them.

        """
        known = self.recipe.options
        for name, value in self.options.items():
            if name not in known:
                hint = did_you_mean(name, known) if known else "it has no options"
                raise BadInputError(f"attack '{self.name}': unknown key '{name}'", fix=hint)
            self._number(name, value, 1.0)
        missing = [name for name, default in known.items() if default is Parameter.empty and name not in self.options]
        if missing:
            raise BadInputError(f"attack '{self.name}': key '{missing[0]}' is missing", fix="add it")

    def _number(self, name: str, value: Any, eps: float) -> Any:
        """Read `"2/255"` and `"0.25 eps"` where the library wants a number."""
        number = isinstance(self.recipe.options[name], (int, float)) and not isinstance(self.recipe.options[name], bool)
        return parse_step(value, eps) if number and isinstance(value, str) else value

    def _settle(self, found: Any, clean: Images, threat: Threat) -> Images:
        """Return what the loop may judge: images in the ball; for one outside, the clean one or an error.

        A search without a budget may end anywhere in the box. Outside the box, or NaN, it has gone wrong: that image
        says nothing about the sample.
        """
        if not isinstance(found, Tensor) or found.shape != clean.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise EvaluationError(f"attack '{self.name}' returned {shape}", expected=f"images {tuple(clean.shape)}")
        found = found.detach().to(clean)
        boxed = found.clamp(0, 1)
        in_box = ((found - boxed).abs() <= _ROUNDING).flatten(1).all(1)  # false for NaN
        self._require(in_box, "with values outside [0, 1] or NaN", threat)
        reach = distance(boxed, clean, threat.norm)
        near = reach <= threat.eps + _ROUNDING * max(1.0, threat.eps)
        if self.recipe.bounded:
            self._require(near, f"at a distance of {float(reach.max()):.6g}", threat)
        return torch.where(per_sample(near, clean), boxed, clean)

    def _require(self, usable: Mask, met: str, threat: Threat) -> None:
        if not bool(usable.all()):
            raise EvaluationError(
                f"attack '{self.name}' returned {int((~usable).sum())} of {len(usable)} images {met}",
                expected=f"{threat.norm} <= {threat.eps:.6g} inside [0, 1]",
                fix="this is the library's fault, or that of an option: its result cannot be used",
            )


def build(name: str, options: dict[str, Any]) -> Foreign:
    """Return the attack `LIBRARY:NAME` with its options.

    Raises:
        BadInputError: unknown library or attack, a library that is not installed, an option that does not exist.

    """
    library, _, attack = name.partition(":")
    if library not in LIBRARIES:
        raise unknown_name("attack library", library, LIBRARIES)
    module = load(library, name)
    known = LIBRARIES[library].names(module)
    if attack not in known:
        raise unknown_name(f"attack of {library}", attack, known)
    built = Foreign(name, LIBRARIES[library].recipe(module, attack), options)
    built.check()
    return built


def load(library: str, wanted_by: str) -> ModuleType:
    """Import a library.

    Raises:
        BadInputError: it is not there, or cannot be imported.

    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(library)
    except Exception as error:  # noqa: BLE001 (a missing library, or one that breaks on something newer)
        raise BadInputError(
            f"attack '{wanted_by}' needs {library}, which cannot be imported ({_words(error)[:80]})",
            fix="pip install 'robustbench-kpca[reference]'",
        ) from None


@contextlib.contextmanager
def _alone(seed: int, device: torch.device) -> Iterator[None]:
    """Seed every global generator, and put it back; keep prints, warnings and trace functions to the library."""
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


def _seen(model: nn.Module) -> EvaluationError | None:
    """Return what the bare model found wrong, whatever the library made of it."""
    failure: EvaluationError | None = getattr(model, "failure", None)
    return failure


def _failure(name: str, error: Exception) -> EvaluationError:
    met = f"attack '{name}' failed ({type(error).__name__}: {_words(error)[:120]})"
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return EvaluationError(met, fix="choose a smaller --batch-size")
    if isinstance(error, ImportError):
        return EvaluationError(met, fix=f"pip install {error.name or 'what it needs'}")
    return EvaluationError(met, fix="check its options")


def _words(error: Exception) -> str:
    """Return the first line of what an exception says, which may be nothing."""
    return [*str(error).strip().splitlines(), "no message"][0]
