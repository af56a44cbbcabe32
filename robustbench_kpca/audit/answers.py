"""Turn the numbers of an audit check into its result: value, limit, flag and text."""

import torch
from torch import Tensor

from robustbench_kpca.audit.context import AuditContext
from robustbench_kpca.audit.limits import samples_allowed
from robustbench_kpca.records.audit import Check
from robustbench_kpca.tasks.audit_plan import SLACK
from robustbench_kpca.types import Images, Mask, PerSample


def count(mask: Mask) -> int:
    """Count the samples where `mask` is true."""
    return int(mask.sum())


def worse(correct: PerSample, than: PerSample, slack: float = SLACK) -> int:
    """Count the samples on which an attack is stronger than another: fewer labels stay correct, by more than `slack`.

    `correct` and `than` are the fractions of labels that stay correct under the two attacks.
    """
    return count(than - correct > slack)


def transferred(context: AuditContext, images: Images) -> Tensor:
    """Return the fraction of labels that stay correct on these images: one per attacked sample, from another model."""
    remaining: Tensor = context.clean.clone()
    remaining[context.correct] = context.correct_fraction(images, context.labels[context.correct])
    return torch.minimum(remaining, context.clean)


def by_more(context: AuditContext, slack: float = SLACK) -> str:
    """Return the text that names the slack, for samples with many labels; else an empty text."""
    return f", by more than {100 * slack:.0f} % of their {context.task.unit}s" if context.success.graded else ""


def samples(name: str, context: AuditContext, values: dict[str, float] | dict[str, int], saw: str, why: str) -> Check:
    """Return the result of a check that counts samples; in `saw`, {} is replaced by the largest count."""
    largest = f"{max(values.values(), default=0):.0f} of {len(context)} images"
    return answer(name, dict(values), samples_allowed(len(context)), saw.format(largest), why)


def answer(name: str, values: dict[str, float], limit: float, saw: str, why: str) -> Check:
    """Return the result of a check; it is flagged if any value exceeds the limit."""
    flag = any(value > limit for value in values.values())
    return Check(name=name, values=values, limit=limit, flag=flag, saw=saw, why=why)


def does_not_apply(name: str, reason: str) -> Check:
    """Return the result of a check that does not apply: no values, no flag."""
    return answer(name, {}, 0, reason, "")
