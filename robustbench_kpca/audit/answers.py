"""How the answers to an audit's questions are counted and said."""

import torch
from torch import Tensor

from robustbench_kpca.audit.bench import Bench
from robustbench_kpca.audit.limits import samples_allowed
from robustbench_kpca.records.audit import Check
from robustbench_kpca.tasks.audit_plan import SLACK
from robustbench_kpca.types import Images, Mask, PerSample


def count(mask: Mask) -> int:
    """Count the samples."""
    return int(mask.sum())


def worse(found: PerSample, than: PerSample, slack: float = SLACK) -> int:
    """Count the samples of which an attack leaves less than another, by more than `slack`."""
    return count(than - found > slack)


def transferred(bench: Bench, images: Images) -> Tensor:
    """Return what these images, one for each sample that is attacked, leave right."""
    left: Tensor = bench.clean.clone()
    left[bench.right] = bench.shares(images, bench.labels[bench.right])
    return torch.minimum(left, bench.clean)


def by_more(bench: Bench, slack: float = SLACK) -> str:
    """Say by how much, where that is a question."""
    return f", by more than {100 * slack:.0f} % of their {bench.task.unit}s" if bench.success.graded else ""


def samples(name: str, bench: Bench, values: dict[str, float] | dict[str, int], saw: str, why: str) -> Check:
    """Answer in samples; in `saw`, {} is the largest value."""
    worst = f"{max(values.values(), default=0):.0f} of {len(bench)} images"
    return answer(name, dict(values), samples_allowed(len(bench)), saw.format(worst), why)


def answer(name: str, values: dict[str, float], limit: float, saw: str, why: str) -> Check:
    """Answer in any unit."""
    flag = any(value > limit for value in values.values())
    return Check(name=name, values=values, limit=limit, flag=flag, saw=saw, why=why)


def does_not_apply(name: str, reason: str) -> Check:
    """Answer what cannot be asked."""
    return answer(name, {}, 0, reason, "")
