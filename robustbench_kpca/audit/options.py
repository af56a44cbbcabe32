"""Options of an audit; here and nowhere else."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from robustbench_kpca.audit.budgets import EPS
from robustbench_kpca.records.audit import Level


@dataclass(frozen=True)
class AuditOptions:
    """What an audit is to be; the fields are the keywords of `audit`.

    Attributes:
        eps: radius of the L-infinity ball, in pixel values of [0, 1].
        limit: number of samples, evenly spread over the set; default: 64 images, or 16 images with masks.
        seed: seed of all randomness.
        batch_size: batch size of the model; default: that of the task.
        device: such as "cuda"; default: the device of the model.
        name: name of the model in the audit; default: the name of its class.
        allow: if given, a failed preflight check is refused as in `evaluate`, except these; if None, it is a flag.
        out: folder that stores the audit. A stored audit of the same code, model, images and plan is returned; where a
            quick one is requested, a full one, too.
        fresh: make a new audit even if a stored one exists.
        level: `full`, or `quick` for fewer checks: those of `records.audit_versions.CHECKS`.
    """

    eps: str | float = EPS
    limit: int | None = None
    seed: int = 0
    batch_size: int | None = None
    device: str | None = None
    name: str | None = None
    allow: Collection[str] | None = None
    out: Path | None = None
    fresh: bool = False
    level: Level = "full"
