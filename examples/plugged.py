"""A trained ViT for CIFAR-10 with another attention in its layers, without training it again.

A model file for `rbk eval -m examples/plugged.py:cifar10_vit`; `--set model.attention=pro` chooses the attention, and
further options are its own. The weights are those of a timm ViT of four layers in RBK_DATA/models.
"""

import os
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from robustbench_kpca import place

WEIGHTS = Path(os.environ.get("RBK_DATA", ".")) / "models" / "cifar10_vit_d64_p4_l4_h4.safetensors"


def cifar10_vit(attention: str = "softmax", layers: str = "all", **options: Any) -> nn.Module:
    """Return the network; its images are in [0, 1] and not normalised."""
    shape = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4, "num_classes": 10}
    model = VisionTransformer(**shape, norm_layer=nn.LayerNorm)  # type: ignore[arg-type]
    model.load_state_dict(load_file(WEIGHTS))
    return place(model, attention, layers, **options)
