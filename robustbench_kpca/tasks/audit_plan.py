"""The attacks that an audit runs for a task, and which of them must be the strongest."""

from collections.abc import Mapping
from dataclasses import dataclass

from robustbench_kpca.protocols.scenario import Override


@dataclass(frozen=True)
class OfEps:
    """A length of an attack, such as a step, as a share of the eps of the audit."""

    share: float


Attacks = Mapping[str, tuple[str, dict[str, Override | OfEps]]]
# For a sample with many labels, an attack counts as stronger than another only if the fraction of correct labels is
# lower by more than this. On the bundled segmenters at 8/255, another seed of PGD or APGD changes the fraction by 0.05
# on one or two images of 16, but by 0.1 on only one image of 40.
SLACK = 0.1
# The same for twice the steps: 40 steps have not converged on honest segmenters with thousands of labels per image.
# There, 40 steps reduced the fraction by 0.1 more than 20 steps on 4 of 64 images, and by 0.2 on one.
GAIN = 0.2
HUGE_EPS = 0.5  # in L-infinity: the ball contains the plain grey image, so every sample must be broken

SHARED_ATTACKS: Attacks = {
    "fgsm": ("fgsm-linf-8_255", {}),
    "pgd": ("pgd20-linf-8_255", {"steps": 20}),
    "own-logits": ("pgd20-linf-8_255", {"steps": 20}),
    "pgd-doubled": ("pgd20-linf-8_255", {"steps": 40}),
    "apgd": ("apgd-ce-linf-8_255", {"steps": 20}),
    "apgd-doubled": ("apgd-ce-linf-8_255", {"steps": 40}),
    "apgd-dlr": ("apgd-ce-linf-8_255", {"steps": 40, "loss": "dlr"}),
    "huge-eps": ("pgd20-linf-8_255", {"steps": 20, "random_start": False, "eps": HUGE_EPS}),
    "noise": ("noise-linf-8_255", {"restarts": 10}),
    "order": ("pgd20-linf-8_255", {"steps": 10, "random_start": False}),
}
"""Attacks for every task: name -> (protocol, overridden fields).

All but `huge-eps` use the eps of the audit. `huge-eps` and `order` start at the clean image: at a huge eps a random
start alone could break a sample, and random numbers could depend on the order of the samples.
"""

OWN_LOGITS = ("own-logits", "huge-eps")
"""Attacks that see the model's own logits, as those of a protocol do. All others see logits on one scale."""

SHARED_WHITE_BOX = ("pgd", "pgd-doubled", "apgd", "apgd-doubled", "apgd-dlr")
"""The attacks among them that use gradients, at full budget."""


@dataclass(frozen=True)
class AuditPlan:
    """The attacks of an audit and their roles.

    Attributes:
        samples: default number of samples.
        attacks: name -> (protocol, overridden fields).
        strongest: attacks by gradients that must break every sample that any of `white_box` breaks.
        white_box: attacks that use gradients, at full budget.
        black_box: attacks that use no gradients.
        left_out: a remark on attacks that do not apply to this task; "" if all apply.
        limits: limits of this task only, as stored in the record of the audit.
    """

    samples: int
    attacks: Attacks
    strongest: tuple[str, ...]
    white_box: tuple[str, ...]
    black_box: tuple[str, ...]
    left_out: str
    limits: Mapping[str, float]
