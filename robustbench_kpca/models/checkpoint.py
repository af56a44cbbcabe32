"""Checkpoints are read without running their code, loaded strictly, and identified by their tensors."""

import hashlib
import json
import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.files import write_atomic

_WRAPPERS = ("model", "state_dict")


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a state dict from safetensors, or from a torch file under `weights_only=True`.

    `{"model": ...}` and `{"state_dict": ...}` are unwrapped.

    Raises:
        BadInputError: missing, truncated, or not a state dict.

    """
    if not path.is_file():
        raise BadInputError(f"no checkpoint at {path}", fix="check the path")
    try:
        with warnings.catch_warnings(action="ignore"):
            read: Any = load_file if path.suffix == ".safetensors" else partial(torch.load, weights_only=True)
            state: Any = read(path, "cpu")
    except pickle.UnpicklingError as error:
        raise BadInputError(
            f"checkpoint {path} is no plain state dict ({_brief(error)})",
            expected="tensors only; nothing else is unpickled",
            fix="save it as safetensors",
        ) from None
    except Exception as error:  # noqa: BLE001 (a damaged file can fail anywhere in its reader)
        raise BadInputError(
            f"checkpoint {path} is truncated or damaged ({_brief(error)})", fix="copy it again"
        ) from None
    for wrapper in _WRAPPERS:
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not state or not all(_is_entry(*entry) for entry in state.items()):
        raise BadInputError(f"checkpoint {path} holds no state dict", expected="a mapping from names to tensors")
    return state


def _is_entry(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, Tensor) and value.layout is torch.strided


def read_header(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file without reading its tensors."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        metadata: dict[str, str] = json.loads(file.read(size)).get("__metadata__", {})
    return metadata


def load_strictly(model: nn.Module, state: dict[str, Tensor], where: str) -> None:
    """Load every tensor and leave none over; floating types are cast to the model's.

    Raises:
        BadInputError: names of what is missing, unexpected or of another shape; the model is left as it was.

    """
    own = model.state_dict()
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    misshaped = [
        f"{name} {tuple(state[name].shape)} for {tuple(value.shape)}"
        for name, value in own.items()
        if name in state and state[name].shape != value.shape
    ]
    problems = [
        f"{len(names)} {kind} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("mis-shaped", misshaped))
        if names
    ]
    if problems:
        raise BadInputError(
            f"{where} does not fit {type(model).__name__}: {', '.join(problems)}",
            fix="name the architecture and options it was trained with",
        )
    model.load_state_dict(state)


def save_checkpoint(path: Path, model: nn.Module, metadata: dict[str, str]) -> None:
    """Write the parameters and persistent buffers with `metadata` as safetensors, whole or not at all."""
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    write_atomic(path, save(state, metadata))


def parameters_sha256(model: nn.Module) -> str:
    """Hash names, types, shapes and values of the state dict: the same weights, whatever file they came from."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _brief(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:80]
