"""What must be read with a short protocol's numbers: how often it agreed with the one that it stands for."""

from collections.abc import Sequence

from robustbench_kpca.protocols.agreement import Agreement, Part, agreement_of
from robustbench_kpca.records.estimate import proportion
from robustbench_kpca.records.record import Record

_WHERE = {"robust": "robust networks", "plain": "plain networks", "masked": "networks with masked gradients"}


def agreement_of_record(record: Record) -> Agreement | None:
    """Return what was measured about the protocol of a record; None if it stands for no other protocol."""
    protocol = record.spec.protocol
    return agreement_of(protocol.name, protocol.scenario)


def in_short(agreement: Agreement) -> str:
    """Return for example `agrees with autoattack-linf-8_255 on 99.80 % [99.29, 99.95] of 1,024 images (…)`.

    Networks of different kinds are not mixed: plain ones agree by themselves, masked ones do not.
    """
    if not agreement.parts:
        return f"its agreement with {agreement.reference} was not measured with these settings"
    shares = [
        f"{_share(parts, 'images')} images of {where}"
        for kind, where in _WHERE.items()
        if (parts := agreement.of_kind(kind))
    ]
    return f"agrees with {agreement.reference} on {', '.join(shares)}"


def in_full(agreement: Agreement) -> str:
    """Return the same with attacked images alone, both directions of disagreement, networks, cost and date."""
    if not agreement.parts:
        return in_short(agreement)
    details = [
        _details(agreement, where, parts) for kind, where in _WHERE.items() if (parts := agreement.of_kind(kind))
    ]
    return "; ".join([in_short(agreement), *details, f"measured {agreement.date} (`{agreement.command}`)"])


def _details(agreement: Agreement, where: str, parts: Sequence[Part]) -> str:
    networks, budgets = (", ".join(dict.fromkeys(getattr(part, name) for part in parts)) for name in ("network", "eps"))
    images = _total(parts, "images")
    spent, reference = (
        sum(part.images * getattr(part, name) for part in parts) / images for name in ("passes", "reference_passes")
    )
    missed, more = _total(parts, "only_reference_broke"), _total(parts, "only_this_broke")
    return (
        f"on {where} ({networks}; eps {budgets}) {_share(parts, 'attacked')} attacked images, "
        f"{missed} broken only by {agreement.reference}, {more} only by {agreement.protocol}, "
        f"{spent:.0f} passes an image for {reference:.0f}"
    )


def _total(parts: Sequence[Part], field: str) -> int:
    return sum(getattr(part, field) for part in parts)


def _share(parts: Sequence[Part], of: str) -> str:
    """Return the share of the images that agreed; images that are wrong before any attack agree by themselves."""
    n = _total(parts, of)
    share = proportion(n - _total(parts, "only_reference_broke") - _total(parts, "only_this_broke"), n)
    return f"{100 * share.value:.2f} % [{100 * share.low:.2f}, {100 * share.high:.2f}] of {n:,}"
