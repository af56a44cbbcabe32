"""`ablated:NAME`: votes of NAME on bands or blocks of the image, all else hidden; patches are certified.

`--set model.band=4` or `model.block=12`; `model.stride`: the distance between views; `model.fill`: the hidden shade.
`model.drop=true`: a vision transformer is shown the tokens that have a visible pixel, and its class token, only.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models.certified import Viewed, base_of
from robustbench_kpca.records.proof import Bands, Blocks, Proof
from robustbench_kpca.types import Images, Logits


class Ablated(Viewed):
    """See `records.proof.Bands` and `Blocks`; for dropped tokens, Salman et al. (2022), arXiv:2110.07719.

    Args:
        base: the model that votes.
        proof: `Bands` or `Blocks`. What a vote depends on is visible with and without `drop`, so both prove the same.

    Raises:
        BadInputError: `drop` for a model of which `transformer_in` knows no tokens.
    """

    def __init__(self, base: nn.Module, proof: Proof) -> None:
        super().__init__(base, proof)
        if self.config.get("drop"):
            transformer_in(base)

    def views(self, height: int, width: int) -> Iterator[Tensor]:
        """Yield the bands, or the blocks row by row."""
        rows = [torch.ones(height, dtype=torch.bool)] if isinstance(self.proof, Bands) else self._windows(height)
        for row in rows:
            for column in self._windows(width):
                yield row[:, None] & column

    def look(self, x: Images, seen: Tensor) -> Logits:
        """Return the base model's logits of the pixels of a mask.

        With `drop`, tokens keep their position embeddings, and those without such a pixel never reach the first block.

        Raises:
            BadInputError: the transformer makes other tokens than the patches of these images.
        """
        if not self.config.get("drop"):
            return super().look(x, seen)
        transformer = transformer_in(self.base)
        patches = F.max_pool2d(seen[None].float(), transformer.patch_embed.patch_size).flatten() > 0
        kept = torch.cat([patches.new_ones(transformer.num_prefix_tokens), patches])

        def select(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
            if given[0].shape[1] != len(kept):
                raise BadInputError(
                    f"drop = true for a transformer of {given[0].shape[1]} tokens on images of {len(kept)}",
                    expected="a model that does not resize its images",
                )
            return (given[0][:, kept.to(given[0].device)],)

        handle = transformer.blocks[0].register_forward_pre_hook(select)
        try:
            return super().look(x, seen)
        finally:
            handle.remove()

    def _windows(self, length: int) -> list[Tensor]:
        """Return which pixels of an axis each view shows; the last views wrap round."""
        assert isinstance(self.proof, Bands | Blocks)
        side, stride = self.proof.band if isinstance(self.proof, Bands) else self.proof.block, self.proof.stride
        if side > length or length % stride:
            raise BadInputError(
                f"windows of {side} pixels at stride {stride} on {length}",
                expected="windows no longer than the image, whose side is a multiple of the stride",
            )
        places = torch.arange(length)
        return [(places - start) % length < side for start in range(0, length, stride)]


def transformer_in(model: nn.Module) -> Any:
    """Return the vision transformer inside of a model: this package's `ViT`, or timm's `VisionTransformer`.

    Its blocks are a sequence, so that tokens are all that they are given: no grid, and no positions but those added.

    Raises:
        BadInputError: there is none, or there are several.
    """
    inside: list[Any] = [
        part
        for part in model.modules()
        if isinstance(getattr(part, "blocks", None), nn.Sequential)
        and all(isinstance(getattr(part, name, None), nn.Parameter) for name in ("cls_token", "pos_embed"))
        and hasattr(getattr(part, "patch_embed", None), "patch_size")
    ]
    if len(inside) != 1:
        raise BadInputError(
            f"drop = true for a model with {len(inside)} vision transformers inside",
            expected="one `ViT` of this package or one `VisionTransformer` of timm",
            fix="leave model.drop out",
        )
    return inside[0]


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
    return Ablated(*base_of(name, pretrained, options, {"band": Bands, "block": Blocks}))
