"""What identifies an evaluation: its model, and the code that decides outcomes.

Of code from outside the package, the SHA-256 is part of a record's specification. Versions of our own algorithms stand
beside it (`evaluation.versions`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any

import torch
from torch import nn

from robustbench_kpca._core.address import is_address, is_importable, load
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.outside import is_foreign, of_object
from robustbench_kpca._core.registry import Family
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attacks.shared.names import library_of
from robustbench_kpca.corruptions import ALL, PREFIX, family_of
from robustbench_kpca.models.checkpoint import parameters_sha256, tensor_sha256
from robustbench_kpca.models.factory import code_of_factory
from robustbench_kpca.protocols.scenario import Attack, Corruption, Scenario
from robustbench_kpca.records.spec import ModelInfo
from robustbench_kpca.tasks import TASKS, task_named
from robustbench_kpca.types import Logits

MODEL = "model"
_FAMILIES = {family.kind: family for family in (ATTACKS, *ALL, TASKS)}


def model_info(model: nn.Module, name: str, source: str, probe: Logits) -> ModelInfo:
    """Return the description of a model for its record.

    Args:
        model: the model.
        name: name of the model in records.
        source: where the model came from.
        probe: its logits on a fixed batch; their digest identifies the model's behaviour.
    """
    config, std = getattr(model, "config", None), getattr(model, "pixel_std", None)
    stds = tuple(round(value, 6) for value in std.flatten().tolist()) if isinstance(std, torch.Tensor) else ()
    if not all(0 < value < inf for value in stds):
        raise BadInputError(f"model '{name}' has the buffer pixel_std = {stds}", expected="finite numbers above 0")
    return ModelInfo(
        name=name,
        source=source,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        parameters_sha256=parameters_sha256(model),
        probe_sha256=tensor_sha256(probe),
        pixel_std=stds,
        config=config if isinstance(config, dict) and _is_plain(config) else {},
    )


def _is_plain(config: dict[Any, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(config)) == config)
    except (TypeError, ValueError):
        return False


def code_from_outside(model: nn.Module, task: str, scenario: Scenario) -> dict[str, str]:
    """Return the SHA-256 of the code of the model, the task, attacks, twins and corruptions that are not ours.

    It is "" where the code cannot be read, and a model of such code is not named: its weights and answers identify it.
    """
    codes = dict[str, str]()
    for family, name in members(scenario):
        family.require(name)
        if family.is_outside(name):
            codes[f"{family.kind} {name}"] = family.code(name)
    twins = {stage.backward_of or "" for stage in scenario.stage} if isinstance(scenario, Attack) else set()
    codes |= {f"twin {name}": load(name, "twin").code for name in sorted(twins) if is_address(name)}
    if task in TASKS.added:
        compute = task_named(task).compute
        parts = [of_object(part) for part in (compute, compute.success)]
        codes[f"task {task}"] = "+".join(parts) if all(parts) else ""
    model_code = code_of_model(model)
    return codes | ({MODEL: model_code} if model_code else {})


def code_of_model(model: nn.Module) -> str:
    """Return the SHA-256 of the code of a model: of its factory, and of classes that no installed package has."""
    kinds = {type(module) for module in model.modules()}
    parts = {code_of_factory(model), *(of_object(kind) for kind in kinds if is_foreign(kind))} - {""}
    return "+".join(sorted(parts))


def members(scenario: Scenario) -> Iterator[tuple[Family, str]]:
    """Yield the attacks or corruptions of a protocol, but for those of libraries."""
    if isinstance(scenario, Attack):
        yield from ((ATTACKS, stage.attack) for stage in scenario.stage if not library_of(stage.attack))
    elif isinstance(scenario, Corruption) and scenario.mode != "stored":
        yield from ((family_of(name), name) for name in scenario.names if not name.startswith(PREFIX))


Added = tuple[str, str, Any]
"""A member that a program added to a registry, for another process: the kind of its family, its name, and itself."""


def join(added: Iterable[Added]) -> None:
    """Add members here, unless this process has some of their names: those of a plugin or of the same script."""
    for kind, name, member in added:
        if name not in _FAMILIES[kind]:
            _FAMILIES[kind].add(name, member)


def added_members(scenario: Scenario, task: str, *, runs_script: bool) -> tuple[Added, ...]:
    """Return the members that a program added to registries, of those that a protocol and a task need.

    Args:
        scenario: the protocol.
        task: name of the task.
        runs_script: whether the other process runs the script of this one first.

    Raises:
        BadInputError: the other process cannot import one.
    """
    named = [(family, name) for family, name in [*members(scenario), (TASKS, task)] if name in family.added]
    for family, name in named:
        if not is_importable(family.added[name], runs_script=runs_script):
            raise BadInputError(
                f"{family.kind} '{name}' was added by code that another process cannot import",
                expected="a class or object of a file",
                fix=f"name it FILE.py:OBJECT instead of '{name}'",
            )
    return tuple((family.kind, name, family.added[name]) for family, name in named)


def require_readable(code: Mapping[str, str]) -> None:
    """Refuse to write a record of code from outside that cannot be read, since a change of it would not show.

    Raises:
        BadInputError: such code.
    """
    for name, digest in code.items():
        if not digest:
            raise BadInputError(
                f"the code of {name} cannot be read, so no record of it can be kept", fix="define it in a file"
            )
