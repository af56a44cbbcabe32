"""The models of the benchmark. They map images in [0, 1] to logits.

Names are imported on first use: the table of architectures needs no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustbench_kpca.models.build import create_model
    from robustbench_kpca.models.bundle import bundled
    from robustbench_kpca.models.families import ARCHITECTURES
    from robustbench_kpca.models.loading import load_model
    from robustbench_kpca.models.placement import place

__all__ = ["ARCHITECTURES", "bundled", "create_model", "load_model", "place"]

_MODULES = {
    "ARCHITECTURES": "families",
    "bundled": "bundle",
    "create_model": "build",
    "load_model": "loading",
    "place": "placement",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
