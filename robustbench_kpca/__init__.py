"""The adversarial-robustness benchmark for kernel-machine attention: the public API.

Names are imported on first use, so that importing the package does not import torch.
"""

import importlib

TYPE_CHECKING = False  # importing `typing` takes longer than all else here, and Ctrl-C meanwhile is a traceback
if TYPE_CHECKING:
    from typing import Any

    from robustbench_kpca._core.errors import BenchmarkError
    from robustbench_kpca.attacks.shared.functions import one_gradient, whole_attack
    from robustbench_kpca.attention.shared.heads import MultiHeadAttention
    from robustbench_kpca.corruptions import corrupt
    from robustbench_kpca.corruptions.shared.functions import corruption
    from robustbench_kpca.data.load import load_data
    from robustbench_kpca.evaluation.api import AttackResult, attack, evaluate
    from robustbench_kpca.metrics.shared.metric import metric
    from robustbench_kpca.models import create_model, load_model, place
    from robustbench_kpca.records.collection import Records, load_records
    from robustbench_kpca.records.estimate import Estimate
    from robustbench_kpca.records.record import Record, load_record
    from robustbench_kpca.training.objective import perturb

__all__ = [
    "AttackResult",
    "BenchmarkError",
    "Estimate",
    "MultiHeadAttention",
    "Record",
    "Records",
    "attack",
    "corrupt",
    "corruption",
    "create_model",
    "evaluate",
    "load_data",
    "load_model",
    "load_record",
    "load_records",
    "metric",
    "one_gradient",
    "perturb",
    "place",
    "whole_attack",
]

_MODULES = {
    "AttackResult": "evaluation.api",
    "BenchmarkError": "_core.errors",
    "Estimate": "records.estimate",
    "MultiHeadAttention": "attention.shared.heads",
    "Record": "records.record",
    "Records": "records.collection",
    "attack": "evaluation.api",
    "corrupt": "corruptions",
    "corruption": "corruptions.shared.functions",
    "create_model": "models",
    "evaluate": "evaluation.api",
    "load_data": "data.load",
    "load_model": "models",
    "load_record": "records.record",
    "load_records": "records.collection",
    "metric": "metrics.shared.metric",
    "one_gradient": "attacks.shared.functions",
    "perturb": "training.objective",
    "place": "models",
    "whole_attack": "attacks.shared.functions",
}


def __getattr__(name: str) -> "Any":
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
