"""The trained models that come with the package, and what their files say about them; no torch."""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from robustbench_kpca._core.errors import BadInputError, UnfitError, reason_of

VOCABULARY = "vocabulary_sha256"
"""Entry of the header of weights: the digest of the words that tokens were the numbers of."""
WEIGHTS = Path(__file__).parent / "weights"
WITHIN = "::"
"""Stands between the file of weights and the entry that is meant: `c.pth::model_ema`."""

_TYPES = {"F32": ("float32", "float32"), "F16": ("float16", "float32"), "I64": ("int64", "int64")}
"""Types of tensors, as safetensors calls them -> in the file, and in the model."""


@cache
def bundled() -> Mapping[str, Path]:
    """Return name -> weights of every trained model in the package."""
    return {path.stem: path for path in sorted(WEIGHTS.glob("*.safetensors"))}


def split_entry(checkpoint: Path | str) -> tuple[str, list[str]]:
    """Return the file of `FILE::KEY::KEY`, or the name on a hub, and the keys; none where the whole file is meant."""
    file, *keys = str(checkpoint).split(WITHIN)
    return file, keys


@cache
def parameters_of(name: str) -> str:
    """Return the digest of the bundled weights of a model, as `checkpoint.state_sha256` computes it; "" without any."""
    if name not in bundled():
        return ""
    content = bundled()[name].read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = json.loads(content[8:start])
    del tensors["__metadata__"]
    digest = hashlib.sha256()
    for tensor, header in sorted(tensors.items()):
        first, last = (start + end for end in header["data_offsets"])
        stored, loaded = _TYPES[header["dtype"]]
        values = np.frombuffer(content[first:last], stored).astype(loaded)
        digest.update(f"{tensor}:torch.{loaded}:{tuple(header['shape'])}".encode() + values.tobytes())
    return digest.hexdigest()


def attention_of(checkpoint: Path | str) -> str | None:
    """Return the attention that a training put in place of the architecture's own; None where the file names none."""
    path = Path(split_entry(checkpoint)[0])
    header = read_header(path) if path.suffix == ".safetensors" and path.is_file() else {}
    try:
        attention: str | None = json.loads(header.get("config", "{}")).get("attention")
    except (ValueError, AttributeError, RecursionError):  # not a configuration of this package
        return None
    return attention


def vocabulary_of(checkpoint: Path | str) -> str | None:
    """Return the digest of the words that weights were trained with, None where their file does not say it."""
    path = Path(split_entry(checkpoint)[0])
    return read_header(path).get(VOCABULARY) if path.suffix == ".safetensors" and path.is_file() else None


def read_header(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file without reading its tensors.

    Raises:
        BadInputError: the file cannot be read, or is no safetensors file.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size:
                raise UnfitError("its head is longer than the file")
            metadata: dict[str, str] = json.loads(file.read(size)).get("__metadata__", {})
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise BadInputError(
            f"{path} is damaged ({reason_of(error)})", expected="weights in a safetensors file"
        ) from None
    return metadata
