"""Target classes of an attack: on the clean image, the classes with the largest logits other than the label."""

from jaxtyping import Int64
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attacks.shared.losses import runners_up
from robustbench_kpca.types import Labels, Mask, Query, State


def aim(state: State, query: Query) -> State:
    """Set `targets` and `classes` of the samples whose `classes` is still 0, with one forward pass of `clean` for each.

    `start` cannot query the model, so it sets `classes` = 0.
    """
    new = unaimed(state)
    if new is None:
        return state
    logits = query.rows(new).logits(state["clean"][new])
    targets, classes = state["targets"].clone(), state["classes"].clone()
    targets[new] = runners_up(logits, state["y"][new], targets.shape[1])
    classes[new] = logits.shape[1]
    return aimed(state, targets, classes)


def unaimed(state: State) -> Mask | None:
    """Tell which samples have no targets yet; None if all have.

    A step hands on the tensor `classes` as it is, so it is looked at once: to look at it may wait.
    """
    classes = state["classes"]
    if classes in _AIMED:
        return None
    new = classes == 0
    if bool(new.any()):
        return new
    _AIMED[classes] = True
    return None


def aimed(state: State, targets: Int64[Tensor, "batch target"], classes: Labels) -> State:
    """Return the state with the targets of all samples; no entry of `classes` is 0."""
    _AIMED[classes] = True
    return state | {"targets": targets, "classes": classes}


_AIMED = WeakIdKeyDictionary()  # tensors without a 0


def target_of_run(state: State) -> Labels:
    """Return each sample's target class in its current run."""
    return state["targets"].gather(1, state["run"][:, None])[:, 0]


def runs_of(state: State, targets: int) -> Labels:
    """Return each sample's number of runs: one for each of `targets` wrong classes, at most K - 1."""
    return (state["classes"] - 1).clamp(max=targets)


def require_one_target(loss: str, targets: int) -> None:
    """Refuse more than one target for an untargeted loss.

    Raises:
        BadInputError: the loss is untargeted and `targets` is not 1.
    """
    if not loss.endswith("_targeted") and targets != 1:
        raise BadInputError(
            f"targets = {targets} with loss '{loss}'",
            expected="1 for an untargeted loss",
            fix=f"use loss = '{loss}_targeted'" if loss in ("ce", "dlr") else "",
        )
