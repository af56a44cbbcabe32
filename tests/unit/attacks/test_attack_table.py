"""What every attack is asked alike, in tables: rows that stand for themselves, the passes of a sample that stands, and
threats that are refused.
"""

from functools import partial

import attack_checks
import pytest
import torch

from robustbench_kpca import attack
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.passes import passes_of
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.verification.conformance.attack import Case, is_independent

APGD = {"steps": 9, "rho": 0.75}
APGD_L1 = {"steps": 50, "loss": "ce", "targets": 1}
CW = {"steps": 12, "lr": 0.05, "binary_steps": 3, "initial_const": 0.3, "confidence": 0.0}
DDN = {"steps": 20, "gamma": 0.1, "init_norm": 0.5}
FAB = {"steps": 4, "alpha_max": 0.1, "eta": 1.05, "beta": 0.9, "random_start": True}
FMN = {"steps": 20, "step_size": 1.0, "gamma": 0.05}
MALT = {"steps": 9, "rho": 0.75, "loss": "dlr_targeted", "targets": 2, "candidates": 2}
MIM = {"steps": 10, "step_size": "0.1 eps", "decay": 1.0}
PGD = {"steps": 10, "step_size": "0.2 eps", "random_start": True}
SLD = {"steps": 20, "step_size": "0.1 eps", "sparsity": 91.0, "skip_clipped": False} | {
    "random_start": False, "projection": "euclidean"
}  # fmt: skip
SPSA = {"steps": 8, "samples": 32, "delta": 0.01, "lr": 0.02, "random_start": False}
SPSA_PORT = {"steps": 8, "samples": 6, "delta": 0.01, "lr": 0.02}
SQUARE = {"queries": 60, "p_init": 0.8}
EPS = {"linf": 8 / 255, "l2": 0.5, "l1": 2.0}

ROWS = [  # attack, options, norm, eps, steps before and after rows are taken out
    *(("apgd", APGD | {"loss": loss, "targets": 1}, "linf", 0.05, 5) for loss in ("ce", "dlr", "pm")),
    ("apgd", APGD | {"loss": "dlr_targeted", "targets": 2}, "linf", 0.05, 10),
    ("apgd_l1", APGD_L1 | {"steps": 9}, "l1", 1.0, 6),
    ("apgd_l1", {"steps": 9, "loss": "dlr_targeted", "targets": 2}, "l1", 1.0, 12),
    *(  # sixteen steps in all, so that rows of different phases are asked about in one step
        ("apgd_shrinking", {"steps": 13, "loss": loss, "rho": 0.75}, "linf", 0.1, 8)
        for loss in ("ce_masked_by_class", "ce_masked", "js")
    ),
    ("cw", CW, "l2", 1.0, 15),
    ("cw_cleverhans", CW, "l2", 1.0, 15),
    ("ddn", DDN, "l2", 1.0, 9),
    *(("fab", FAB | {"targets": targets}, norm, EPS[norm], 4) for targets in (0, 2) for norm in EPS),
    *(("fmn", FMN, norm, EPS[norm], 9) for norm in EPS),
    *(("malt", MALT, norm, 0.05, 10) for norm in ("linf", "l2")),
    *(("mim", MIM, norm, 0.1, 4) for norm in ("linf", "l2")),
    ("pgd", PGD, "linf", 0.1, 4),
    ("segpgd", PGD, "linf", 0.1, 4),
    *(("sld", SLD | {"random_start": start}, "l1", 0.5, 5) for start in (False, True)),
    ("sld", SLD | {"projection": "rescale"}, "l1", 0.5, 5),
    *(("spsa", SPSA | {"samples": 6, "random_start": start}, "linf", 0.1, 3) for start in (False, True)),
    *(("square", SQUARE, norm, 0.1, 12) for norm in EPS),
]


@pytest.mark.parametrize(("name", "options", "norm", "eps", "steps"), ROWS)
def test_rows_are_independent(name, options, norm, eps, steps):
    is_independent(partial(ATTACKS.get(name), **options), Case.usual(Threat(norm, eps)), steps)


def test_rows_are_independent_without_clipping():
    make = partial(ATTACKS.get("spsa_cleverhans"), **SPSA_PORT)
    is_independent(make, Case.usual(Threat("linf", 0.1, clip=False)), 3)


SHRINKING = {"steps": 13, "loss": "ce_masked", "rho": 0.75}
TARGETED = {"loss": "dlr_targeted", "targets": 5}
PASSES = [  # attack, options, restarts, norm, eps, forward and backward passes of a sample that is never broken
    # one forward pass is the loop's check; with targets one more is for the clean logits, and two classes are wrong
    ("apgd", APGD | {"loss": "ce", "targets": 1}, 1, "linf", 0.1, 9 + 1 + 1, 9 + 1),
    ("apgd", APGD | TARGETED, 1, "linf", 0.1, 2 * (9 + 1) + 2, 2 * (9 + 1)),
    ("apgd_shrinking", SHRINKING, 1, "linf", 0.1, 13 + 3 + 1, 13 + 3),
    ("fab", FAB | {"targets": 0}, 1, "linf", 0.1, 4 * 3 + 2, 4 * 2),
    ("fab", FAB | {"targets": 9}, 1, "linf", 0.1, 4 * 2 * 2 + 2, 4 * 2),
    ("fgsm", {}, 1, "linf", 0.1, 2, 1),
    ("pgd", PGD, 2, "linf", 0.1, 2 * 11, 2 * 10),
    ("apgd_l1", APGD_L1, 1, "l1", 1.0, 50 + 3 + 1, 50 + 3),
    ("apgd_l1", APGD_L1 | {"steps": 10}, 5, "l1", 1.0, 5 * (10 + 3 + 1), 5 * (10 + 3)),
    ("apgd_l1", {"steps": 7, "loss": "dlr_targeted", "targets": 5}, 1, "l1", 1.0, 2 * (7 + 3) + 2, 2 * (7 + 3)),
    ("cw_cleverhans", CW, 1, "l2", 0.1, 3 * 12 + 1, 3 * 12),
    ("ddn", {"steps": 25, "gamma": 0.05, "init_norm": 1.0}, 1, "l2", 0.5, 26, 25),
    ("fmn", FMN, 1, "linf", 0.1, 21, 20),
    # one forward pass for the loop's check, one for the clean logits, and a gradient for each of two wrong classes
    ("malt", MALT | {"candidates": 9, "targets": 1}, 1, "linf", 0.1, 10 + 2 + 2, 10 + 2),
    ("malt", MALT, 2, "linf", 0.1, 2 * (2 * 10 + 2 + 2), 2 * (2 * 10 + 2)),
    ("mim", MIM, 1, "linf", 0.1, 11, 10),
    ("noise", {}, 1, "linf", 0.1, 1, 0),
    ("noise", {}, 3, "linf", 0.1, 3, 0),
    ("sld", SLD, 1, "l1", 0.5, 21, 20),
    ("spsa", SPSA, 1, "linf", 0.1, 8 * 33 + 1, 0),
    ("square", SQUARE | {"queries": 30}, 1, "linf", 0.1, 31, 0),
    ("square", SQUARE | {"queries": 30}, 1, "l2", 0.5, 31, 0),
    ("square", SQUARE | {"queries": 30}, 1, "l1", 5.0, 31, 0),
]


@pytest.mark.parametrize(("name", "options", "restarts", "norm", "eps", "forwards", "backwards"), PASSES)
def test_passes(name, options, restarts, norm, eps, forwards, backwards):
    stage = {"attack": name, "restarts": restarts} | options
    assert attack_checks.stands(stage, norm, eps, shape=(2, 6, 6)) == (forwards, backwards)
    assert tuple(restarts * passes for passes in passes_of(ATTACKS.get(name)(**options), 3)) == (forwards, backwards)


@pytest.mark.parametrize(
    ("protocol", "classes", "changes", "forwards", "backwards"),
    [  # beside the loop's check and, with targets, the clean logits
        ("apgd-ce-linf-8_255", 10, {"steps": 100}, 101, 101),
        ("apgd-t-linf-8_255", 4, {"steps": 12}, 3 * 13 + 1, 3 * 13),
        ("fab-t-linf-8_255", 10, {"steps": 12, "targets": 9}, 9 * 2 * 12 + 1, 9 * 12),
        ("fab-t-linf-8_255", 2, {"steps": 12, "targets": 9}, 2 * 12 + 1, 12),
        ("fab-t-linf-8_255", 4, {"steps": 12, "targets": 0}, 4 * 12 + 1, 3 * 12),
        ("fab-t-linf-8_255", 2, {"steps": 12, "targets": 0}, 2 * 12 + 1, 12),
    ],
)
def test_passes_follow_the_number_of_classes(protocol, classes, changes, forwards, backwards):
    x, labels = torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(5)), torch.zeros(3, dtype=torch.int64)
    result = attack(attack_checks.Unbreakable(classes).eval(), x, labels, protocol, batch_size=2, **changes)
    assert not bool(result.broken.any())
    assert (result.forwards.tolist(), result.backwards.tolist()) == ([forwards + 1] * 3, [backwards] * 3)


def test_carlini_and_wagner_cost_no_more_than_all_their_iterations():
    forwards, backwards = attack_checks.stands({"attack": "cw", "restarts": 1} | CW, "l2", 0.5, shape=(2, 6, 6))
    most = passes_of(ATTACKS.get("cw")(**CW), 3)
    assert (forwards <= most[0], backwards <= most[1]) == (True, True)
    assert most == (3 * 12 + 1, 3 * 12)


REFUSED = [
    ("cw", CW, Threat("linf", 0.1), "linf"),
    ("cw_cleverhans", CW, Threat("linf", 0.1), "linf"),
    ("cw_cleverhans", CW, Threat("l2", 0.1, clip=False), "clipping"),
    ("ddn", DDN, Threat("l1", 0.1), "l1"),
    ("fmn", FMN, Threat("linf", 0.1, clip=False), "clipping"),
    ("sld", SLD, Threat("linf", 0.1), "linf"),
    ("spsa_cleverhans", SPSA_PORT, Threat("l2", 0.1, clip=False), "l2"),
    ("spsa_cleverhans", SPSA_PORT, Threat("linf", 0.1), "clipping"),
]


@pytest.mark.parametrize(("name", "options", "threat", "what"), REFUSED)
def test_a_threat_that_an_attack_does_not_know_is_refused(name, options, threat, what):
    label = torch.tensor([0])
    with pytest.raises(BadInputError, match=f"'{name}' .*{what}"):
        ATTACKS.get(name)(**options).start(attack_checks.rand(0, 1, 1, 2, 2), label, threat, label)
