"""Run a model on images block by block, and return the tensors of its attention layers as `Layer`s, after a check.

Hooks see modules, not the code of the forward pass. So on every block each layer's output is recomputed from the
tensors read, and a model whose output differs is refused.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention.identity import IdentityAttention
from robustbench_kpca.attention.rpc import Pursuit
from robustbench_kpca.attention.rpc_asymmetric import AsymmetricRPCAttention
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.sources import Block, ImageSource
from robustbench_kpca.study.diagnostics.taps import Reading, Tap, call, listening
from robustbench_kpca.tasks import TASKS, task_named
from robustbench_kpca.types import Images

Visit = Callable[[Iterator[Layer], str], None]
"""Called with an iterator over the layers for a block of images that serve as each other's null model, and its name."""

OUTPUT_TOLERANCE = 1e-2
"""Largest relative difference between a layer's output and the recomputed one; bf16 has a precision of 4e-3."""


def show(
    model: nn.Module,
    taps: Sequence[Tap],
    source: ImageSource,
    visit: Visit,
    *,
    block: int,
    seed: int,
    device: str = "cpu",
) -> Tensor:
    """Run a model on all images; return its output on the first block.

    Raises:
        BadInputError: the model cannot be run on them, or its outputs differ from the recomputed ones.
    """
    probe: Tensor | None = None
    with listening(taps) as readings, torch.random.fork_rng():
        torch.manual_seed(seed)  # for attention that draws noise
        model.to(device)
        for number, part in enumerate(source.blocks(block)):
            out = call(model, _filled(part.images, block).to(device))[: len(part.ids)]
            read = readings()
            if probe is None:
                probe = out
                _require_answers(model, out, part, source.info().task)
            for tap, reading in zip(taps, read, strict=True):
                _require_same_output(tap, reading, block)
            pairs = zip(taps, read, strict=True)
            visit((_layer(*pair, part, seed) for pair in pairs), f"{number}/0")
    assert probe is not None
    return probe


def _require_answers(model: nn.Module, out: Tensor, block: Block, task: str) -> None:
    """Refuse answers that samples of this task cannot have, such as those of a segmenter to images of one label."""
    if task in TASKS.names():
        task_named(task).compute.presentation(model, "clean").require(out, block.images)


def _layer(tap: Tap, reading: Reading, block: Block, seed: int) -> Layer:
    rows, heads = len(block.ids), tuple(range(reading.k.shape[1]))
    q, k, v, h = (None if x is None else x[:rows].double() for x in (reading.q, reading.k, reading.v, reading.h))
    assert q is not None
    assert k is not None
    if not all(bool(torch.isfinite(x).all()) for x in (q, k, v, h) if x is not None):
        raise BadInputError(f"NaN or infinite values in attention layer {tap.index} ({tap.name})")
    x = reading.x[:rows]
    return Layer(tap.index, tap.name, tap.module, x, q=q, k=k, v=v, h=h, heads=heads, ids=block.ids, seed=seed)


def _require_same_output(tap: Tap, reading: Reading, size: int) -> None:
    where = f"attention layer {tap.index} ({tap.name}, {type(tap.module).__name__})"
    if len(reading.k) != size:
        raise BadInputError(
            f"{where} was given {len(reading.k)} rows for {size} images",
            expected="one row per image",
            fix="diagnose the network itself, without a wrapper that repeats, flips or crops images",
        )
    recomputed, h = _recomputed(tap.module, reading), reading.h
    if recomputed is None or h is None:
        return
    finite = bool(torch.isfinite(h).all() and torch.isfinite(recomputed).all())  # NaN: reported by `_layer`
    if finite and float((recomputed.float() - h.float()).norm()) > OUTPUT_TOLERANCE * float(h.float().norm()):
        raise BadInputError(
            f"{where} has outputs that differ from those of its q, k and v",
            expected="softmax(q k^T / sqrt(D)) v, or its pursuit",
            fix="this class has its own forward pass and cannot be read",
        )


def _recomputed(module: nn.Module, reading: Reading) -> Tensor | None:
    """Recompute a layer's output from q, k and v; None for attention without values."""
    q, k, v = reading.q, reading.k, reading.v
    if v is None:
        return None
    if isinstance(module, IdentityAttention):
        return v
    pursuit = getattr(module, "pursuit", None)
    with torch.no_grad():
        if isinstance(pursuit, Pursuit):
            queries = q if isinstance(module, AsymmetricRPCAttention) else None
            return pursuit(k, v, queries)
        recomputed: Tensor = F.scaled_dot_product_attention(q, k, v)
    return recomputed


def _filled(images: Images, size: int) -> Float[Tensor, "{size} channel height width"]:
    """Repeat the last image until the block is full, so that the model always runs at one batch size."""
    return torch.cat([images, images[-1:].expand(size - len(images), *images.shape[1:])])
