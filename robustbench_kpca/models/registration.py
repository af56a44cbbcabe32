"""Make the architectures known to timm, so that `timm.create_model` builds them."""

from collections.abc import Callable
from typing import Any

import timm
import timm.models

from robustbench_kpca.models.build import create_model
from robustbench_kpca.models.families import ARCHITECTURES
from robustbench_kpca.models.loading import load_model


def register_with_timm() -> None:
    """Let `timm.create_model` build every architecture whose name timm does not use already.

    `pretrained=True` gives the weights that come with the package. Where there are none, it is an error.
    """
    for name in ARCHITECTURES:
        if not timm.is_model(name):
            timm.models.register_model(_entry_point(name))


def _entry_point(name: str) -> Callable[..., Any]:
    def build(pretrained: bool = False, **options: Any) -> Any:
        for unused in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):  # where timm would look for weights
            options.pop(unused, None)
        return load_model(name, **options) if pretrained else create_model(name, **options)

    build.__name__ = name
    build.__module__ = __name__
    return build
