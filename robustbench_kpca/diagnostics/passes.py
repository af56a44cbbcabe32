"""A model is shown its data block by block, and what its attention layers showed comes out checked, as `Layer`s.

Hooks see modules, not the model's own forward pass. So on the first block what they read is put together again, and a
model of which it does not give what the layer put out is refused rather than misread.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attention.identity import IdentityAttention
from robustbench_kpca.attention.rpc import Pursuit
from robustbench_kpca.attention.rpc_asymmetric import AsymmetricRPCAttention
from robustbench_kpca.diagnostics.layer import Layer
from robustbench_kpca.diagnostics.sources import Block, Source
from robustbench_kpca.diagnostics.taps import Reading, Tap, call, listening
from robustbench_kpca.errors import BadInputError

Visit = Callable[[Iterator[Layer], str], None]
"""Called with what the layers showed, one by one, on images that are each other's null, and the name of that group."""

APART = 1e-2
"""Distance of a layer's output from what was read, relative to it, from which on it is another's: bf16 keeps 4e-3."""


def show(
    model: nn.Module,
    taps: Sequence[Tap],
    source: Source,
    visit: Visit,
    *,
    block: int,
    seed: int,
    heads: Sequence[int] | None = None,
    device: str = "cpu",
) -> Tensor:
    """Run a model on all blocks of a source; return its output on the first.

    Raises:
        BadInputError: the model cannot be run on them, has no such heads, or is not what its hooks say.

    """
    probe: Tensor | None = None
    with listening(taps) as readings, torch.random.fork_rng():
        torch.manual_seed(seed)  # for attention that draws noise
        model.to(device)
        for number, part in enumerate(source.blocks(block)):
            out = call(model, _filled(part, block, device))[: len(part.ids)]
            found = readings()
            if probe is None:
                probe = out
                for tap, reading in zip(taps, found, strict=True):
                    _require_read_rightly(tap, reading, part, block)
            for group, rows in enumerate(_equally_long(part)):
                pairs = zip(taps, found, strict=True)
                visit((_layer(*pair, part, rows, heads, seed) for pair in pairs), f"{number}/{group}")
    assert probe is not None
    return probe


def _layer(tap: Tap, reading: Reading, block: Block, rows: list[int], asked: Sequence[int] | None, seed: int) -> Layer:
    there = reading.k.shape[1]
    heads = tuple(range(there)) if asked is None else tuple(sorted(set(asked)))
    if not heads or not 0 <= heads[0] <= heads[-1] < there:
        raise BadInputError(f"heads {heads} of {there}", expected="numbers from 0")
    kept = slice(None) if block.kept is None else block.kept[rows[0]]

    def part(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[rows][:, list(heads)][:, :, kept].double()

    q, k, v, h = (part(x) for x in (reading.q, reading.k, reading.v, reading.h))
    assert q is not None
    assert k is not None
    if not all(bool(torch.isfinite(x).all()) for x in (q, k, v, h) if x is not None):
        raise BadInputError(f"numbers that are not finite in attention layer {tap.index} ({tap.name})")
    ids = tuple(block.ids[row] for row in rows)
    return Layer(tap.index, tap.name, tap.module, reading.x[rows][:, kept], q, k, v, h, heads, ids, seed)


def _require_read_rightly(tap: Tap, reading: Reading, block: Block, size: int) -> None:
    where = f"attention layer {tap.index} ({tap.name}, {type(tap.module).__name__})"
    if len(reading.k) != size:
        raise BadInputError(
            f"{where} was given {len(reading.k)} rows for {size} images", expected="one row an image",
            fix="diagnose the network itself, without what repeats, flips or cuts images",
        )  # fmt: skip
    made = _made_again(tap.module, reading, block)
    if made is None or reading.h is None:
        return
    h = reading.h
    if block.kept is not None:  # what padding makes of its own is nobody's
        rows = len(block.kept)
        there = block.kept.to(h.device)[:, None, :, None]
        made, h = made[:rows] * there, h[:rows] * there
    finite = bool(torch.isfinite(h).all()) and bool(torch.isfinite(made).all())  # else it is told elsewhere, in words
    if finite and float((made.float() - h.float()).norm()) > APART * float(h.float().norm()):
        raise BadInputError(
            f"{where} does not put out what its q, k and v say", expected="softmax(q k^T / sqrt(D)) v, or its pursuit",
            fix="a class with a forward pass of its own cannot be read",
        )  # fmt: skip


def _made_again(module: nn.Module, reading: Reading, block: Block) -> Tensor | None:
    """Return what a layer should have put out; None of attention without values."""
    q, k, v = reading.q, reading.k, reading.v
    if v is None:
        return None
    if isinstance(module, IdentityAttention):
        return v
    pursuit = getattr(module, "pursuit", None)
    with torch.no_grad():
        if isinstance(pursuit, Pursuit):
            return pursuit(k, v, q if isinstance(module, AsymmetricRPCAttention) else None)
        kept = None if block.kept is None else _repeat_last(block.kept, len(k)).to(k.device)[:, None, None, :]
        made: Tensor = F.scaled_dot_product_attention(q, k, v, attn_mask=kept)
    return made


def _equally_long(block: Block) -> Iterator[list[int]]:
    """Yield the rows of a block that have their tokens in the same places: only they can be each other's null."""
    if block.kept is None:
        yield list(range(len(block.ids)))
        return
    groups: dict[tuple[bool, ...], list[int]] = {}
    for row, kept in enumerate(block.kept.tolist()):
        groups.setdefault(tuple(kept), []).append(row)
    yield from groups.values()


def _filled(block: Block, size: int, device: str) -> Tensor | dict[str, Tensor]:
    """Repeat the last input until the block is full: a model runs at one batch size."""
    if isinstance(block.inputs, Tensor):
        return _repeat_last(block.inputs, size).to(device)
    return {name: _repeat_last(part, size).to(device) for name, part in block.inputs.items()}


def _repeat_last(x: Tensor, size: int) -> Tensor:
    return torch.cat([x, x[-1:].expand(size - len(x), *x.shape[1:])])
