"""Adversarial images kept beside a record, with which anyone repeats its verdicts by forward passes alone. No torch."""

import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from robustbench_kpca._core.errors import BadInputError, UnfitError, reason_of
from robustbench_kpca._core.files import read_file, safe_file, sha256
from robustbench_kpca._core.strict import STRICT

LIMIT = 2**29  # bytes of images of one record, before compression
SUFFIX = ".images.npz"
DAMAGE = (OSError, ValueError, KeyError, EOFError, TypeError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What zipfile and numpy raise; of RuntimeError: encrypted members, and versions and methods of zip not implemented."""


class ImagesFile(BaseModel):
    """The file of images beside a record; `sha256` is of the file, `samples` how many samples it holds."""

    model_config = STRICT
    file: str
    sha256: str
    samples: int = Field(ge=1)


@dataclass(frozen=True)
class KeptImages:
    """Images of some samples, in pixel space, shape (samples, channels, height, width).

    samples: their ids.
    clean: what the attacks started from: uint8 where every value is a multiple of 1/255 in single precision, else
        float32.
    attacked: the image that decided the outcome, stored like `clean`; so both are exact.
    """

    samples: tuple[str, ...]
    clean: NDArray[Any]
    attacked: NDArray[Any]

    @classmethod
    def of(cls, samples: tuple[str, ...], clean: NDArray[np.float32], attacked: NDArray[np.float32]) -> "KeptImages":
        """Keep images given as single-precision numbers, without loss."""
        return cls(samples, _exact(clean), _exact(attacked))

    def floats(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return clean and attacked images as the model was shown them."""
        return _float(self.clean), _float(self.attacked)

    @classmethod
    def joined(cls, parts: Sequence["KeptImages"]) -> "KeptImages":
        """Join the images of parts of a record, in their order."""
        clean, attacked = (np.concatenate(arrays) for arrays in zip(*(part.floats() for part in parts), strict=True))
        return cls.of(tuple(name for part in parts for name in part.samples), clean, attacked)

    @classmethod
    def read(cls, content: bytes) -> "KeptImages":
        """Read the bytes of a file; raises any of `DAMAGE`."""
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > LIMIT + 2**20:
                raise UnfitError("larger than its limit")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            samples, clean, attacked = (arrays[name] for name in ("samples", "clean", "attacked"))
        return cls(tuple(samples.tolist()), clean, attacked)

    def to_file(self) -> bytes:
        """Return the bytes of the file: a compressed npz without time stamps."""
        buffer = io.BytesIO()
        arrays = {"samples": np.array(self.samples), "clean": self.clean, "attacked": self.attacked}
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    def describe(self, stem: str, content: bytes) -> ImagesFile:
        """Describe the file of a record with this stem; its name holds the first digits of its hash."""
        digest = sha256(content)
        return ImagesFile(file=f"{stem}.{digest[:12]}{SUFFIX}", sha256=digest, samples=len(self.samples))


def load_images(folder: Path, stated: ImagesFile) -> KeptImages:
    """Read the images beside a record, and check that they are those that the record was made with.

    Raises:
        BadInputError: missing, altered, damaged, or larger than any file this package writes.
    """
    path = folder / safe_file(stated.file)
    content = read_file(path, "file of images", LIMIT)
    if sha256(content) != stated.sha256:
        raise BadInputError(f"{path} is not the file its record was made with (SHA-256 differs)", fix="restore it")
    try:
        images = KeptImages.read(content)
        number, shape = len(images.samples), images.clean.shape
        if len(shape) != 4 or images.attacked.shape != shape or not number == shape[0] == stated.samples:
            raise UnfitError("shapes do not fit")
    except DAMAGE as error:
        raise BadInputError(f"{path} holds no images ({reason_of(error)})", fix="evaluate again") from None
    return images


def _exact(images: NDArray[np.float32]) -> NDArray[Any]:
    levels = np.rint(images * np.float32(255))
    if ((levels < 0) | (levels > 255)).any():
        return images
    whole = levels.astype(np.uint8)
    return whole if np.array_equal(_float(whole), images) else images


def _float(images: NDArray[Any]) -> NDArray[np.float32]:
    return images.astype(np.float32) / np.float32(255) if images.dtype == np.uint8 else images.astype(np.float32)
