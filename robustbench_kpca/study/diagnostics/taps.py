"""Forward hooks that read q, k, v and the heads' outputs of attention layers, without changing the model.

Only classes whose computation is known exactly are supported. A foreign layer with rotary positions, windows or a
relative bias has projections with the same names, but a hook on them would not read the inputs of its softmax.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError, BenchmarkError, reason_of
from robustbench_kpca.attention.kep_svgp import KEPSVGPAttention
from robustbench_kpca.attention.primal import PrimalAttention
from robustbench_kpca.attention.scaled import ScaledAttention
from robustbench_kpca.attention.shared.heads import split_heads
from robustbench_kpca.attention.softmax import SoftmaxAttention
from robustbench_kpca.attention.symmetric import SymmetricAttention
from robustbench_kpca.models.fan import TokenMix
from robustbench_kpca.types import Images


@dataclass(frozen=True)
class Reading:
    """Tensors of one layer in one pass, in the model's precision: (batch, heads, tokens, width)."""

    x: Tensor
    q: Tensor
    k: Tensor
    v: Tensor | None
    h: Tensor | None


@dataclass(frozen=True)
class Tap:
    """One attention layer of a model; `watched` are the modules whose outputs (or inputs: "<") `read` needs."""

    index: int
    name: str
    module: nn.Module
    watched: dict[str, nn.Module]
    read: Callable[[dict[str, Tensor]], Reading]
    outputs: dict[str, Tensor] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def require_one_call(self) -> None:
        """Refuse a layer that did not run exactly once in a pass: hooks would give only the last run, or nothing."""
        wrong = next((self.calls.get(key, 0) for key in self.watched if self.calls.get(key, 0) != 1), None)
        if wrong is not None:
            raise BadInputError(
                f"attention layer {self.index} ({self.name}) ran {wrong} times in one pass",
                expected="once",
                fix="models that share a module between layers, or process images twice, are not supported",
            )

    def forget(self) -> None:
        """Discard the tensors of the last pass."""
        self.outputs.clear()
        self.calls.clear()


def find_taps(model: nn.Module) -> list[Tap]:
    """Return the attention layers that can be read, in the order of the model."""
    taps: list[Tap] = []
    for name, module in model.named_modules():
        plan = _tap(module)
        if plan is not None:
            watched, read = plan
            taps.append(Tap(len(taps), name, module, {"<x": module, **watched}, read))
    return taps


@contextmanager
def listening(taps: Sequence[Tap]) -> Iterator[Callable[[], list[Reading]]]:
    """Attach the hooks; yield a function that returns and then discards the readings of the last pass.

    The function raises BadInputError if a layer did not run exactly once.
    """
    handles = [_attach(tap, key, module) for tap in taps for key, module in tap.watched.items()]

    def readings() -> list[Reading]:
        for tap in taps:
            tap.require_one_call()
        read = [tap.read(tap.outputs) for tap in taps]
        for tap in taps:
            tap.forget()
        return read

    try:
        yield readings
    finally:
        for handle in handles:
            handle.remove()
        for tap in taps:
            tap.forget()


def _attach(tap: Tap, key: str, module: nn.Module) -> Any:
    if key.startswith("<"):

        def before(_: nn.Module, args: tuple[Any, ...]) -> None:
            _store(tap, key, args[0])

        return module.register_forward_pre_hook(before)

    def after(_: nn.Module, __: Any, out: Any) -> None:
        _store(tap, key, out[0] if isinstance(out, tuple) else out)

    return module.register_forward_hook(after)


def _store(tap: Tap, key: str, x: Tensor) -> None:
    tap.outputs[key] = x.detach().clone()  # a layer may change its own tensors afterwards
    tap.calls[key] = tap.calls.get(key, 0) + 1


_HookPlan = tuple[dict[str, nn.Module], Callable[[dict[str, Tensor]], Reading]]


def _tap(module: Any) -> _HookPlan | None:
    if isinstance(module, (SoftmaxAttention, *_timms_attention())):
        return _softmax(module)
    if isinstance(module, SymmetricAttention):
        return _symmetric(module)
    if isinstance(module, TokenMix):
        return _token_mix(module)
    if isinstance(module, (PrimalAttention, KEPSVGPAttention)):
        return _primal(module)
    return None


def _timms_attention() -> tuple[type[nn.Module], ...]:
    """Return timm's attention, if timm was imported; else no model has it."""
    timms = sys.modules.get("timm.models.vision_transformer")
    return () if timms is None else (timms.Attention,)


def _softmax(module: Any) -> _HookPlan:
    """Read softmax, scaled and asymmetric RPC attention, and timm's, which normalises before `proj`."""
    watched = {"qkv": module.qkv, "<out": module.norm if type(module) in _timms_attention() else module.proj}
    normed = {
        key: norm for key, norm in (("q", module.q_norm), ("k", module.k_norm)) if not isinstance(norm, nn.Identity)
    }
    heads: int = module.num_heads

    def read(outputs: dict[str, Tensor]) -> Reading:
        q, k, v = split_heads(outputs["qkv"], 3, heads)
        q, k = outputs.get("q", q), outputs.get("k", k)
        if isinstance(module, SoftmaxAttention):
            q, k = module.turned(q), module.turned(k)
        return Reading(outputs["<x"], q, k, _mixed_values(module, k, v), _by_head(outputs["<out"], heads))

    return watched | normed, read


def _mixed_values(module: nn.Module, k: Tensor, v: Tensor) -> Tensor:
    """Return the values that the softmax averages; scaled attention first computes V' = V - S V (equation 12)."""
    if not isinstance(module, ScaledAttention):
        return v
    s = module.s.detach()
    if module.form == "alpha":
        return v - s * F.scaled_dot_product_attention(k, k, v)
    return v - s @ v


def _symmetric(module: SymmetricAttention) -> _HookPlan:
    heads = module.num_heads

    def read(outputs: dict[str, Tensor]) -> Reading:
        k, v = split_heads(outputs["kv"], 2, heads)
        k = module.turned(k)
        return Reading(outputs["<x"], k, k, v, _by_head(outputs["<out"], heads))

    return {"kv": getattr(module, module.projection), "<out": module.proj}, read


def _token_mix(module: TokenMix) -> _HookPlan:
    heads = module.num_heads

    def read(outputs: dict[str, Tensor]) -> Reading:
        (q,), (k, v) = split_heads(outputs["q"], 1, heads), split_heads(outputs["kv"], 2, heads)
        return Reading(outputs["<x"], q, k, v, _by_head(outputs["<out"], heads))

    return {"q": module.q, "kv": module.kv, "<out": module.proj}, read


def _primal(module: PrimalAttention | KEPSVGPAttention) -> _HookPlan:
    """Read attention without values, whose output is not an average of values."""

    def read(outputs: dict[str, Tensor]) -> Reading:
        q, k = split_heads(outputs["qk"], 2, module.num_heads)
        return Reading(outputs["<x"], q, k, None, None)

    return {"qk": module.scores.qk}, read


def _by_head(x: Tensor, heads: int) -> Tensor:
    heads_first: Tensor = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    return heads_first


def call(model: nn.Module, images: Images) -> Tensor:
    """Run a model without gradients on images; return its (first) output.

    Raises:
        BadInputError: the model cannot be run on these images.
    """
    try:
        with torch.no_grad():
            out = model(images)
    except (BenchmarkError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the model may raise anything
        raise BadInputError(
            f"the model cannot be run on these data ({reason_of(error)})",
            fix="check that the model and the data match",
        ) from error
    first: Tensor = out if isinstance(out, Tensor) else out[0]
    return first
