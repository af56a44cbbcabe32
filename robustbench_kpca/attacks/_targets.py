"""Which classes an attack aims at: the strongest ones on the clean image other than the label, one after another."""

from robustbench_kpca.attacks.shared.losses import runners_up
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.types import Labels, Query, State


def aim(state: State, query: Query) -> State:
    """Fill `targets` and `classes` of the samples whose `classes` is still 0: one forward pass of `clean` for each.

    Only a step can ask the model, so a search starts with `classes` = 0.
    """
    new = state["classes"] == 0
    if not bool(new.any()):
        return state
    logits = query.rows(new).logits(state["clean"][new])
    targets, classes = state["targets"].clone(), state["classes"].clone()
    targets[new] = runners_up(logits, state["y"][new], targets.shape[1])
    classes[new] = logits.shape[1]
    return state | {"targets": targets, "classes": classes}


def target_of_run(state: State) -> Labels:
    """Return every sample's class of the run that it is in."""
    return state["targets"].gather(1, state["run"][:, None])[:, 0]


def runs_of(state: State, targets: int) -> Labels:
    """Return how many runs a sample has: one for each of `targets` wrong classes, K - 1 at most."""
    return (state["classes"] - 1).clamp(max=targets)


def require_one_target(loss: str, targets: int) -> None:
    """Refuse several targets for a loss that knows of none.

    Raises:
        BadInputError: an untargeted loss with more than one.

    """
    if not loss.endswith("_targeted") and targets != 1:
        raise BadInputError(
            f"targets = {targets} with loss '{loss}'",
            expected="1 for an untargeted loss",
            fix=f"use loss = '{loss}_targeted'" if loss in ("ce", "dlr") else "",
        )
