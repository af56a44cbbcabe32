"""Checkpoints: strict loading, writing, and digests of weights."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import sha256, write_atomic
from robustbench_kpca.models.bundle import WITHIN
from robustbench_kpca.models.placement import fit
from robustbench_kpca.models.transformer import resample_positions
from robustbench_kpca.models.weights_file import State

_POSITIONS = "pos_embed"


@dataclass(frozen=True)
class Adapted:
    """The tensors of a model that `load_strictly` did not take over as they were.

    Attributes:
        kept: names of tensors that kept the model's own values: a head for another number of classes.
        resized: the number of tokens in the position embedding before and after, if it was resampled.
        fitted: names of the layers that took what fits from another attention.
        begun: names of their tensors for which nothing fits.
        prefix: what stood before all names, and was taken off.
    """

    kept: tuple[str, ...] = ()
    resized: tuple[int, int] | None = None
    fitted: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()
    prefix: str = ""


def load_strictly(
    model: nn.Module,
    state: dict[str, Tensor],
    where: str,
    *,
    resize_positions: bool = False,
    own_head: bool = False,
    placed: str | None = None,
) -> Adapted:
    """Load a state dict whose names and shapes are exactly the model's; floating types are cast to the model's.

    What stands before all names, such as `module.` or `base_model.model.`, is taken off where more names fit without
    it. A model with `own_state` translates the names of its authors.

    Args:
        model: the model that gets the weights.
        state: the weights by name.
        where: they are from, for errors.
        resize_positions: resample `pos_embed` where only the size of its square grid of patches differs; class tokens
            are kept. Models with `resample_positions` do it themselves (Segmenter: bilinear); for others it is bicubic
            and antialiased, as in timm.
        own_head: keep the model's own values of tensors that differ in the number of classes alone.
        placed: an attention of the model that stands where the weights have another; what fits is kept (`place`).

    Returns:
        What was adapted; without these three options the prefix at most.

    Raises:
        BadInputError: names of tensors that are missing, unexpected, or of another shape or type. The model is then
            not changed.
    """
    expected, translate = model.state_dict(), getattr(model, "own_state", dict)
    prefix = _foreign_prefix(state, expected, translate)
    original, state = state, translate(_below(state, prefix))
    state, fitted, begun = (state, [], []) if placed is None else fit(state, model, placed)
    places = _positions(model)
    resized: tuple[int, int] | None = None
    heads: tuple[str, ...] = ()
    if resize_positions and _resizable(model, state, expected):
        resized = state[places].shape[1], expected[places].shape[1]
        state = state | {places: _resized(model, state[places])}
    if own_head:
        heads = _heads_of_other_classes(model, state, expected)
        state = state | {name: expected[name] for name in heads}
    shared = [name for name in expected if name in state]
    misshaped = [name for name in shared if state[name].shape != expected[name].shape]
    faults = {
        "missing": [name for name in expected if name not in state],
        "unexpected": [name for name in state if name not in expected],
        "mis-shaped": [f"{name} {tuple(state[name].shape)} for {tuple(expected[name].shape)}" for name in misshaped],
        "mis-typed": [
            f"{name} {state[name].dtype} for {expected[name].dtype}"
            for name in shared
            if state[name].is_floating_point() != expected[name].is_floating_point()
        ],
    }
    problems = [
        f"{len(names)} {kind} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for kind, names in faults.items()
        if names
    ]
    if problems:
        fixes = _fixes(model, state, expected, misshaped)
        names = expected.keys()
        if parts := [top for top in _tops(original) if names == translate(_below(original, f"{top}.")).keys()]:
            fixes = [f"add {WITHIN}{parts[0]} to its name"]
        elif not fixes or faults["missing"] or faults["unexpected"] or faults["mis-typed"]:
            fixes = [*fixes, "name the architecture and options it was trained with"]
        raise BadInputError(
            f"{where} does not fit {type(model).__name__}: {', '.join(problems)}", fix=", and ".join(fixes)
        )
    model.load_state_dict(state)
    return Adapted(heads, resized, tuple(fitted), tuple(begun), prefix)


def _heads_of_other_classes(model: nn.Module, state: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[str, ...]:
    """Return the tensors that differ in the number of classes alone; none where they disagree about that number."""
    both = {name: (state[name], tensor) for name, tensor in expected.items() if name in state}
    misshaped = {name: pair for name, pair in both.items() if pair[0].shape != pair[1].shape}
    classes = {name: count for name, pair in misshaped.items() if (count := _other_classes(model, *pair)) is not None}
    return tuple(classes) if len(set(classes.values())) == 1 else ()


def _foreign_prefix(state: State, expected: State, translate: Callable[[State], State]) -> str:
    """Return how much of what all names begin with is to be taken off, so that most names are the model's own."""
    first = next(iter(state), "")
    prefixes = ["", *(first[: end + 1] for end, sign in enumerate(first) if sign == ".")]
    shared = [prefix for prefix in prefixes if all(name.startswith(prefix) for name in state)]
    return max(shared, key=lambda prefix: len(expected.keys() & translate(_below(state, prefix)).keys()))


def _below(state: State, prefix: str) -> State:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _tops(state: State) -> list[str]:
    """Return what names begin with, up to their first dot."""
    return list(dict.fromkeys(name.partition(".")[0] for name in state))


def _fixes(model: nn.Module, state: dict[str, Tensor], expected: dict[str, Tensor], misshaped: list[str]) -> list[str]:
    """Return the options with which all tensors of another shape would fit; empty where there are none."""
    places = _positions(model)
    positions = [places] if places in misshaped and _resizable(model, state, expected) else []
    rest = [name for name in misshaped if name != places]
    heads = [count for name in rest if (count := _other_classes(model, state[name], expected[name]))]
    classes = set(heads)
    if len(positions) + len(heads) < len(misshaped) or len(classes) > 1:
        return []
    return [f"give num_classes={n} (--set model.num_classes={n})" for n in classes] + [
        "add --set model.resize_positions=true" for _ in positions
    ]


def _other_classes(model: nn.Module, value: Tensor, expected: Tensor) -> int | None:
    """Return the number of classes of a tensor, if this is all that differs from the model's own; else None."""
    differing = [i for i, (old, new) in enumerate(zip(value.shape, expected.shape, strict=False)) if old != new]
    if value.ndim != expected.ndim or len(differing) != 1:
        return None
    (place,) = differing
    return value.shape[place] if expected.shape[place] == getattr(model, "num_classes", None) else None


def _positions(model: nn.Module) -> str:
    return f"encoder.{_POSITIONS}" if hasattr(model, "encoder") else _POSITIONS


def _resizable(model: nn.Module, state: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    """Tell whether the position embeddings differ only in the side of their square grid of patches."""
    places = _positions(model)
    model = getattr(model, "encoder", model)
    if places not in state or places not in expected or not hasattr(model, "patch_embed"):
        return False
    old, new, prefix = state[places], expected[places], _prefix_tokens(model)
    if old.ndim != 3 or new.ndim != 3 or (len(old), old.shape[2]) != (1, new.shape[2]) or old.shape[1] <= prefix:
        return False
    square = math.isqrt(old.shape[1] - prefix) ** 2 == old.shape[1] - prefix
    grid: Any = getattr(model.patch_embed, "grid_size", None)
    return square and grid is not None and math.prod(grid) + prefix == new.shape[1] != old.shape[1]


def _resized(model: nn.Module, positions: Tensor) -> Tensor:
    model = getattr(model, "encoder", model)
    patches: Any = model.patch_embed
    bicubic = partial(resample_positions, prefix=_prefix_tokens(model), mode="bicubic", antialias=True)
    resized: Tensor = getattr(model, "resample_positions", bicubic)(positions, list(patches.grid_size))
    return resized


def _prefix_tokens(model: nn.Module) -> int:
    """Return the number of class and register tokens in the position embedding, from timm's two attributes."""
    return 0 if getattr(model, "no_embed_class", False) else int(getattr(model, "num_prefix_tokens", 1))


def save_checkpoint(path: Path, model: nn.Module, metadata: dict[str, str], *, half: bool = False) -> None:
    """Write parameters and persistent buffers with `metadata` as safetensors.

    Args:
        path: path of the file. It is replaced only when the new one is complete.
        model: whose weights are written.
        metadata: stored in the file.
        half: store floating values in half precision.

    Raises:
        EvaluationError: it cannot be written; an older file is then still there.
    """
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    if half:
        state = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    write_atomic(path, _in_order(save(state, metadata)))


def _in_order(data: bytes) -> bytes:
    """Sort the metadata of a safetensors file, so that equal weights give equal files; the library's order varies."""
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors are aligned
    return len(text).to_bytes(8, "little") + text + data[begin:]


def tensor_sha256(values: Tensor) -> str:
    """Return the SHA-256 of a tensor's values."""
    return sha256(values.detach().cpu().contiguous().numpy().tobytes())


def parameters_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of a model's state dict; see `state_sha256`."""
    return state_sha256(model.state_dict())


def state_sha256(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a state dict: names, types, shapes and values. It does not depend on the file format."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
