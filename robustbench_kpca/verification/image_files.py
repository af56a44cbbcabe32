"""Files of adversarial images that others found, and whether they are those of some clean images.

A `.npz` holds some images and names the sample of each. Any other file is one tensor of all, in the order of the
samples, as RobustBench asks for it; where an attack failed, it holds any image of the set, such as the clean one.
"""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError, UnfitError, reason_of
from robustbench_kpca._core.files import read_file, sha256
from robustbench_kpca._engine.attack_loop.sets import set_of
from robustbench_kpca.attacks.shared.ball import furthest
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.records.images import LIMIT
from robustbench_kpca.types import Images

MOST = LIMIT // 2
"""Bytes of a file, unpacked: a record keeps these images and the clean ones."""


class Found(NamedTuple):
    """Images of a file, the names of their samples (None: all samples, in order), and the SHA-256 of the file."""

    images: Tensor
    samples: tuple[str, ...] | None
    sha256: str


def read_images(file: Path) -> Found:
    """Read images without running code.

    Args:
        file: `.npz` with the arrays `samples`, the names of k samples, and `attacked`, k images; or `.npy`,
            `.safetensors` or a file of `torch.save` with one tensor. At most `MOST` bytes.

    Raises:
        BadInputError: it cannot be read, is larger, or holds something else than images of float32, or of uint8 in an
            `.npz`, where 255 is 1.
    """
    content = read_file(file, "file of images", MOST)
    names = None
    try:
        if zipfile.is_zipfile(io.BytesIO(content)):
            _require_small(content)
        if file.suffix == ".npz":
            tensor, names = _named(content)
        else:
            tensor = _tensor(content, file.suffix)
    except Exception as error:  # noqa: BLE001 (a damaged file can fail anywhere in its reader)
        raise BadInputError(
            f"{file} holds no images ({reason_of(error)})",
            expected="one tensor: .npy, .safetensors or torch.save; or an .npz with the arrays samples and attacked",
        ) from None
    dense = isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta
    if not dense or tensor.dtype != torch.float32:
        kind = str(tensor.dtype).removeprefix("torch.") if isinstance(tensor, Tensor) else type(tensor).__name__
        raise BadInputError(f"{file} holds {kind}", expected="one dense tensor of float32")
    return Found(tensor.detach(), names, sha256(content))


def _require_small(content: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(member.file_size for member in archive.infolist()) > MOST:
            raise UnfitError("larger than its limit")


def _named(content: bytes) -> tuple[Tensor, tuple[str, ...]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        samples, attacked = arrays["samples"], arrays["attacked"]
    if samples.ndim != 1 or samples.dtype.kind != "U":
        raise UnfitError(f"samples are {samples.dtype} of shape {samples.shape}, not a list of names")
    images = torch.from_numpy(attacked)
    return images.float() / 255 if images.dtype == torch.uint8 else images, tuple(samples.tolist())


def _tensor(content: bytes, suffix: str) -> Any:
    if suffix == ".npy":
        return torch.from_numpy(np.load(io.BytesIO(content), allow_pickle=False))
    if suffix == ".safetensors":
        [tensor] = load_safetensors(content).values()
        return tensor
    return torch.load(io.BytesIO(content), "cpu", weights_only=True)


def places_of(samples: Sequence[str] | None, ids: Sequence[str]) -> list[int]:
    """Return the places of named samples among all; of all where none is named.

    Raises:
        BadInputError: a name that is no sample's, or one that stands there twice.
    """
    if samples is None:
        return list(range(len(ids)))
    if not samples:
        raise BadInputError("a file without images", expected="at least one")
    known = {name: place for place, name in enumerate(ids)}
    if unknown := [name for name in samples if name not in known]:
        raise BadInputError(
            f"{len(unknown)} of {len(samples)} images are of samples such as {unknown[0][:40]!r}",
            expected=f"samples of the record, such as '{ids[0]}'",
        )
    if len(set(samples)) != len(samples):
        twice = next(name for name in samples if samples.count(name) > 1)
        raise BadInputError(f"sample '{twice}' has several images", expected="one image of a sample")
    return [known[name] for name in samples]


def require_fit(images: Tensor, clean: Images, ids: Sequence[str], threat: Threat) -> None:
    """Refuse images that are not the clean ones, in their order, changed within the perturbation set.

    Raises:
        BadInputError: another shape; NaN or a value outside [0, 1]; an image too far from its clean one. Where it is
            near another clean image, the order is wrong.
    """
    if images.shape != clean.shape:
        raise BadInputError(
            f"images of shape {tuple(images.shape)}", expected=f"{tuple(clean.shape)}, as the clean samples"
        )
    valid = ((images >= 0) & (images <= 1)).flatten(1).all(1)
    if not bool(valid.all()):
        name = ids[int((~valid).int().argmax())]
        raise BadInputError(f"the image of sample '{name}' has values outside [0, 1] or NaN", expected="[0, 1]")
    allowed = set_of(threat if threat.counted else replace(threat, eps=furthest(threat.eps)))
    beyond = allowed.beyond(images, clean)
    if not bool(beyond.any()):
        return
    at = int(beyond.int().argmax())
    fitting = ~allowed.beyond(images[at].expand_as(clean), clean)
    if bool(fitting.any()):
        other = ids[int(fitting.int().argmax())]
        raise BadInputError(f"the image of sample '{ids[at]}' is one of '{other}'", expected="the order of the samples")
    raise BadInputError(
        f"the image of sample '{ids[at]}' is too far from the clean one ({int(beyond.sum())} are)",
        expected=str(threat),
    )
