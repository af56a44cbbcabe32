"""`robustbench:NAME`: a model of RobustBench's zoo with its weights, which normalises inside.

Where the zoo has several of a name, its data set or threat stands before it, as in `robustbench:cifar10/L2/Standard`.
Its transformers are built here for a file of their weights (`models.robust_transformers`). All others need RobustBench,
which keeps weights in the folder of torch's hub.
"""

import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.data.imagenet_classes import imagenet_wnids
from robustbench_kpca.data.request import View
from robustbench_kpca.models.robust_transformers import NETWORKS
from robustbench_kpca.models.robust_transformers import build as build_here
from robustbench_kpca.models.source import describe, library
from robustbench_kpca.models.sources import is_ours
from robustbench_kpca.models.weights_file import only_weights

VIEWS = {
    "Res256Crop224": View.between(224, 256, "bilinear"),
    "BicubicRes256Crop224": View.between(224, 256, "bicubic"),
    "Res224": View(224, interpolation="bilinear", squash=True),
}
"""What the zoo calls them; one of another name leaves pictures as they are."""
_INSTALL = (
    "pip install 'setuptools<82' geotorch torchdiffeq gdown git+https://github.com/fra31/auto-attack, then pip install "
    "--no-deps robustbench"
)
"""Release 1.1.1 imports pkg_resources, which setuptools 82 removed, and autoattack, which is on no index; it pins timm
1.0.9."""


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
    if options:
        raise BadInputError(f"'model.{next(iter(options))}' of robustbench:{name} cannot be set", expected="no options")
    if is_ours("robustbench", name):
        return build_here(_only(name, NETWORKS), pretrained)
    part = partial(library, wanted_by=f"robustbench:{name}", fix=_INSTALL)
    part("robustbench")
    zoo = part("robustbench.model_zoo").model_dicts
    data, threat, role = _place(name, zoo)
    utils, entry = part("robustbench.utils"), zoo[data][threat][role]
    folder = Path(torch.hub.get_dir()) / "robustbench"
    load = partial(utils.load_model, role, folder, data.value, threat.value) if pretrained else entry["model"]
    try:
        with only_weights(), redirect_stdout(sys.stderr):
            model: nn.Module = load()
    except Exception as error:  # noqa: BLE001 (the download fails in many ways)
        raise BadInputError(
            f"robustbench model '{name}' could not be built ({reason_of(error)})",
            fix="without a network connection add --checkpoint FILE",
        ) from None
    names = imagenet_wnids() if data.value == "imagenet" else None
    return describe(model, VIEWS.get(entry.get("preprocessing")), names)


def _place(name: str, zoo: Any) -> tuple[Any, Any, str]:
    """Return the data set, the threat and the name of a model in the zoo; what stands before a name narrows it."""
    places = [(data, threat, each) for data in zoo for threat in zoo[data] for each in zoo[data][threat]]
    by_path = {f"{data.value}/{threat.value}/{each}": (data, threat, each) for data, threat, each in places}
    return by_path[_only(name, by_path)]


def _only(name: str, paths: Iterable[str]) -> str:
    """Return the path `DATA/THREAT/NAME` that a name stands for."""
    *before, role = name.split("/")
    parts = {path: path.split("/") for path in paths}
    fitting = [path for path, (*place, each) in parts.items() if each == role and {*before} <= {*place}]
    if not fitting:
        raise unknown_name("robustbench model", name, sorted({*parts, *(each for *_, each in parts.values())}))
    if len(fitting) > 1:
        raise BadInputError(
            f"RobustBench has several models '{name}'", expected=" or ".join(f"robustbench:{path}" for path in fitting)
        )
    return fitting[0]
