"""Bounds on what a network answers anywhere in a box of images: affine forms, carried through its layers.

An affine form is c + sum_k g_k e_k, with every e_k in [-1, 1] (a zonotope). The first e_k are the pixels. Where a
function is no line, its distance from one is a new e_k; so later layers know what cancels. Bonaert, Dimitrov, Baader &
Vechev (2021), "Fast and Precise Certification of Transformers", PLDI 2021, doi:10.1145/3453483.3454056. Computed in
double precision: proofs hold up to its rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError

Curve = Callable[..., Tensor]

MOST = 2**28
"""Coefficients of one layer at most: 2 GiB."""
CELLS = 8
"""A curve is looked at in so many cells of its interval."""
ROUNDING = 1e-12
"""A smaller distance from a line is rounding."""
MARGIN = 1e-6
"""A logit is lower only if it is so much lower."""
REACH = 1e-7
"""Boxes are so much larger than eps: attacks round their images to single precision."""

_STATED = {"shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "size", "dim", "numel", "len"}
_LINEAR = {
    *"linear conv2d batch_norm avg_pool2d adaptive_avg_pool2d pad dropout add radd sub rsub neg "  # noqa: SIM905
    "mean sum cumsum flatten unflatten reshape view permute transpose T mT unbind chunk split cat stack "
    "expand expand_as squeeze unsqueeze contiguous clone to float double getitem detach flip roll".split(),
}


class Affine(Tensor):
    """An affine form in place of the tensor of one image.

    centre: c, shape (1, ...).
    generators: g, shape (symbols, 1, ...); symbols that came later have coefficients 0.
    count: how many symbols there are, shared by all forms of one image.
    """

    @staticmethod
    def __new__(cls, centre: Tensor, generators: Tensor, count: list[int]) -> "Affine":
        """Make a tensor with a shape and without values."""
        made: Affine = Tensor._make_wrapper_subclass(  # noqa: SLF001
            cls, centre.shape, dtype=centre.dtype, device=centre.device
        )
        return made

    def __init__(self, centre: Tensor, generators: Tensor, count: list[int]) -> None:
        self.centre, self.generators, self.count = centre, generators, count

    @property
    def radius(self) -> Tensor:
        """The largest deviation from the centre."""
        return self.generators.abs().sum(0)

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The lower and the upper bound."""
        return self.centre - self.radius, self.centre + self.radius

    def near(self, centre: Tensor, generators: Tensor, error: Tensor) -> "Affine":
        """Return what differs from the form of `centre` and `generators` by at most `error`: by new symbols.

        Raises:
            BadInputError: they need too much memory.
        """
        places = (error > ROUNDING).logical_or(error.isnan()).flatten().nonzero()[:, 0]
        count = self.count[0] + len(places)
        if count * error.numel() > MOST:
            raise BadInputError(
                f"bounds with {count} symbols of {error.numel()} entries",
                expected=f"at most {MOST} coefficients: a smaller network, or smaller images",
            )
        new = error.new_zeros(len(places), error.numel())
        new[torch.arange(len(places)), places] = error.flatten()[places]
        known = _padded(generators, self.count[0])
        self.count[0] = count
        return Affine(centre, torch.cat([known, new.view(-1, *error.shape)]), self.count)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry forms through a function of torch; one that works in place changes its form.

        Raises:
            BadInputError: a function without bounds.
        """
        own = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        assigned = own.startswith("__i")  # such as +=
        name, how = own.strip("_").removeprefix("i" if assigned else ""), kwargs or {}
        if name in _STATED:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
                return func(*args, **how)
        rule = RULES.get(name, _linear if name in _LINEAR else None)
        if rule is None:
            raise _unknown(own)
        if not assigned and (not own.endswith("_") or own.startswith("_")):
            return rule(func, *args, **how)
        made = rule(getattr(torch, name), *args, **how)
        args[0].centre, args[0].generators = made.centre, made.generators
        return args[0]

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def,override]
        """Refuse what torch computes without `__torch_function__`."""
        raise _unknown(str(func))


def lower_everywhere(
    model: nn.Module, image: Float[Tensor, "1 c h w"], eps: float, label: int
) -> Bool[Tensor, " class"]:
    """Return which classes have a lower logit than `label` on all images within eps in L-infinity and in [0, 1].

    The difference of two logits is a form, so what they share cancels.

    Args:
        model: in double precision and evaluation mode.
        image: values in [0, 1], in double precision.
        eps: more than 0.
        label: the class that is answered.

    Raises:
        BadInputError: the model computes something without bounds, or is too large; or what it answers at the image
            itself is outside of them, as where it changes a view in place.
    """
    low, high = (image - eps - REACH).clamp(0, 1), (image + eps + REACH).clamp(0, 1)
    box = Affine((low + high) / 2, image.new_zeros(0, *image.shape), [0])
    with torch.no_grad():
        logits = model(box.near(box.centre, box.generators, (high - low) / 2))
        least, most = logits.ends
        answer = model(box.centre)
        if bool(((answer < least - MARGIN) | (answer > most + MARGIN)).any()):
            raise BadInputError("bounds that do not hold at the image itself", expected="no view changed in place")
        lead: Affine = logits[:, label : label + 1] - logits
        return (lead.ends[0] > MARGIN)[0]


def _unknown(name: str) -> BadInputError:
    return BadInputError(
        f"'{name}' has no bounds",
        expected="linear layers, batch norms, products, softmax, relu, gelu, tanh, sigmoid, silu, exp, abs, clamp",
    )


def _padded(generators: Tensor, count: int) -> Tensor:
    more = generators.new_zeros(count - len(generators), *generators.shape[1:])
    return torch.cat([generators, more]) if len(more) else generators


def _forms(values: Any) -> Iterator[Affine]:
    for value in values if isinstance(values, (tuple, list)) else ():
        yield from [value] if isinstance(value, Affine) else _forms(value)


def _put(values: Any, tensors: Iterator[Tensor]) -> Any:
    """Return the arguments with the next tensor in place of each form."""
    if isinstance(values, Affine):
        return next(tensors)
    return type(values)(_put(value, tensors) for value in values) if type(values) in (tuple, list) else values


def _linear(func: Any, *args: Any, **how: Any) -> Any:
    """Carry forms through f(x) = A x + b: c -> A c + b, g -> A g = f(g) - f(0)."""
    forms = list(_forms(args))
    count = max(len(form.generators) for form in forms)

    def at(*tensors: Tensor) -> Any:
        return func(*_put(args, iter(tensors)), **how)

    centre, zero = at(*(form.centre for form in forms)), at(*(torch.zeros_like(form.centre) for form in forms))
    moved = torch.func.vmap(at)(*(_padded(form.generators, count) for form in forms))
    if isinstance(centre, Tensor):
        return Affine(centre, moved - zero, forms[0].count)
    parts = zip(centre, moved, zero, strict=True)
    return tuple(Affine(c, g - z, forms[0].count) for c, g, z in parts)


def _line(
    curve: Curve, low: Tensor, high: Tensor, curvature: Curve | None = None, knots: Sequence[Tensor | float] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    """Return slope, offset and error of a line: |f(x) - slope x - offset| <= error for low <= x <= high.

    The line is parallel to the chord. Pieces of lines are furthest from it at their knots. A curve with |f''| <= c is
    at most c w^2 / 8 beyond its values at the ends of a cell of width w.
    """
    width = high - low
    slope = torch.where(width > 0, (curve(high) - curve(low)) / width.clamp_min(1e-300), 0.0)
    cells = CELLS if curvature else 1
    points = [low + width * cell / cells for cell in range(cells + 1)]
    points += [torch.as_tensor(knot, dtype=low.dtype, device=low.device).clamp(low, high) for knot in knots]
    rest = torch.stack([curve(point) - slope * point for point in points])
    slack = curvature(low, high) * (width / cells) ** 2 / 8 if curvature else 0.0
    most, least = rest.amax(0) + slack, rest.amin(0) - slack
    return slope, (most + least) / 2, (most - least) / 2


def _curve(curvature: Curve | None = None, knots: Sequence[float] = (), positive: bool = False) -> Any:
    """Return the rule of a function of each entry, whose |f''| is at most `curvature(low, high)`."""

    def rule(func: Any, x: Affine, *args: Any, **how: Any) -> Affine:
        low, high = x.ends
        if positive:  # nothing is known of what may be divided by 0
            low = torch.where(low > 0, low, torch.nan)
        slope, offset, error = _line(lambda point: func(point, *args, **how), low, high, curvature, knots)
        return x.near(slope * x.centre + offset, slope * x.generators, error)

    return rule


def _clip(_: Any, x: Affine, min: Any = None, max: Any = None) -> Affine:  # noqa: A002 (torch's names)
    """Clip to limits, which may be forms: one that is off by r changes the result by at most r, where it is reached."""
    low, high = x.ends
    least, most = (limit if isinstance(limit, Affine) else _number(limit, x.centre) for limit in (min, max))
    off = torch.zeros_like(low)
    if isinstance(least, Affine):
        off, least = (low < least.ends[1]) * least.radius, least.centre
    if isinstance(most, Affine):
        off, most = torch.maximum(off, (high > most.ends[0]) * most.radius), most.centre
    knots = [limit for limit in (least, most) if limit is not None]
    slope, offset, error = _line(lambda point: point.clamp(least, most), low, high, None, knots)
    return x.near(slope * x.centre + offset, slope * x.generators, error + off)


def _number(limit: Any, like: Tensor) -> Tensor | None:
    return None if limit is None else torch.as_tensor(limit, dtype=like.dtype, device=like.device)


def _product(func: Any, a: Any, b: Any) -> Any:
    """Multiply (c + G e)(d + H e) = c d + (c H + G d) e + rest; |rest| is at most |G| |H|, each summed over symbols."""
    if not (isinstance(a, Affine) and isinstance(b, Affine)):
        return _linear(func, a, b)
    count = max(len(a.generators), len(b.generators))
    generators = func(_padded(a.generators, count), b.centre) + func(a.centre, _padded(b.generators, count))
    rest = func(a.radius, b.radius)
    if func.__name__.strip("_") == "matmul":
        rest = torch.minimum(rest, _spectral(a.generators, b.generators.mT))
    return a.near(func(a.centre, b.centre), generators, rest)


def _spectral(a: Tensor, b: Tensor) -> Tensor:
    """Return a bound on |e^T A B^T e| for each row of `a` and of `b`, whose matrices A and B have a row a symbol.

    With weights w_k = |A_k| and v_k = |B_k|, |W^(1/2) e|^2 <= sum_k w_k. So it is at most
    (sum_k w_k sum_k v_k)^(1/2) |W^(-1/2) A B^T V^(-1/2)|, the spectral norm, that of two small square roots.
    """

    def weighed(rows: Tensor) -> tuple[Tensor, Tensor]:
        weights = rows.norm(dim=-1, keepdim=True)
        gram = torch.einsum("k...d,k...e->...de", rows / weights.clamp_min(1e-300), rows)
        values, vectors = torch.linalg.eigh(gram.nan_to_num(0, 0, 0))  # of what is not finite the sum says so
        return weights.sum((0, -1)), vectors * values.clamp_min(0).sqrt().unsqueeze(-2) @ vectors.mT

    (of_a, root_a), (of_b, root_b) = weighed(a), weighed(b)
    norms: Tensor = torch.linalg.matrix_norm(root_a.unsqueeze(-3) @ root_b.unsqueeze(-4), 2)
    return (of_a.unsqueeze(-1) * of_b.unsqueeze(-2)).sqrt() * norms * (1 + 1e-9)


def _quotient(func: Any, a: Any, b: Any, **how: Any) -> Any:
    return a * torch.reciprocal(b) if isinstance(b, Affine) else _linear(func, a, b, **how)


def exponentials(z: Affine) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Return centre, generators, error and ends of S_i = sum_j exp(z_j - z_i), whose term j = i is 1."""
    same = torch.eye(z.shape[-1], dtype=torch.bool, device=z.device)
    rows = z.generators.flatten(1, -2).permute(1, 2, 0)  # row, token, symbol
    radius = torch.cdist(rows, rows, p=1).view(*z.shape, z.shape[-1])  # of z_j - z_i
    apart = z.centre.unsqueeze(-2) - z.centre.unsqueeze(-1)
    low, high = (apart + sign * radius for sign in (-1, 1))
    parts = zip(_line(torch.exp, low, high, lambda _, high: high.exp()), (0.0, 1.0, 0.0), strict=True)
    slope, offset, error = (part.masked_fill(same, known) for part, known in parts)
    centre = (slope * apart + offset).sum(-1)
    total = slope.sum(-1)
    generators = (slope @ z.generators.unsqueeze(-1)).squeeze(-1) - total * z.generators
    off = error.sum(-1)
    wide = generators.abs().sum(0) + off
    least, most = (end.masked_fill(same, 0).exp().sum(-1) for end in (low, high))
    return centre, generators, off, (torch.maximum(centre - wide, least), torch.minimum(centre + wide, most))


def _softmax(func: Any, z: Affine, dim: int = -1, **how: Any) -> Affine:  # noqa: ARG001
    """Softmax as 1 / S: differences of logits keep what cancels."""
    if dim not in (-1, z.ndim - 1):
        raise BadInputError(f"softmax over dimension {dim} has no bounds", expected="over the last dimension")
    centre, generators, error, (low, high) = exponentials(z)
    slope, offset, more = _line(torch.reciprocal, low, high, lambda low, _: 2 / low**3)
    made = slope * centre + offset, slope * generators, more + slope.abs() * error
    half = (1 / low - 1 / high) / 2
    loose = made[1].abs().sum(0) + made[2] > 2 * half  # the interval alone says more
    apart = (1 / low - half, torch.zeros_like(made[1]), half)
    return z.near(*(torch.where(loose, *pair) for pair in zip(apart, made, strict=True)))


def _attention(
    _: Any, q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **how: Any
) -> Any:
    if attn_mask is not None or dropout_p or is_causal:
        raise BadInputError("attention with a mask or dropout has no bounds", expected="neither")
    scale = how.get("scale") or q.shape[-1] ** -0.5
    return torch.softmax(scale * q @ k.transpose(-2, -1), -1) @ v


def _constant(value: float) -> Curve:
    return lambda low, _: torch.full_like(low, value)


def _reciprocal_of(_: Any, a: Affine, b: Any) -> Any:
    return b * torch.reciprocal(a)


RULES: dict[str, Any] = {
    "relu": _curve(knots=(0.0,)),
    "leaky_relu": _curve(knots=(0.0,)),
    "abs": _curve(knots=(0.0,)),
    "gelu": _curve(_constant(0.8)),
    "tanh": _curve(_constant(0.77)),
    "sigmoid": _curve(_constant(0.1)),
    "silu": _curve(_constant(0.5)),
    "exp": _curve(lambda _, high: high.exp()),
    "sqrt": _curve(lambda low, _: low**-1.5 / 4, positive=True),
    "reciprocal": _curve(lambda low, _: 2 / low**3, positive=True),
    "clamp": _clip,
    "clamp_min": _clip,
    "clamp_max": lambda func, x, most: _clip(func, x, None, most),
    "mul": _product,
    "rmul": _product,
    "matmul": _product,
    "div": _quotient,
    "truediv": _quotient,
    "rdiv": _reciprocal_of,
    "rtruediv": _reciprocal_of,
    "zeros_like": lambda func, x, **how: func(x.centre, **how),
    "softmax": _softmax,
    "scaled_dot_product_attention": _attention,
}
"""How a form passes each function that is no line. |gelu''| is at most 2 phi(0) = 0.798, in its tanh form, too."""
