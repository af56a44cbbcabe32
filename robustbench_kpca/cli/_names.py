"""Names that a command is given: split, and checked before torch is imported, so that an unknown one fails at once."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def several(values: Iterable[str]) -> list[str]:
    """Return the names of a repeatable option, each once: `-m a -m b` is `-m a,b`. A file may have commas in its name.

    Raises:
        BadInputError: a name is empty.
    """
    from robustbench_kpca._core.errors import BadInputError

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
    attacks: Iterable[str] = (),
    data: Iterable[str | None] = (),
) -> None:
    """Refuse unknown models, protocols, fields set in these, attacks of their stages and others, and data."""
    from robustbench_kpca.attacks.shared.names import require_attack
    from robustbench_kpca.data.names import require_data
    from robustbench_kpca.models.names import require_model
    from robustbench_kpca.protocols.loading import load_scenario
    from robustbench_kpca.protocols.scenario import Attack

    for name in models:
        require_model(name)
    for name in protocols:
        _, scenario = load_scenario(name, dict(overrides or {}))
        for stage in scenario.stage if isinstance(scenario, Attack) else ():
            require_attack(stage.attack)
    for name in attacks:
        require_attack(name)
    for source in data:
        if source is not None:
            require_data(source)


def require_claims(protocol: str, claims: Iterable[str]) -> None:
    """Refuse an unknown protocol of a diagnosis, and claims that it does not measure."""
    from robustbench_kpca._core.registry import unknown_name
    from robustbench_kpca.study.diagnostics import PROCEDURES

    if protocol not in PROCEDURES:
        raise unknown_name("protocol of a diagnosis", protocol, PROCEDURES)
    for name in claims:
        PROCEDURES[protocol].require(name)
