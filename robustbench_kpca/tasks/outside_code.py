"""What a protocol would run beyond this package: the addresses that it names. Nothing is imported to tell; no torch."""

from robustbench_kpca._core.address import is_address
from robustbench_kpca.attacks.shared.names import library_of
from robustbench_kpca.corruptions import PREFIX
from robustbench_kpca.protocols.scenario import Attack, Corruption, Scenario


def addresses(scenario: Scenario) -> list[str]:
    """Return the addresses of attacks, twins and corruptions that a protocol names."""
    names: list[str] = []
    if isinstance(scenario, Attack):
        names = [stage.attack for stage in scenario.stage if not library_of(stage.attack)]
        names += [stage.backward_of for stage in scenario.stage if stage.backward_of is not None]
    elif isinstance(scenario, Corruption) and scenario.mode != "stored":
        names = [name for name in scenario.names if not name.startswith(PREFIX)]
    return [name for name in names if is_address(name)]
