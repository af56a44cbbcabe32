"""Every model of the benchmark: images in [0, 1] in, logits out; built, loaded and identified here."""

from robustbench_kpca.models.build import ARCHITECTURES, create_model, place, register_with_timm
from robustbench_kpca.models.loading import bundled, load_model, model_info

__all__ = ["ARCHITECTURES", "bundled", "create_model", "load_model", "model_info", "place"]

register_with_timm()
