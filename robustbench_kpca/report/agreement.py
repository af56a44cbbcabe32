"""Say how often a short protocol gave the same verdicts as the one that it stands for, with an interval."""

from robustbench_kpca.protocols.agreement import Agreement, agreement_of
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records.estimate import proportion
from robustbench_kpca.records.record import Record


def agreement_of_record(record: Record) -> Agreement | None:
    """Return what was measured about the protocol of a record; None if it stands for no other protocol."""
    protocol = record.spec.protocol
    return agreement_of(protocol.name, parse_scenario(dict(protocol.resolved), protocol.name))


def in_short(agreement: Agreement) -> str:
    """Return for example `agrees with `autoattack-linf-8_255` on 99.80 % [99.29, 99.95] of 1,024 images`."""
    if not agreement.parts:
        return f"its agreement with {agreement.reference} was not measured with these settings"
    return f"agrees with {agreement.reference} on {_share(agreement, 'images')} images"


def in_full(agreement: Agreement) -> str:
    """Return the same with both directions of disagreement, networks, budgets, cost and date."""
    if not agreement.parts:
        return in_short(agreement)
    missed, more = agreement.total("only_reference_broke"), agreement.total("only_this_broke")
    images = agreement.total("images")
    spent, reference = (
        sum(part.images * getattr(part, name) for part in agreement.parts) / images
        for name in ("passes", "reference_passes")
    )
    return (
        f"{in_short(agreement)}, and on {_share(agreement, 'attacked')} that were attacked; "
        f"{missed} broken only by {agreement.reference}, {more} only by {agreement.protocol}; "
        f"{spent:.0f} passes an image for {reference:.0f}; measured {agreement.date} on "
        f"{', '.join(agreement.networks)} at eps {', '.join(agreement.budgets)} (`{agreement.command}`)"
    )


def _share(agreement: Agreement, of: str) -> str:
    """Return the share of the images that agreed; images that are wrong before any attack agree by themselves."""
    n = agreement.total(of)
    agreed = n - agreement.total("only_reference_broke") - agreement.total("only_this_broke")
    found = proportion(agreed, n)
    return f"{100 * found.value:.2f} % [{100 * found.low:.2f}, {100 * found.high:.2f}] of {n:,}"
