"""Describe a model for its record: name, source, number of parameters, digests, configuration."""

import json
from typing import Any

import torch
from torch import nn

from robustbench_kpca.models.checkpoint import parameters_sha256, tensor_sha256
from robustbench_kpca.records.spec import ModelInfo
from robustbench_kpca.types import Logits


def model_info(model: nn.Module, name: str, source: str, probe: Logits) -> ModelInfo:
    """Return the description of a model for its record.

    Args:
        model: the model.
        name: name of the model in records.
        source: where the model came from.
        probe: its logits on a fixed batch; their digest identifies the model's behaviour.

    """
    config, std = getattr(model, "config", None), getattr(model, "pixel_std", None)
    return ModelInfo(
        name=name,
        source=source,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        parameters_sha256=parameters_sha256(model),
        probe_sha256=tensor_sha256(probe),
        pixel_std=tuple(round(value, 6) for value in std.flatten().tolist()) if isinstance(std, torch.Tensor) else (),
        config=config if isinstance(config, dict) and _is_plain(config) else {},
    )


def _is_plain(config: dict[Any, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(config)) == config)
    except (TypeError, ValueError):
        return False
