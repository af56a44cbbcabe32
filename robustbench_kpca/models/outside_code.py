"""What a model's name would run beyond this package, in words: asked before a name from a stranger's file is used.

No torch: nothing is imported or loaded to tell.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robustbench_kpca._core.files import from_here
from robustbench_kpca.models.bundle import split_entry
from robustbench_kpca.models.sources import base_name, is_ours, source_of

LIBRARIES = ("timm", "torchvision")
"""Sources whose models are code of the library alone."""
PATHS = ("checkpoint_path", "cache_dir", "pretrained_cfg", "pretrained_cfg_overlay")
"""Options of timm that name files to read or write, or addresses."""
NUMBERS = ".safetensors"
"""End of the name of weights that hold numbers and nothing else."""
_MOST = 200


def outside_code(model: str, options: Mapping[str, Any], checkpoint: str | None = None) -> str:
    """Return what would run; empty where it is this package, timm or torchvision, with weights that are numbers alone.

    Args:
        model: as `models.loading.load_model` takes it.
        options: options of the model.
        checkpoint: file of its weights, or `hf-hub:OWNER/NAME`.
    """
    text = _of_model(model, options)
    file = None if checkpoint is None else split_entry(checkpoint)[0]
    if not text and file is not None and (":" in file or not file.endswith(NUMBERS)):
        text = f"{checkpoint} would be fetched or unpickled"
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"


def _of_model(model: str, options: Mapping[str, Any]) -> str:
    model = base_name(model)
    source, name = source_of(model)
    path = next((key for key in options if key in PATHS), None)
    if source and source not in LIBRARIES and not is_ours(source, name):
        return f"{source} would load and run {name}"
    if source and path is not None:
        return f"{source} would use the files or addresses that {path} = {options[path]!r} names"
    attention = str(options.get("attention", ""))
    if not source and ":" not in model and ":" in attention:
        return f"{_place(attention)} would be run for its attention"
    if source or ":" not in model:
        return ""
    function = model.rpartition(":")[2]
    arguments = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return f"{_place(model)} would be run, and {function}({arguments}) called"


def _place(address: str) -> str:
    place = address.rpartition(":")[0]
    return f"the file {from_here(Path(place).absolute())}" if place.endswith(".py") else f"the module {place}"
