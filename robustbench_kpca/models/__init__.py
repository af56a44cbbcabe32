"""Every model of the benchmark: images in [0, 1] in, logits out; built, loaded and identified here."""

from robustbench_kpca.models.loading import bundled, load_model, model_info
from robustbench_kpca.models.vit import ARCHITECTURES, create_model

__all__ = ["ARCHITECTURES", "bundled", "create_model", "load_model", "model_info"]
