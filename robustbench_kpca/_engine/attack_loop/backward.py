"""Stages that go back through a twin of the model: its answers forward, the gradient of the twin backward (BPDA).

Athalye, Carlini & Wagner (2018), "Obfuscated Gradients Give a False Sense of Security", arXiv:1802.00420, section 4.1.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._core.address import is_address, load, require
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.token_gradients import RULES
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attacks.shared.names import library_of
from robustbench_kpca.models.altered import altered, parsed
from robustbench_kpca.protocols.scenario import Stage
from robustbench_kpca.types import Attack, Images


def require_gradients(stage: Stage, attack: Attack) -> None:
    """Refuse other gradients that cannot be meant, or for an attack that takes none of the loop; no code is run.

    Raises:
        BadInputError: such a stage.
    """
    if stage.name == stage.attack:
        return
    reads = getattr(attack, "reads_attention", False) and stage.attention_loss is not None
    if reads or library_of(stage.attack) or getattr(attack, "most_passes", ("", ""))[1] == "0":
        raise BadInputError(
            f"attack '{stage.name}': backward_of = {stage.backward_of!r}, attention_loss = {stage.attention_loss}",
            expected="an attack of the package that takes gradients, and has no loss on attention of its own",
        )
    if stage.backward_of is None:
        return
    if is_address(stage.backward_of):
        require(stage.backward_of, "twin")
    elif stage.backward_of not in RULES:
        _each(stage.backward_of)


@contextmanager
def backward_of(setting: str | None, runner: Runner) -> Iterator[None]:
    """For a while, let gradients of `runner` go back through a twin; answers and losses stay those of the model.

    Args:
        setting: `OPTION=VALUE`, the model with this option of its attention layers changed (`models.altered`), or with
            `OPTION=VALUE,VALUE` the mean over such models; one of `RULES`, the model with other gradients of attention;
            or the address of a function from the model to another one that is like it; None: the model itself.
        runner: of the model.

    Raises:
        BadInputError: the model has no such option, or the logits of the twin have another shape.
    """
    if setting is None:
        yield
        return
    before = runner.presentation
    twin = load(setting, "twin").member(runner.model).eval() if is_address(setting) else None
    others: list[Callable[[], AbstractContextManager[nn.Module]]]
    if setting in RULES:
        others = [partial(RULES[setting], runner.model)]
    elif twin is not None:
        others = [lambda: nullcontext(twin)]
    else:
        others = [partial(altered, runner.model, each) for each in _each(setting)]

    def through_one(other: Callable[[], AbstractContextManager[nn.Module]], x: Images) -> Tensor:
        with other() as smooth:
            logits: Tensor = before.show(smooth, x)
        return logits

    def show(model: nn.Module, x: Images) -> Any:
        if not torch.is_grad_enabled():
            return before.show(model, x)
        with torch.no_grad():
            logits = before.show(model, x)
        through = torch.stack([through_one(other, x) for other in others]).mean(0)
        if through.shape != logits.shape:
            raise BadInputError(
                f"a twin with logits of shape {tuple(through.shape)}", expected=f"{tuple(logits.shape)}, as the model's"
            )
        answer: Tensor = _Through.apply(through, logits)
        return answer

    runner.presentation = replace(before, show=show)
    try:
        yield
    finally:
        runner.presentation = before


def _each(setting: str) -> list[str]:
    """Return `OPTION=VALUE` of every value of a setting.

    Raises:
        BadInputError: another form, or a value twice.
    """
    option, text = parsed(setting)
    settings = ["=".join(parsed(f"{option}={value}")) for value in text.split(",")]
    if len({*settings}) < len(settings):
        raise BadInputError(f"backward_of = '{setting}'", expected="every value once")
    return settings


class _Through(torch.autograd.Function):
    """The second argument forward; the gradient goes to the first."""

    @staticmethod
    def forward(ctx: Any, through: Tensor, logits: Tensor) -> Tensor:  # noqa: ARG004
        return logits.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return gradient, None
