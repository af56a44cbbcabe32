"""Say where numbers rest on FMN in L2 alone: as published it can miss images that other attacks break."""

from robustbench_kpca.protocols.scenario import Attack, Scenario, parse_scenario
from robustbench_kpca.records.record import Record

_CAUTION = (
    "rests on FMN in L2 alone, which can miss images that PGD breaks, so a curve can level off too high; put an attack "
    "of fixed eps beside it"
)


def caution(protocol: Scenario) -> str:
    """Say of a protocol that its numbers rest on FMN in L2 alone; empty for every other one."""
    attacks = {stage.attack for stage in protocol.stage} if isinstance(protocol, Attack) else set()
    return _CAUTION if attacks == {"fmn"} and getattr(protocol, "norm", "") == "l2" else ""


def floor(record: Record) -> str:
    """Return `caution`, and for how many images of the record no adversarial image was found at all."""
    text = caution(parse_scenario(dict(record.spec.protocol.resolved), record.spec.protocol.name))
    missing = int((record.outcomes["broken_by"] == "").sum()) if text else 0
    return text and f"{text}; it found nothing for {missing} of {len(record.outcomes)} images"
