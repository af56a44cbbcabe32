"""Names that a command is given: split, and checked before torch is imported, so that an unknown one fails at once."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def several(values: Iterable[str]) -> list[str]:
    """Return the names of a repeatable option, each once: `-m a -m b` is `-m a,b`. A file may have commas in its name.

    Raises:
        BadInputError: a name is empty.

    """
    from robustbench_kpca.errors import BadInputError

    names: dict[str, None] = {}
    for value in values:
        file = value.rpartition(":")[0] or value
        parts = [value] if "," in file and Path(file).exists() else value.split(",")
        names |= dict.fromkeys(part.strip() for part in parts)
    if "" in names:
        raise BadInputError("an empty name", expected="names with commas between them, such as a,b")
    return list(names)


def require_names(
    *,
    models: Iterable[str] = (),
    protocols: Iterable[str] = (),
    overrides: Mapping[str, Any] | None = None,
    data: Iterable[str | None] = (),
) -> None:
    """Refuse unknown models, protocols, fields set in these, attacks of their stages, and data.

    Raises:
        BadInputError: one of them is unknown.

    """
    from robustbench_kpca.attacks import ATTACKS
    from robustbench_kpca.data.names import require_data
    from robustbench_kpca.models.names import require_model
    from robustbench_kpca.protocols.loading import load_scenario
    from robustbench_kpca.protocols.scenario import Attack

    for name in models:
        require_model(name)
    for name in protocols:
        _, scenario = load_scenario(name, dict(overrides or {}))
        for stage in scenario.stage if isinstance(scenario, Attack) else ():
            if ":" not in stage.attack:  # else of another library
                ATTACKS.require(stage.attack)
    for source in data:
        if source is not None:
            require_data(source)
