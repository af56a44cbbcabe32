"""What a protocol uses: algorithms of the package and their versions, libraries, and addresses. No torch.

Versions are integers that the files of algorithms state, raised when outcomes can change.

Records of before there were versions count as made by version 1
(docs/decisions/0029-foretelling-and-remaking.md). tests/recorded/outcomes.json holds the outcomes of each version.
"""

from collections.abc import Iterator, Mapping

from robustbench_kpca._core.address import is_address
from robustbench_kpca._core.registry import stated_version
from robustbench_kpca._engine import attack_loop
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attacks.shared.names import library_of
from robustbench_kpca.corruptions import ALL, PREFIX
from robustbench_kpca.protocols.scenario import Attack, Corruption, Scenario
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.spec import Environment


def algorithms(scenario: Scenario) -> dict[str, int]:
    """Return the current version of each algorithm of the package that a protocol uses, such as `attack pgd` -> 1.

    No algorithm is imported. Code from outside has no version, and is left out.
    """
    return {name: version for name, version in _stated(scenario) if version is not None}


def _stated(scenario: Scenario) -> Iterator[tuple[str, int | None]]:
    if isinstance(scenario, Attack):
        for name in (stage.attack for stage in scenario.stage):
            foreign = stated_version("robustbench_kpca.attacks.foreign") if library_of(name) else None
            yield f"attack {name}", foreign or ATTACKS.version(name)
        yield "attack loop", attack_loop.VERSION
    elif isinstance(scenario, Corruption) and scenario.mode != "stored":
        for name in scenario.names:
            if name.startswith(PREFIX):
                yield f"corruption {name}", stated_version("robustbench_kpca.corruptions._library")
            else:
                yield from ((f"{family.kind} {name}", family.version(name)) for family in ALL)


def libraries(scenario: Scenario) -> set[str]:
    """Return the other libraries whose attacks or corruptions a protocol uses."""
    if isinstance(scenario, Attack):
        return {library_of(stage.attack) for stage in scenario.stage} - {""}
    names = scenario.names if isinstance(scenario, Corruption) else ()
    return {PREFIX[:-1] for name in names if name.startswith(PREFIX)}


def outdated(record: Record, now: Mapping[str, int], current: Environment, scenario: Scenario) -> tuple[str, ...]:
    """Return the algorithms and libraries that a record was made with in other versions than today's."""
    ours = [name for name in now if record.algorithms.get(name, 1) != now[name]]
    packages = record.environment.packages
    return (*ours, *(name for name in sorted(libraries(scenario)) if packages.get(name) != current.packages.get(name)))


def addresses(scenario: Scenario) -> list[str]:
    """Return the addresses of attacks, twins and corruptions that a protocol names; nothing is imported to tell."""
    names: list[str] = []
    if isinstance(scenario, Attack):
        names = [stage.attack for stage in scenario.stage if not library_of(stage.attack)]
        names += [stage.backward_of for stage in scenario.stage if stage.backward_of is not None]
    elif isinstance(scenario, Corruption) and scenario.mode != "stored":
        names = [name for name in scenario.names if not name.startswith(PREFIX)]
    return [name for name in names if is_address(name)]
