"""Unfinished samples as a journal stores them: without their clean images, and no tensor twice.

Clean images are read from the data set again. A tensor that is equal to it bit for bit, as the best image is before the
first step, is stored as a mark; one that is equal to an earlier tensor of the same sample shares its storage, which
`torch.save` writes once.
"""

from typing import Any

import torch
from torch import Tensor

CLEAN = "saved.clean"
"""The only key of a mark: {CLEAN: shape}, in place of the clean image."""
_FEW = 64  # numbers of a tensor that is not worth a comparison

Seen = dict[tuple[torch.dtype, int], list[Tensor]]


def packed(content: Any, clean: Tensor, earlier: Seen | None = None) -> Any:
    """Return dictionaries, lists and tuples of values and tensors with marks for the clean image.

    Args:
        content: content of one sample.
        clean: its clean image.
        earlier: the tensors of this sample before this one.
    """
    earlier = {} if earlier is None else earlier
    if isinstance(content, dict):
        return {key: packed(value, clean, earlier) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return type(content)(packed(value, clean, earlier) for value in content)
    if not isinstance(content, Tensor) or content.numel() < _FEW:
        return content
    if _same(content, clean):
        return {CLEAN: list(content.shape)}
    candidates = earlier.setdefault((content.dtype, content.numel()), [])
    for other in candidates:
        if _same(content, other):
            return other.view(content.shape)
    candidates.append(content.contiguous())
    return candidates[-1]


def unpacked(content: Any, clean: Tensor) -> Any:
    """Return what `packed` was given; every tensor has a storage of its own."""
    if isinstance(content, dict):
        if list(content) == [CLEAN]:
            return clean.clone().view(content[CLEAN])
        return {key: unpacked(value, clean) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return type(content)(unpacked(value, clean) for value in content)
    return content.clone() if isinstance(content, Tensor) else content


def _same(tensor: Tensor, other: Tensor) -> bool:
    """Compare bits: 0 and −0 differ, a NaN equals itself."""
    if tensor.dtype != other.dtype or tensor.numel() != other.numel() or tensor.device != other.device:
        return False
    first_bits, other_bits = (part.contiguous().view(-1).view(torch.uint8) for part in (tensor, other))
    return torch.equal(first_bits, other_bits)
