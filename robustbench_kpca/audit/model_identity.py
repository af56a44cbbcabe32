"""Identify the model of an audit: digests of its parameters, of logits on the first images, and of a gradient."""

from functools import lru_cache

import torch
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca._engine.inference.runner import Runner, is_stochastic
from robustbench_kpca.audit.first_batch import FirstBatch
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.models.bundle import bundled, parameters_of
from robustbench_kpca.models.checkpoint import parameters_sha256, tensor_sha256
from robustbench_kpca.models.loading import load_model
from robustbench_kpca.records.audit import Audit, Subject
from robustbench_kpca.tasks import task_named
from robustbench_kpca.types import Images, Logits, PerSample

SAME_ANSWERS = 1e-3
"""Most difference of logits, in units of the largest, that rounding on another device makes."""
# Recorded instead of a digest where the gradient has none
NOT_REPEATABLE = "not repeatable"
NONE = "cannot be taken"


def subject_of(runner: Runner | None, model: nn.Module, name: str, data: Dataset, first: Images) -> Subject:
    """Identify model and images; `first` is the first batch of them. Without a runner the model is not called."""
    answers = "" if runner is None else tensor_sha256(runner.logits(first))
    return Subject(
        model=name,
        parameters_sha256=parameters_sha256(model),
        probe_sha256=answers,
        gradient_sha256=NOT_REPEATABLE if runner is None else _gradient_sha256(runner, first),
        data=data.name,
        split=data.split,
        data_digest=data.digest(),
    )


def require_subject(audit: Audit, runner: Runner, data: Dataset) -> None:
    """Refuse an audit of another model or of other samples.

    Raises:
        BadInputError: weights, images, logits or gradients differ from those of the audit.
    """
    model, device = runner.model, runner.device
    compute, size = task_named(data.task).compute, audit.plan.batch_size
    chosen = compute.audited(data, audit.plan.images)
    first = compute.first_inputs(model, chosen, None, size).to(device)
    fresh = None if is_stochastic(model) else Runner(model, size, device, presentation=runner.presentation)
    if subject_of(fresh, model, audit.subject.model, chosen, first) != audit.subject:
        raise BadInputError(
            f"the audit of '{audit.subject.model}' was made with another model, other images or on another device",
            fix="audit the same model, on the same images and device, as in the evaluation",
        )


def impostor(runner: Runner, first: FirstBatch) -> list[str]:
    """Return a flag if a model has the weights of a bundled one and answers otherwise: another network answers.

    A network that is hidden from `state_dict` is seen in no digest of weights. The same weights in another attention
    are no lie: such a model states another configuration.

    Args:
        runner: runner of the model.
        first: its first inputs and answers.
    """
    model = runner.model
    weights, config = parameters_sha256(model), getattr(model, "config", None)
    name = next((name for name in bundled() if parameters_of(name) == weights), None)
    if name is None or runner.draws > 1:
        return []
    bundled_model = _bundled(name).to(runner.device)
    if config and config != bundled_model.config:
        return []
    answers = Runner(bundled_model, runner.batch_size, runner.device, runner.draws, presentation=runner.presentation)
    expected = answers.logits(first.images)[: len(first.logits)].to(first.logits)
    change = float((expected - first.logits).abs().max() / expected.abs().max())
    if change <= SAME_ANSWERS:
        return []
    return [f"the weights are those of {name}, but the answers are not (they differ by {change:.2g}): another network"]


@lru_cache(maxsize=1)
def _bundled(name: str) -> nn.Module:
    """Load a bundled model, once for the evaluations of it in a row."""
    return load_model(name)


def _gradient_sha256(runner: Runner, images: Images) -> str:
    """Digest the input gradient. It is computed twice: some kernels sum in varying order, so the bits can differ."""
    try:
        with frozen(runner.model):
            once, again = (tensor_sha256(runner.gradient(images, _to_all_classes)[1]) for _ in range(2))
    except Exception:  # noqa: BLE001 (the model can raise anything; the attacks fail in the same way and are flagged)
        return NONE
    return once if once == again else NOT_REPEATABLE


def _to_all_classes(logits: Logits) -> PerSample:
    """Mean cross-entropy over all classes: it needs no label, depends on every logit and does not saturate."""
    losses = -torch.log_softmax(logits, 1).mean(1)
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)
