"""Tables of a classifier's records: accuracy and error by corruption, severity and group; CE; and their rules."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.metrics import telling
from robustbench_kpca.metrics.accuracy import guessing
from robustbench_kpca.metrics.corruption import (
    corruption_errors,
    mean_errors,
    relative_corruption_errors,
)
from robustbench_kpca.metrics.shared.error_table import ALEXNET, CorruptionGrid
from robustbench_kpca.protocols.corruption_names import counted
from robustbench_kpca.protocols.scenario import Attack, Certificate, Corruption, Ood, Scenario
from robustbench_kpca.records.estimate import Estimate, mean
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.proof import DECIMALS, LARGEST, proof_of
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.table import CLEAN, UNATTACKED
from robustbench_kpca.tasks.facts import Rule, first
from robustbench_kpca.tasks.pages import Pages
from robustbench_kpca.tasks.rules import COMMON

if TYPE_CHECKING:
    import pandas as pd


def known_classes(record: Record, scenario: Scenario) -> str | None:
    """Check that labels are classes of the data, and predictions classes or -1 (a logit was not finite)."""
    outcomes = record.outcomes
    if isinstance(scenario, Ood):
        return first(outcomes, ~np.isin(outcomes["label"], (0, 1)), "label = {label}, which is neither 0 nor 1")
    labels = outcomes["label"]
    wrong = (labels < 0) | (labels >= record.spec.data.classes)
    broken = first(outcomes, wrong, f"label = {{label}} of {record.spec.data.classes} classes")
    for name in ("prediction", "clean_prediction", "unmasked_prediction"):
        if broken is None and name in outcomes.columns:
            broken = first(outcomes, outcomes[name] < -1, f"{name} = {{{name}}} is no class")
    return broken


def one_label_each(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that a sample has one label, in whatever cell it is shown."""
    outcomes = record.outcomes
    owner, _ = outcomes.numbered("sample")
    rows = np.unique(owner, return_index=True)[1]
    other = outcomes["label"] != outcomes["label"][rows][owner]
    return first(outcomes, other, "its label is not the same everywhere")


def rank_fits(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that the label has rank 0 exactly where it is the prediction."""
    outcomes = record.outcomes
    if "rank" not in outcomes.columns:
        return None
    wrong = (outcomes["rank"] == 0) != (outcomes["prediction"] == outcomes["label"])
    wrong |= outcomes["rank"] < 0
    return first(outcomes, wrong, "rank {rank} with prediction {prediction} and label {label}")


def confidence_fits(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that confidences are probabilities."""
    outcomes = record.outcomes
    if "confidence" not in outcomes.columns:
        return None
    wrong = (outcomes["confidence"] < 0) | (outcomes["confidence"] > 1)
    return first(outcomes, wrong, "confidence = {confidence}")


def finite_scores(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that the scores of known and unknown images are numbers: an infinite one would win every comparison."""
    outcomes = record.outcomes
    for name in ("max_log_softmax", "max_logit", "log_sum_exp"):
        if name in outcomes.columns and not np.isfinite(outcomes[name]).all():
            return first(outcomes, ~np.isfinite(outcomes[name]), f"{name} = {{{name}}}")
    return None


def broken_fits(record: Record, scenario: Scenario) -> str | None:
    """Check that a sample is broken exactly where the deciding prediction is wrong, by an attack of the protocol."""
    if not isinstance(scenario, Attack):
        return None
    outcomes = record.outcomes
    by, wrong = outcomes["broken_by"], outcomes["prediction"] != outcomes["label"]
    attacks = scenario.names
    broken = first(outcomes, ~np.isin(by, ["", *UNATTACKED, *attacks]), "broken by '{broken_by}', no attack of it")
    if "unrounded_by" in outcomes.columns:
        possible = np.isin(outcomes["unrounded_by"], ["", *UNATTACKED, *attacks])
        broken = broken or first(outcomes, ~possible, "broken by '{unrounded_by}' before rounding, no attack of it")
    unbroken = (by == "") & wrong
    unfounded = np.isin(by, attacks) & ~wrong
    stands = "prediction {prediction}, label {label}, broken by '{broken_by}'"
    broken = broken or first(outcomes, unbroken, f"it counts as unbroken: {stands}")
    broken = broken or first(outcomes, unfounded, f"it counts as broken: {stands}")
    if broken is None and scenario.labels == "true":
        before = outcomes["clean_prediction"] != outcomes["label"]
        odd = before != (by == CLEAN)
        if scenario.cut_off:  # the cut-off image decides whether a sample is attacked, and it may be right
            odd &= ~before
        broken = first(outcomes, odd, "clean prediction {clean_prediction}, label {label}, broken by '{broken_by}'")
    return broken


def attacked(record: Record, scenario: Scenario) -> str | None:
    """Check that samples that were right were attacked, and that those that were wrong cost nothing (true labels)."""
    if not isinstance(scenario, Attack) or not scenario.names:
        return None
    if scenario.imported is not None and record.images_file is None:
        return "it is of images that others found, and keeps none of them"
    outcomes = record.outcomes
    before = np.isin(outcomes["broken_by"], UNATTACKED)
    idle = ~before & (outcomes["forwards"] < 1)
    broken = first(outcomes, idle, "it was never attacked: {forwards} forward passes")
    if broken is None and scenario.labels == "true" and not scenario.below:
        spent = before & ((outcomes["forwards"] > 0) | (outcomes["backwards"] > 0))
        broken = first(outcomes, spent, "{forwards} forward passes, though it was wrong before")
    return broken


def votes_give_radius(record: Record, scenario: Scenario) -> str | None:
    """Check that radius, abstention and verdict of a certificate are those that its counts prove."""
    if not isinstance(scenario, Certificate):
        return None
    proof = proof_of(record.spec.model.config, "the model's configuration")
    if proof is None or proof.norm != scenario.norm:
        return f"a certificate in {scenario.norm} of a model that states {'no proof' if proof is None else proof.name}"
    outcomes = record.outcomes
    votes, rivals = outcomes["votes"].tolist(), outcomes["rival"].tolist()
    counted = (outcomes["votes"] >= 0) & (outcomes["rival"] >= 0)
    if proof.drawn:
        counted &= outcomes["votes"] + outcomes["rival"] == scenario.samples
    else:
        views = proof.views(_side(record))
        counted &= (outcomes["votes"] <= views) & (outcomes["votes"] + outcomes["rival"] <= views + 1)
    broken = first(outcomes, ~counted, "{votes} and {rival} votes, which cannot be")
    if broken is not None:
        return broken
    radii = np.array([proof.radius(*pair, scenario.eps, scenario.alpha) for pair in zip(votes, rivals, strict=True)])
    same = np.abs(np.maximum(radii, 0) - outcomes["radius"]) <= 2 / DECIMALS  # libraries differ in the last digit
    reached = outcomes["radius"] if proof.drawn else radii
    same &= (reached >= scenario.radius) == (outcomes["certified"] == 1)
    same &= (outcomes["prediction"] == -1) == (radii < 0)
    return first(outcomes, ~same, "radius {radius:g} for class {prediction}, by {votes} votes against {rival}")


def _side(record: Record) -> int:
    """Return the side of the images that the certified model takes, or the largest where its base model states none."""
    base = record.spec.model.config.get("of")
    stated = base.get("img_size") if isinstance(base, dict) else None
    return min(stated, LARGEST) if isinstance(stated, int) else LARGEST


RULES: Mapping[str, Rule] = {
    **COMMON,
    "known-classes": known_classes,
    "one-label-each": one_label_each,
    "rank-fits": rank_fits,
    "confidence-fits": confidence_fits,
    "finite-scores": finite_scores,
    "broken-fits": broken_fits,
    "attacked": attacked,
    "votes-give-radius": votes_give_radius,
}


_ANSWERS = {
    "clean": "prediction", "corruption": "prediction", "attack": "clean_prediction", "shift": "unmasked_prediction",
}  # fmt: skip
"""Kind of protocol -> the column with the answers to clean samples."""


class ClassificationPages(Pages):
    """Top-1 accuracy and top-1 error."""

    quantity = "accuracy"
    error = "top-1 error"
    rules = RULES

    def clean_answers(self, record: Record) -> tuple[Outcomes, NDArray[np.int64]] | None:
        """Return the rows of clean samples, and the class that each was given."""
        outcomes, name = record.outcomes, _ANSWERS.get(record.kind)
        if record.kind == "corruption":
            outcomes = outcomes.where(outcomes["severity"] == 0)
        return None if name is None or not len(outcomes) else (outcomes, outcomes[name])

    def cells(self, record: Record) -> list[dict[str, Any]]:
        """Return per cell: corruption, severity, top-1 and top-5 accuracy in [0, 1] with Wilson intervals."""
        top1, top5 = (CorruptionGrid.of(record.outcomes, top).top1() for top in (1, 5))
        return [
            {"corruption": name, "severity": severity, "top1": accuracy.__dict__, "top5": top5[name, severity].__dict__}
            for (name, severity), accuracy in top1.items()
        ]

    def by_corruption(self, record: Record) -> "pd.DataFrame":
        """Return per corruption, in percent: error at each severity, their mean and, relative to AlexNet, CE."""
        import pandas as pd

        grid = CorruptionGrid.of(record.outcomes)
        table = grid.table(record.spec.model.name)
        columns = {str(level): [table.cells[name, level] for name in grid.corruptions] for level in grid.severities}
        columns["mean"] = list(mean_errors(table).values())
        scenario = record.spec.protocol.scenario
        if isinstance(scenario, Corruption) and scenario.reference == "alexnet":
            published = [ALEXNET.knows(name, grid.severities) for name in grid.corruptions]
            if all(published):  # for the extra corruptions only means over five severities are published
                columns["CE"] = list(corruption_errors(table, ALEXNET).values())
                if scenario.clean:
                    columns["relative CE"] = list(relative_corruption_errors(table, ALEXNET).values())
        return 100 * pd.DataFrame(columns, index=pd.Index(grid.corruptions, name="corruption"))

    def along_severity(self, record: Record) -> dict[int, Estimate]:
        """Return top-1 accuracy by severity, averaged over all but the extra corruptions; 0: clean images."""
        grid = CorruptionGrid.of(record.outcomes)
        clean = {} if grid.clean_wrong is None else {0: mean((~grid.clean_wrong).astype(float))}
        averaged = [at for at, name in enumerate(grid.corruptions) if name in counted(grid.corruptions)]
        levels = enumerate(grid.severities)
        return clean | {level: mean(1 - grid.wrong[:, averaged, at].mean(axis=1)) for at, level in levels}

    def chance(self, record: Record, name: str) -> float | None:
        """Return that of accuracies without an attack, too: it depends on the answers of the model."""
        guessed = name in ("clean_accuracy", "shift_accuracy")
        return guessing(record.outcomes) if guessed else super().chance(record, name)

    def headline(self, record: Record) -> list[str]:
        """Return all metrics that tell models apart, the clean accuracy first."""
        names = telling(record.metrics, record.spec.data.classes)
        return sorted(names, key=lambda name: name != "clean_accuracy")


PAGES = ClassificationPages()
