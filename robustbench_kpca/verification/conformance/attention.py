"""What every attention promises: shape, finite numbers, gradients, no leak between samples or from later tokens."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca.attacks.foreign import isolated
from robustbench_kpca.attention.shared.chain import ChainedAttention, chain
from robustbench_kpca.verification.conformance.finding import Finding, checked, require

WIDTH, HEADS, TOKENS = 24, 3, 9
CLOSE = 1e-9


def findings(kind: Any, options: dict[str, Any]) -> Iterator[Finding]:
    """Yield what was found of an attention.

    Raises:
        BadInputError: it cannot be built as timm builds one.
    """
    make = partial(_built, kind, options)
    make()
    for promise, check in PROMISES.items():
        yield checked(promise, partial(check, make))
    if _can(make(), is_causal=True):
        yield checked("no token sees later ones, where they are hidden", partial(hides_later_tokens, make))
    if getattr(kind, "takes_key_mask", False):
        yield checked("padding changes nothing, where it is hidden", partial(hides_padding, make))


def _built(kind: Any, options: dict[str, Any]) -> nn.Module:
    sized = {"tokens": TOKENS} if "tokens" in inspect.signature(kind).parameters else {}
    try:
        with isolated(0, torch.device("cpu")):
            layers = [kind(WIDTH, num_heads=HEADS, qkv_bias=True, **sized, **options) for _ in range(_depth(kind))]
    except TypeError as error:
        problem = f"attention {kind.__name__} cannot be built ({reason_of(error)})"
        raise BadInputError(problem, expected="a class that takes what timm gives an attn_layer") from None
    chain(layers)
    layer: nn.Module = _Stack(layers) if len(layers) > 1 else layers[0]
    return layer.double().eval()


def _depth(kind: Any) -> int:
    """Two layers of an attention that gets values of an earlier one."""
    return 2 if isinstance(kind, type) and issubclass(kind, ChainedAttention) else 1


class _Stack(nn.Module):
    """Layers of attention one after the other."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, **how: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, **how)
        return x


def _tokens(batch: int = 3) -> Tensor:
    return torch.randn(batch, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _can(layer: nn.Module, **how: Any) -> bool:
    try:
        _run(layer, _tokens(), **how)
    except BadInputError:
        return False
    except Exception:  # noqa: BLE001 (the check says what it is)
        return True
    return True


def _run(layer: nn.Module, x: Tensor, **how: Any) -> Tensor:
    with isolated(2, x.device):  # of a layer that draws
        out: Tensor = layer(x, **how)
    return out


def keeps_shape(make: Callable[[], nn.Module]) -> None:
    """Require that tokens keep their shape and are finite, also where all are zero or large."""
    for scale in (0.0, 1.0, 30.0):
        x = scale * _tokens()
        out = _run(make(), x)
        require(out.shape == x.shape, f"{tuple(x.shape)} became {tuple(out.shape)}")
        require(bool(torch.isfinite(out).all()), f"tokens of size {scale:g} gave numbers that are not finite")


def passes_gradients(make: Callable[[], nn.Module]) -> None:
    """Require a gradient at the input that is not zero, and finite also where all tokens are equal, zero or large."""
    for what, x in {"": _tokens(), " of equal tokens": _tokens()[:, :1].expand(-1, TOKENS, -1),
                    " of zeros": 0 * _tokens(), " of large tokens": 1e3 * _tokens()}.items():  # fmt: skip
        for training in (False, True):
            x = x.detach().clone().requires_grad_()
            gradient = torch.autograd.grad(_run(make().train(training), x).square().sum(), x)[0]
            require(bool(torch.isfinite(gradient).all()), f"the gradient at the input{what} is not finite")
            require(bool(what or (gradient.abs() > 0).any()), "no gradient reaches the input")


def is_independent(make: Callable[[], nn.Module]) -> None:
    """Require that a sample does not depend on the others of its batch."""
    layer, x = make(), _tokens()
    if getattr(layer, "stochastic", False):
        return
    single = torch.cat([_run(layer, row[None]) for row in x])
    require(torch.allclose(_run(layer, x), single, atol=CLOSE), "a sample depends on the others of its batch")


def is_repeatable(make: Callable[[], nn.Module]) -> None:
    """Require the same for the same tokens in evaluation mode, unless the class says `stochastic = True`."""
    layer, x = make(), _tokens()
    same = torch.equal(layer(x), layer(x))
    require(same or getattr(layer, "stochastic", False), "it draws in evaluation mode; let it say stochastic = True")


def hides_later_tokens(make: Callable[[], nn.Module]) -> None:
    """Require that with `is_causal` tokens after t change nothing at t."""
    layer, x = make(), _tokens()
    before = _run(layer, x, is_causal=True)
    for cut in range(1, TOKENS):
        changed = x.clone()
        changed[:, cut:] = 5 * changed[:, cut:].flip(1) + 1
        after = _run(layer, changed, is_causal=True)
        require(torch.allclose(before[:, :cut], after[:, :cut], atol=CLOSE), f"token {cut} sees the next one")


def hides_padding(make: Callable[[], nn.Module]) -> None:
    """Require that with a mask of keys what stands at hidden places changes nothing at the others."""
    layer, x, real = make(), _tokens(), TOKENS - 3
    mask = (torch.arange(TOKENS) < real).expand(len(x), 1, 1, TOKENS)
    changed = x.clone()
    changed[:, real:] = 7.0
    before, after = (_run(layer, tokens, attn_mask=mask)[:, :real] for tokens in (x, changed))
    require(torch.allclose(before, after, atol=CLOSE), "what stands at hidden places changes the others")


PROMISES: dict[str, Callable[[Callable[[], nn.Module]], None]] = {
    "tokens keep their shape and are finite": keeps_shape,
    "gradients reach the input": passes_gradients,
    "a sample does not depend on others": is_independent,
    "the same tokens give the same": is_repeatable,
}
