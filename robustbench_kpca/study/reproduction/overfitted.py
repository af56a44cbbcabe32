"""Trainings on attacks that ended in catastrophic overfitting, as their curves show it."""

from collections.abc import Iterable

from robustbench_kpca.models.families import task_of
from robustbench_kpca.report.curves import read_curves
from robustbench_kpca.study.reproduction.roles import Model, Roles
from robustbench_kpca.tasks import task_named
from robustbench_kpca.training.overfitting import overfitting
from robustbench_kpca.training.recipe import load_recipe


def overfitted(models: Iterable[Model], roles: Roles) -> tuple[str, ...]:
    """Return a sentence about each of these models whose training shows it: in which epochs, and by how much.

    A training without curves, or of a recipe that does not look for it, has no sentence.

    Raises:
        BadInputError: the file of curves is damaged.

    """
    return tuple(
        f"{model.name} shows catastrophic overfitting in {len(epochs)} of its epochs, the last being {max(epochs)}: "
        f"{epochs[max(epochs)]}"
        for model, epochs in ((model, _epochs(model, roles)) for model in models)
        if epochs
    )


def _epochs(model: Model, roles: Roles) -> dict[int, str]:
    """Return epochs, counted from 1, with what is seen in each."""
    if model.training is None or not roles.weights(model.training).with_suffix(".csv").is_file():
        return {}
    recipe = load_recipe(model.training.recipe, model.training.settings)[1]
    if recipe.adversarial is None:
        return {}
    score = next(iter(task_named(task_of(recipe.model)).scores))
    rows = read_curves(roles.weights(model.training)).rows
    seen = {int(row["epoch"]) + 1: overfitting(row, recipe.adversarial, score) for row in rows}
    return {epoch: text for epoch, text in seen.items() if text}
