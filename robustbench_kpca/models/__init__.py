"""The models of the benchmark. They map images in [0, 1] to logits."""

from robustbench_kpca.models.build import create_model
from robustbench_kpca.models.families import ARCHITECTURES
from robustbench_kpca.models.loading import bundled, load_model
from robustbench_kpca.models.placement import place
from robustbench_kpca.models.registration import register_with_timm

__all__ = ["ARCHITECTURES", "bundled", "create_model", "load_model", "place"]

register_with_timm()
