"""Which attacks an audit of a task's models makes, and what it expects of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from robustbench_kpca.protocols.scenario import Override

Attacks = Mapping[str, tuple[str, dict[str, Override]]]
# Of a sample with one label an attack leaves all or nothing right; of one with many, a share. There another attack
# finds more only if it leaves less by this share of the labels: on the bundled segmenters, at 8/255, another seed of
# PGD or APGD moves the share of one or two images of 16 by 0.05, but of one of 40 by 0.1.
SLACK = 0.1
# Twice the steps find more only beyond this share: 40 steps against thousands of labels at once have not converged on
# honest segmenters. There they took 0.1 more than 20 from 4 of 64 images, and 0.2 from one.
GAIN = 0.2
HUGE_EPS = 0.5  # in L-infinity every image can be turned into plain grey: nothing can stand

SHARED_ATTACKS: Attacks = {
    "fgsm": ("fgsm-linf-8_255", {}),
    "pgd": ("pgd20-linf-8_255", {"steps": 20}),
    "pgd-doubled": ("pgd20-linf-8_255", {"steps": 40}),
    "apgd": ("apgd-ce-linf-8_255", {"steps": 20}),
    "apgd-doubled": ("apgd-ce-linf-8_255", {"steps": 40}),
    "apgd-dlr": ("apgd-ce-linf-8_255", {"steps": 40, "loss": "dlr"}),
    "huge-eps": ("pgd20-linf-8_255", {"steps": 20, "random_start": False, "eps": HUGE_EPS}),
    "noise": ("noise-linf-8_255", {"restarts": 10}),
    "order": ("pgd20-linf-8_255", {"steps": 10, "random_start": False}),
}
"""Attacks that every task can make: protocol, and what is set in it.

All but `huge-eps` take the audit's eps. `huge-eps` and `order` start at the clean image: in the first, noise must not
do the attack's work; in the second, no random numbers may belong to a place in the order.
"""


@dataclass(frozen=True)
class AuditPlan:
    """What an audit does.

    Attributes:
        samples: how many samples it looks at by default.
        attacks: name -> (protocol, what is set in it).
        strongest: gradient attacks that must find whatever any gradient attack finds.
        white_box: attacks that use gradients, at full budget.
        black_box: attacks that use none.
        left_out: a remark on attacks that this task cannot make, "" where it makes all.
        limits: limits of this task only, as the audit's record states them.

    """

    samples: int
    attacks: Attacks
    strongest: tuple[str, ...]
    white_box: tuple[str, ...]
    black_box: tuple[str, ...]
    left_out: str
    limits: Mapping[str, float]
