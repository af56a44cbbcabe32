"""Every attack of an audit has one budget, for images with one label and for those with one label a pixel."""

from robustbench_kpca.evaluation.api import prepare
from robustbench_kpca.protocols.scenario import Override
from robustbench_kpca.records.audit import Budget

HUGE_EPS = 0.5  # in L-infinity every image can be turned into plain grey: nothing can stand

BUDGETS: dict[str, tuple[str, dict[str, Override]]] = {
    "fgsm": ("fgsm-linf-8_255", {}),
    "pgd": ("pgd20-linf-8_255", {"steps": 20}),
    "pgd-doubled": ("pgd20-linf-8_255", {"steps": 40}),
    "apgd": ("apgd-ce-linf-8_255", {"steps": 20}),
    "apgd-doubled": ("apgd-ce-linf-8_255", {"steps": 40}),
    "apgd-dlr": ("apgd-ce-linf-8_255", {"steps": 40, "loss": "dlr"}),
    "huge-eps": ("pgd20-linf-8_255", {"steps": 20, "random_start": False, "eps": HUGE_EPS}),
    "noise": ("noise-linf-8_255", {"restarts": 10}),
    "square": ("square-linf-8_255", {"queries": 300}),
    "spsa": ("spsa-linf-8_255", {"steps": 10, "samples": 32}),
    "order": ("pgd20-linf-8_255", {"steps": 10, "random_start": False}),
}
"""Protocol and what is set in it; all but `huge-eps` take the audit's eps. `huge-eps` and `order` start at the clean
image: there noise must not do the attack's work, here no stream may belong to a place in the order."""
SEGMENTATION: dict[str, tuple[str, dict[str, Override]]] = {
    "segpgd": ("segpgd20-linf-8_255", {"steps": 40}),
}
"""Attacks that need one label a pixel."""
ONE_LABEL = ("square", "spsa")
"""Attacks that need one label an image."""
WHITE_BOX = ("pgd", "pgd-doubled", "apgd", "apgd-doubled", "apgd-dlr", "segpgd")


def budgets(per_pixel: bool) -> dict[str, tuple[str, dict[str, Override]]]:
    """Return the attacks for such labels."""
    if not per_pixel:
        return BUDGETS
    return {name: given for name, given in BUDGETS.items() if name not in ONE_LABEL} | SEGMENTATION


def budget(name: str, eps: str | float, per_pixel: bool) -> tuple[str, dict[str, Override]]:
    """Return protocol and overrides of an attack of the audit."""
    protocol, overrides = budgets(per_pixel)[name]
    return protocol, {"eps": eps} | overrides


def resolved(eps: str | float, *, per_pixel: bool) -> dict[str, Budget]:
    """Resolve every attack of the audit, as its plan states it."""
    found = {}
    for name in budgets(per_pixel):
        label, scenario = prepare(*budget(name, eps, per_pixel))
        found[name] = Budget(protocol=label, digest=scenario.digest())
    return found
