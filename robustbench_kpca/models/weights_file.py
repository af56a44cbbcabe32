"""Read weights from a file or a hub, without running code in them: the state dict, or the one entry that is one."""

import argparse
import os
import pickle
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from safetensors.torch import load_file
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca.models.bundle import WITHIN, split_entry
from robustbench_kpca.models.hub import silent_hub

HUB = "hf-hub:"
_SHOWN = 8
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
State: TypeAlias = dict[str, Tensor]
"""Tensors by name."""


class Weights(NamedTuple):
    """A state dict, and the entry of the file that it was found in; empty where no entry was searched for."""

    state: State
    entry: str = ""


def read_state(checkpoint: Path | str) -> Weights:
    """Read a state dict from safetensors, from a torch file under `weights_only=True`, or from `hf-hub:OWNER/NAME`.

    A torch file may hold the state dict itself, or a dictionary with one entry that is a state dict. Where there are
    several, `FILE::KEY` names one. A key is also what stands before the first dots of names: `FILE::teacher::backbone`.
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
    """Return the entry of a key, or the tensors whose names begin with the key."""
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
