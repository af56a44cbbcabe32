"""Checkpoints: reading without running code in them, strict loading, writing, and digests of weights."""

import argparse
import hashlib
import json
import math
import os
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.files import sha256, write_atomic
from robustbench_kpca.models.bundle import WITHIN, split_entry
from robustbench_kpca.models.hub import silent_hub
from robustbench_kpca.models.placement import fit
from robustbench_kpca.models.transformer import resample_positions

HUB = "hf-hub:"
_SHOWN = 8
_POSITIONS = "pos_embed"
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
State: TypeAlias = dict[str, Tensor]
"""Tensors by name."""


class Weights(NamedTuple):
    """A state dict, and the entry of the file that it was found in; empty where no entry was searched for."""

    state: dict[str, Tensor]
    entry: str = ""


def read_state(checkpoint: Path | str) -> Weights:
    """Read a state dict from safetensors, from a torch file under `weights_only=True`, or from `hf-hub:OWNER/NAME`.

    A torch file may hold the state dict itself, or a dictionary with one entry that is a state dict. Of several none is
    chosen: `FILE::KEY` names one. A key is also what stands before the first dots of names: `FILE::teacher::backbone`.
    The only class that may be unpickled is `argparse.Namespace`, since many training scripts save their arguments.

    Args:
        checkpoint: path of a file, or `hf-hub:OWNER/NAME`, each with `::KEY` or without.

    Raises:
        BadInputError: the file is missing or damaged, or holds no state dict, or several.
    """
    file, keys = split_entry(checkpoint)
    content = _fetch(file) if file.startswith(HUB) else _read(Path(file))
    for key in keys:
        content = _entry(content, key, file)
    if _is_state(content):
        return Weights(content)
    entries = content if isinstance(content, dict) else {}
    states = [str(key) for key, value in entries.items() if _is_state(value)]
    if len(states) != 1:
        what = f"{len(states)} state dicts: {', '.join(states)}" if states else f"no state dict, but {_listed(entries)}"
        raise BadInputError(
            f"checkpoint {checkpoint} holds {what}",
            expected="one mapping from names to tensors",
            fix=f"name the entry: {checkpoint}{WITHIN}{states[0] if states else 'KEY'}",
        )
    return Weights(entries[states[0]], states[0])


def _entry(content: Any, key: str, file: str) -> Any:
    """Return what is under a key, or the tensors whose names begin with it."""
    content = content if isinstance(content, dict) else {}
    below = {name.removeprefix(f"{key}."): value for name, value in content.items() if str(name).startswith(f"{key}.")}
    if key not in content and not below:
        raise BadInputError(f"checkpoint {file} holds no '{key}', but {_listed(content)}")
    return content.get(key, below)


def _listed(content: dict[Any, Any]) -> str:
    names = [f"{str(key)[:40]!a} ({type(value).__name__})" for key, value in list(content.items())[:_SHOWN]]
    return ", ".join(names + ["…"] * (len(content) > _SHOWN)) or "nothing that has names"


def _read(path: Path) -> Any:
    if not path.is_file():
        raise BadInputError(f"no checkpoint at {path}", fix="check the path")
    try:
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals([argparse.Namespace]):
            if path.suffix == ".safetensors":
                return load_file(path, "cpu")
            return torch.load(path, "cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        needed = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it needs {needed[1]}" if needed else reason_of(error)
        raise BadInputError(
            f"checkpoint {path} holds no plain state dict ({reason})",
            expected="tensors and plain values; nothing else is unpickled",
            fix="save it as safetensors",
        ) from None
    except Exception as error:  # noqa: BLE001 (a damaged file can fail anywhere in its reader)
        raise BadInputError(
            f"checkpoint {path} is truncated or damaged ({reason_of(error)})", fix="copy it again"
        ) from None


def _fetch(checkpoint: str) -> Any:
    """Read weights from the hub with timm: safetensors, or else a torch file, which is read as `_read` does."""
    from timm.models import load_state_dict_from_hf

    try:
        with warnings.catch_warnings(action="ignore"), silent_hub():
            return load_state_dict_from_hf(checkpoint.removeprefix(HUB), weights_only=True)
    except Exception as error:  # noqa: BLE001 (the hub fails in many ways)
        raise BadInputError(
            f"checkpoint {checkpoint} could not be loaded ({reason_of(error)})",
            expected=f"{HUB}OWNER/NAME",
            fix="check the name and the network, or give --checkpoint FILE",
        ) from None


@contextmanager
def only_weights() -> Iterator[None]:
    """Let no library unpickle anything but tensors and plain values, whatever it asks `torch.load` for."""
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FORCE]
        else:
            os.environ[_FORCE] = before


def _is_state(content: Any) -> bool:
    return isinstance(content, dict) and bool(content) and all(_is_entry(*entry) for entry in content.items())


def _is_entry(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta


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
        model: that gets the weights.
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
    own, translate = model.state_dict(), getattr(model, "own_state", dict)
    prefix = _foreign_prefix(state, own, translate)
    given, state = state, translate(_below(state, prefix))
    state, fitted, begun = (state, [], []) if placed is None else fit(state, model, placed)
    places = _positions(model)
    resized: tuple[int, int] | None = None
    kept: tuple[str, ...] = ()
    if resize_positions and _resizable(model, state, own):
        resized = state[places].shape[1], own[places].shape[1]
        state = state | {places: _resized(model, state[places])}
    if own_head:
        kept = _heads_of_other_classes(model, state, own)
        state = state | {name: own[name] for name in kept}
    shared = [name for name in own if name in state]
    misshaped = [name for name in shared if state[name].shape != own[name].shape]
    faults = {
        "missing": [name for name in own if name not in state],
        "unexpected": [name for name in state if name not in own],
        "mis-shaped": [f"{name} {tuple(state[name].shape)} for {tuple(own[name].shape)}" for name in misshaped],
        "mis-typed": [
            f"{name} {state[name].dtype} for {own[name].dtype}"
            for name in shared
            if state[name].is_floating_point() != own[name].is_floating_point()
        ],
    }
    problems = [
        f"{len(names)} {kind} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for kind, names in faults.items()
        if names
    ]
    if problems:
        fixes = _fixes(model, state, own, misshaped)
        if parts := [top for top in _tops(given) if own.keys() == translate(_below(given, f"{top}.")).keys()]:
            fixes = [f"add {WITHIN}{parts[0]} to its name"]
        elif not fixes or faults["missing"] or faults["unexpected"] or faults["mis-typed"]:
            fixes = [*fixes, "name the architecture and options it was trained with"]
        raise BadInputError(
            f"{where} does not fit {type(model).__name__}: {', '.join(problems)}", fix=", and ".join(fixes)
        )
    model.load_state_dict(state)
    return Adapted(kept, resized, tuple(fitted), tuple(begun), prefix)


def _heads_of_other_classes(model: nn.Module, state: dict[str, Tensor], own: dict[str, Tensor]) -> tuple[str, ...]:
    """Return the tensors that differ in the number of classes alone; none where they disagree about that number."""
    both = {name: (state[name], own[name]) for name in own if name in state and state[name].shape != own[name].shape}
    classes = {name: count for name, pair in both.items() if (count := _other_classes(model, *pair)) is not None}
    return tuple(classes) if len(set(classes.values())) == 1 else ()


def _foreign_prefix(state: State, own: State, translate: Callable[[State], State]) -> str:
    """Return how much of what all names begin with is to be taken off, so that most names are the model's own."""
    first = next(iter(state), "")
    prefixes = ["", *(first[: end + 1] for end, sign in enumerate(first) if sign == ".")]
    shared = [prefix for prefix in prefixes if all(name.startswith(prefix) for name in state)]
    return max(shared, key=lambda prefix: len(own.keys() & translate(_below(state, prefix)).keys()))


def _below(state: State, prefix: str) -> State:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _tops(state: State) -> list[str]:
    """Return what names begin with, up to their first dot."""
    return list(dict.fromkeys(name.partition(".")[0] for name in state))


def _fixes(model: nn.Module, state: dict[str, Tensor], own: dict[str, Tensor], misshaped: list[str]) -> list[str]:
    """Return the options with which all tensors of another shape would fit; empty where there are none."""
    places = _positions(model)
    positions = [places] if places in misshaped and _resizable(model, state, own) else []
    others = [name for name in misshaped if name != places]
    heads = [count for name in others if (count := _other_classes(model, state[name], own[name]))]
    classes = set(heads)
    if len(positions) + len(heads) < len(misshaped) or len(classes) > 1:
        return []
    return [f"give num_classes={n} (--set model.num_classes={n})" for n in classes] + [
        "give --resize-positions" for _ in positions
    ]


def _other_classes(model: nn.Module, value: Tensor, own: Tensor) -> int | None:
    """Return the number of classes of a tensor, if this is all that differs from the model's own; else None."""
    differing = [i for i, (old, new) in enumerate(zip(value.shape, own.shape, strict=False)) if old != new]
    if value.ndim != own.ndim or len(differing) != 1:
        return None
    (place,) = differing
    return value.shape[place] if own.shape[place] == getattr(model, "num_classes", None) else None


def _positions(model: nn.Module) -> str:
    return f"encoder.{_POSITIONS}" if hasattr(model, "encoder") else _POSITIONS


def _resizable(model: nn.Module, state: dict[str, Tensor], own: dict[str, Tensor]) -> bool:
    """Tell whether the position embeddings differ only in the side of their square grid of patches."""
    places = _positions(model)
    model = getattr(model, "encoder", model)
    if places not in state or places not in own or not hasattr(model, "patch_embed"):
        return False
    old, new, prefix = state[places], own[places], _prefix_tokens(model)
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
        path: of the file. It is replaced only when the new one is complete.
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
