"""Stages that go back through a twin of the model: its answers forward, the gradient of the twin backward (BPDA).

Athalye, Carlini & Wagner (2018), "Obfuscated Gradients Give a False Sense of Security", arXiv:1802.00420, section 4.1.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._core.address import is_address, load, require
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.edge import Through
from robustbench_kpca._engine.inference.fewer_rows import FewerRows
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attacks.shared.names import library_of
from robustbench_kpca.models.altered import altered, parsed
from robustbench_kpca.protocols.scenario import Stage
from robustbench_kpca.types import Attack, Images


def require_gradients(stage: Stage, attack: Attack) -> None:
    """Refuse a twin that cannot be meant, or for an attack that takes no gradients of the loop; no code is run.

    Raises:
        BadInputError: such a stage.
    """
    if stage.backward_of is None:
        return
    if library_of(stage.attack) or getattr(attack, "most_passes", ("", ""))[1] == "0":
        raise BadInputError(
            f"attack '{stage.attack}': backward_of = {stage.backward_of!r}",
            expected="an attack of the package that takes gradients",
        )
    if is_address(stage.backward_of):
        require(stage.backward_of, "twin")
    else:
        parsed(stage.backward_of)


@contextmanager
def backward_of(setting: str | None, runner: Runner) -> Iterator[None]:
    """For a while, let gradients of `runner` go back through a twin; answers and losses stay those of the model.

    Args:
        setting: `OPTION=VALUE`, the model with this option of its attention layers changed (`models.altered`); or the
            address of a function from the model to another one that is like it; None: the model itself.
        runner: runner of the model.

    Raises:
        BadInputError: the model has no such option, or the logits of the twin have another shape.
    """
    if setting is None:
        yield
        return
    before, fewer = runner.presentation, runner.fewer
    twin = load(setting, "twin").member(runner.model).eval() if is_address(setting) else None

    def show(model: nn.Module, x: Images) -> Any:
        if not torch.is_grad_enabled():
            return before.show(model, x)
        with torch.no_grad():
            logits = before.show(model, x)
        with altered(runner.model, setting) if twin is None else nullcontext(twin) as smooth:
            through: Tensor = before.show(smooth, x)
        if through.shape != logits.shape:
            raise BadInputError(
                f"a twin with logits of shape {tuple(through.shape)}", expected=f"{tuple(logits.shape)}, as the model's"
            )
        answer: Tensor = Through.apply(through, logits)
        return answer

    runner.presentation, runner.fewer = replace(before, show=show), FewerRows()
    try:
        yield
    finally:
        runner.presentation, runner.fewer = before, fewer
