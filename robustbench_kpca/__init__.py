"""The adversarial-robustness benchmark for kernel-machine attention: the public API.

Names are imported on first use, so that importing the package does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustbench_kpca._core.errors import BenchmarkError
    from robustbench_kpca.corruptions import corrupt
    from robustbench_kpca.data.load import load_data
    from robustbench_kpca.evaluation.api import AttackResult, attack, evaluate
    from robustbench_kpca.models import create_model, load_model
    from robustbench_kpca.records.collection import Records, load_records
    from robustbench_kpca.records.estimate import Estimate
    from robustbench_kpca.records.record import Record, load_record

__all__ = [
    "AttackResult",
    "BenchmarkError",
    "Estimate",
    "Record",
    "Records",
    "attack",
    "corrupt",
    "create_model",
    "evaluate",
    "load_data",
    "load_model",
    "load_record",
    "load_records",
]

_MODULES = {
    "AttackResult": "evaluation.api",
    "BenchmarkError": "_core.errors",
    "Estimate": "records.estimate",
    "Record": "records.record",
    "Records": "records.collection",
    "attack": "evaluation.api",
    "corrupt": "corruptions",
    "create_model": "models",
    "evaluate": "evaluation.api",
    "load_data": "data.load",
    "load_model": "models",
    "load_record": "records.record",
    "load_records": "records.collection",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
