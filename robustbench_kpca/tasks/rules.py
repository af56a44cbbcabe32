"""Rules that every honest record keeps, checked from the record and its table alone. Does not import torch.

A rule is a function of a record and its protocol. It returns what is wrong, naming the first row, or None. The rules
of a task are in its `pages.rules`; those here hold for every task. `tests/forgery/README.md` says what they can find.
"""

from collections.abc import Mapping
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.attacks.shared.passes import evaluated, stated
from robustbench_kpca.protocols.scenario import MANY, Attack, Corruption, Scenario
from robustbench_kpca.protocols.threat import Norm
from robustbench_kpca.records.audit_versions import fault, samples_allowed
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.table import COUNTS, UNATTACKED
from robustbench_kpca.tasks.facts import FACTS, Rows, Rule, first

_CLASSES = ("label", "class", "prediction", "clean_prediction")

Numbers = NDArray[np.float64]


def possible_passes(record: Record, scenario: Scenario) -> str | None:
    """Check that every sample cost a number of passes that the protocol can cost.

    At most: every restart of every attack, and one forward pass for each claim of success that did not hold. At least,
    where nothing ends the search early (the sample withstands, or the protocol wants the strongest image): every
    restart of every attack. Attacks of other libraries have no bounds.
    """
    if not isinstance(scenario, Attack) or not all(stated(stage.attack) for stage in scenario.stage):
        return None
    outcomes = record.outcomes
    try:
        least, most = _costs(scenario, outcomes)
    except (NameError, TypeError, AttributeError):
        return "an attack of its protocol lacks an option, or has one of the wrong type"
    owner, _ = outcomes.numbered("sample")
    rows = np.unique(owner, return_index=True)[1]
    retracted = scenario.draws * np.bincount(owner, outcomes["retracted"])
    whole = _whole(scenario, outcomes, rows)
    for kind, name in enumerate(("forwards", "backwards")):
        spent = np.bincount(owner, outcomes[name])
        high = most[kind] + (retracted if name == "forwards" else 0 * retracted)
        low = np.where(whole, least[kind], 0)
        for wrong, limit, word in ((spent > high, high, "most"), (spent < low, low, "least")):
            if wrong.any():
                first = int(np.where(wrong, rows, len(owner)).argmin())
                what = f"row {rows[first] + 1}, sample '{outcomes['sample'][rows[first]]}': {int(spent[first])} {name}"
                return f"{what}; the protocol costs at {word} {int(limit[first])}"
    return None


def _costs(scenario: Attack, outcomes: Outcomes) -> tuple[Numbers, Numbers]:
    """Return the least and the most (forward, backward) passes of a search that nothing ends early.

    The number of classes of the model is not in a record. Those seen are the fewest that it can have.
    """
    fewest = max([2, *(1 + int(outcomes[name].max()) for name in _CLASSES if name in outcomes.columns)])
    least, most = np.zeros(2), np.zeros(2)
    for stage in scenario.stage:
        formulas = stated(stage.attack)
        assert formulas is not None
        most += stage.restarts * np.array(stage.spent(*evaluated(formulas[0], stage.options, MANY)), float)
        least += stage.restarts * np.array(stage.spent(*evaluated(formulas[1], stage.options, fewest)), float)
    graded = "broken_by" not in outcomes.columns  # then the worst image of every stage is confirmed
    most[0] += len(scenario.stage) if graded else scenario.policy == "strongest"
    most[0] += scenario.storage is not None
    searches = 1 + len(scenario.below)
    return scenario.draws * searches * least, scenario.draws * searches * most


def _whole(scenario: Attack, outcomes: Outcomes, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Tell for which samples, whose first rows are `rows`, nothing ended the search early."""
    if "broken_by" not in outcomes.columns:
        return np.ones(len(rows), bool)
    by = outcomes["broken_by"][rows]
    attacked = ~np.isin(by, UNATTACKED) | (scenario.labels != "true")
    strongest = scenario.policy == "strongest" and not scenario.below
    whole: NDArray[np.bool_] = (by == "") | (attacked & strongest)
    return whole


TEXTS = ("sample", "corruption")
_KEYS = (*TEXTS, "severity", "picture", "class", "position")
ROUNDING = 1e-6
"""How far a stored perturbation may exceed eps: the images are in single precision, whose steps near 1 are 6e-8."""
FEW = 8
"""Fewer attacked samples than this say nothing about how far the perturbations should reach."""


def one_row_each(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that no row is there twice: one for each sample, or for each of its cells, pictures and classes."""
    outcomes = record.outcomes
    keys = np.zeros(len(outcomes), np.int64)
    for name in _KEYS:
        if name in outcomes.columns:
            number, size = _numbered(outcomes, name)
            if len(keys) and int(keys.max()) >= 2**62 // max(size, 1):
                keys = np.unique(keys, return_inverse=True)[1]
            keys = keys * size + number
    ordered = np.sort(keys)
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    again = np.ones(len(keys), bool)
    again[np.unique(keys, return_index=True)[1]] = False
    return first(outcomes, again, "it is there twice")


def _numbered(outcomes: Outcomes, name: str) -> tuple[NDArray[np.int64], int]:
    """Return a column as numbers from 0, equal where it is equal, and a number above all of them."""
    if name in TEXTS:
        codes, texts = outcomes.numbered(name)
        return codes, len(texts)
    values = outcomes[name]
    if not len(values):
        return values, 1
    least, most = int(values.min()), int(values.max())
    if most - least < 2**20:
        return values - least, most - least + 1
    distinct, numbers = np.unique(values, return_inverse=True)
    return numbers, len(distinct)


def every_cell(record: Record, scenario: Scenario) -> str | None:
    """Check that every sample was shown in every cell of the grid, and in no other."""
    if not isinstance(scenario, Corruption):
        return None
    outcomes = record.outcomes
    (owner, samples), (corruption, names) = outcomes.numbered("sample"), outcomes.numbered("corruption")
    numbers = {name: number for number, name in enumerate(names)}
    present = np.zeros((len(samples), len(scenario.cells)), bool)
    other = np.ones(len(outcomes), bool)
    for place, (name, severity) in enumerate(scenario.cells):
        in_cell = (corruption == numbers.get(name, -1)) & (outcomes["severity"] == severity)
        present[owner[in_cell], place] = True
        other &= ~in_cell
    wrong: Rows = np.asarray(~present.all(1))
    wrong[owner[other]] = True
    if not wrong.any():
        return None
    number = int(wrong.argmax())
    rows = outcomes.where(owner == number)
    cells, wanted = set(zip(rows["corruption"].tolist(), rows["severity"].tolist(), strict=True)), set(scenario.cells)
    odd_cells, word = (wanted - cells, "is missing") if wanted - cells else (cells - wanted, "is not of the protocol")
    name, severity = sorted(odd_cells)[0]
    return f"sample '{samples[number]}': cell {name}, severity {severity} {word}"


def counts_add_up(record: Record, scenario: Scenario) -> str | None:
    """Check that counts are not negative, and that the passes of the samples add up to the record's."""
    outcomes, passes = record.outcomes, record.passes
    for name in COUNTS:
        if name in outcomes.columns and (outcomes[name] < 0).any():
            return first(outcomes, outcomes[name] < 0, f"{name} = {{{name}}} is negative")
    for part, whole in (("retracted", "forwards"), ("nonfinite", "forwards"), ("zero_gradients", "backwards")):
        if part in outcomes.columns and (more := outcomes[part] > outcomes[whole]).any():
            return first(outcomes, more, f"{part} = {{{part}}}, of {{{whole}}} {whole}")
    if not isinstance(scenario, Attack):
        return None if passes.backwards == 0 else f"{passes.backwards} backward passes without an attack"
    clean = scenario.draws * record.spec.data.n  # one forward pass for each clean image
    forwards, backwards = clean + int(outcomes["forwards"].sum()), int(outcomes["backwards"].sum())
    if (passes.forwards, passes.backwards) == (forwards, backwards):
        return None
    return f"{passes.forwards} and {passes.backwards} passes, but its samples add up to {forwards} and {backwards}"


def inside_the_ball(record: Record, scenario: Scenario) -> str | None:
    """Check that no perturbation is larger than eps.

    `linf` and `l2` of a record are in pixel space, or in that of signals. In normalised space the largest standard
    deviation of a channel bounds what eps can be in pixels. An L1 ball bounds the L2 norm, and so do pixels of three
    channels; of patches only the box is known.
    """
    if not isinstance(scenario, Attack) or "linf" not in record.outcomes.columns:
        return None
    scale = 1.0
    if scenario.space == "normalised":
        if not record.spec.model.pixel_std:
            return None
        scale = max(record.spec.model.pixel_std)
    outcomes, limit = record.outcomes, _longest(scenario) * scale
    column = "linf" if scenario.norm in ("linf", "patches") else "l2"
    wrong = ~(outcomes[column] <= limit * (1 + 1e-5) + ROUNDING) | (outcomes[column] < 0)
    return first(outcomes, wrong, f"{column} = {{{column}:.6g}}, beyond eps = {limit:.6g}")


def true_distances(record: Record, scenario: Scenario) -> str | None:
    """Check that distances are numbers, that L2 is no shorter than L-infinity, and that what an attack broke moved.

    At distance 0 an image is the clean one, which a model without noise answers as before.
    """
    outcomes = record.outcomes
    if not isinstance(scenario, Attack) or not {"linf", "l2"} <= outcomes.columns.keys():
        return None
    linf, l2 = outcomes["linf"], outcomes["l2"]
    possible = np.isfinite(linf) & np.isfinite(l2) & (linf >= 0) & (l2 >= linf * (1 - ROUNDING) - ROUNDING)
    broken = first(outcomes, ~possible, "L-infinity {linf:.6g} and L2 {l2:.6g}, which cannot both be")
    if broken is not None or "broken_by" not in outcomes.columns or is_noisy(record):
        return broken
    still = np.isin(outcomes["broken_by"], scenario.names) & (l2 == 0)
    return first(outcomes, still, "broken by '{broken_by}' at distance 0")


def is_noisy(record: Record) -> bool:
    """Whether the record says that its model may answer one image twice in different ways."""
    return record.spec.protocol.resolved.get("draws", 1) != 1 or any(
        flag.startswith("preflight, allowed: ") or "changed by" in flag for flag in record.flags
    )


def _longest(scenario: Attack) -> float:
    return {"l0": sqrt(3 * scenario.eps), "patches": 1.0}.get(scenario.norm, scenario.eps)


_REACH: Mapping[Norm, frozenset[str]] = {
    "linf": frozenset({"fgsm", "apgd", "noise", "square"}),
    "l2": frozenset({"fgsm", "noise"}),
}
"""Attacks whose first step goes to the surface of the ball. Those below do so only if they start at random in it."""
_AT_RANDOM = frozenset({"pgd", "segpgd"})


def reaches_eps(record: Record, scenario: Scenario) -> str | None:
    """Check that some perturbation is longer than half of eps, where an attack begins on or all over the ball.

    A record of a smaller eps, passed off as one of a larger, has none. An attack that begins at the clean image may
    break all images near it. To a model that answers the same to all, no image is worse than the clean one.
    """
    if not isinstance(scenario, Attack) or "linf" not in record.outcomes.columns or scenario.space == "normalised":
        return None
    reaching = _REACH.get(scenario.norm, frozenset())
    begins = [
        stage.attack in reaching or (stage.attack in _AT_RANDOM and stage.options["random_start"])
        for stage in scenario.stage
    ]
    if not any(begins) or scenario.threat.counted:
        return None
    outcomes = record.outcomes
    if scenario.below or int((outcomes["forwards"] > 0).sum()) < FEW:
        return None
    if "prediction" in outcomes.columns and len(np.unique(outcomes["prediction"])) == 1:
        return None
    column = "linf" if scenario.norm == "linf" else "l2"
    longest = float(outcomes[column].max())
    if longest > scenario.eps / 2:
        return None
    return f"no perturbation is longer than {longest:.4g}, less than half of eps = {scenario.eps:.4g}"


def audited_fully(record: Record, scenario: Scenario) -> str | None:
    """Check that an audit has every check of its version and level, once, and the limits of its version."""
    if record.audit is None:
        return None
    return fault(record.audit) or asked_too_little(record, scenario)


_BY_RIGHT_IMAGES = ("gradients", "slope", "ascent", "reach", "smoothed", "stairs")
_MAY_BE_EMPTY = ("preflight", "mechanism", "surrogate", "finite", "runs", "untouched")
_SMALLEST_EPS = 1 / 2550
"""A tenth of a level of a pixel."""


def asked_too_little(record: Record, scenario: Scenario) -> str | None:
    """Say why an audit could have raised no flag: too few images, too small an eps, or checks without values."""
    audit = record.audit
    assert audit is not None
    plan = audit.plan
    if plan.images <= samples_allowed(plan.images) and plan.images < record.spec.data.n:
        return f"its audit is of {plan.images} images, on which no check can raise a flag"
    if not _SMALLEST_EPS <= plan.eps <= 1:
        return f"its audit is at eps = {plan.eps:.3g}, outside of {_SMALLEST_EPS:.3g} to 1"
    failed = any(check.name == "runs" and check.values for check in audit.checks)
    if failed or plan.images <= samples_allowed(plan.images) or len(audit.checks) == 1:
        return None
    empty = [check.name for check in audit.checks if not check.values and check.name not in _MAY_BE_EMPTY]
    wrong_on_all = set(empty) == {check.name for check in audit.checks if check.name in _BY_RIGHT_IMAGES}
    if not empty or (wrong_on_all and plan.images * _right_before(record, scenario) < _LIKELY):
        return None
    return f"check '{empty[0]}' of its audit has no values"


_LIKELY = 10
"""Right images among those of an audit, on average, where it cannot be that all were wrong (p below 5e-5)."""


def _right_before(record: Record, scenario: Scenario) -> float:
    """Return the share of samples that were right before the attack; 0 where tables do not say."""
    outcomes = record.outcomes
    if "clean_prediction" not in outcomes.columns or not isinstance(scenario, Attack) or scenario.labels != "true":
        return 0.0
    return float((outcomes["clean_prediction"] == outcomes["label"]).mean())


COMMON: Mapping[str, Rule] = {
    "one-row-each": one_row_each,
    "every-cell": every_cell,
    "counts-add-up": counts_add_up,
    "possible-passes": possible_passes,
    "inside-the-ball": inside_the_ball,
    "true-distances": true_distances,
    "reaches-eps": reaches_eps,
    "audited-fully": audited_fully,
    **FACTS,
}
