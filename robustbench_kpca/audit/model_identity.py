"""What an audit is of: the model's parameters, what they answer on the first of the audited images, and its slope."""

import torch
from torch import nn

from robustbench_kpca.attack_loop.query import check_clean
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.data.scenes import Scenes
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.inference.runner import Runner, frozen, is_stochastic
from robustbench_kpca.inference.sliding_window.windows import Windowing, first_window
from robustbench_kpca.models.checkpoint import parameters_sha256, tensor_sha256
from robustbench_kpca.records.audit import Audit, Subject
from robustbench_kpca.types import Images, Labels, Logits, PerSample

# What stands in place of a gradient's digest
NOT_REPEATABLE = "not repeatable"
NONE = "cannot be taken"


def audited_samples(data: Samples | Scenes, images: int) -> Samples | Scenes:
    """Return those of an evaluation's images that its audit looks at, evenly spread; of scenes, those of one size."""
    data = data.in_order()
    if isinstance(data, Samples):
        return data.spread(images)
    if images < 1:
        raise BadInputError(f"limit {images}", expected="at least 1")
    alike = max(data.by_size(range(len(data))), key=len)
    chosen = min(images, len(alike))
    return data.take([alike[(2 * k + 1) * len(alike) // (2 * chosen)] for k in range(chosen)])


def first_images(data: Samples | Scenes, batch_size: int) -> Images:
    """Return the first batch as records of attacks show it to identify a model: of scenes one square window each."""
    count = min(batch_size, len(data))
    if isinstance(data, Samples):
        return data.take(list(range(count))).tensors()[0]
    scenes = [data.image(index) for index in range(count)]
    side = min(scenes[0].shape[:2])
    return torch.stack([first_window(scene, Windowing(side, side)) for scene in scenes])


def require_answers(runner: Runner, data: Samples | Scenes, images: Images, labels: Labels) -> None:
    """Refuse a model that is not for such data; `images` and `labels` are at most one batch of them.

    Raises:
        BadInputError: answers for images where pixels have labels, or the other way round; classes of other scenes.

    """
    logits = runner.logits(images)
    if logits.shape[2:] != labels.shape[1:]:
        check_clean(logits, labels)
    if isinstance(data, Scenes) and logits.shape[1] != data.classes:
        raise BadInputError(
            f"a model of {logits.shape[1]} classes for the {data.classes} of data '{data.name}'",
            fix="choose a segmenter that was trained on such scenes",
        )


def subject_of(runner: Runner | None, model: nn.Module, name: str, samples: Samples | Scenes, first: Images) -> Subject:
    """Identify model and images; `first` is the first batch of them. Without a runner no answer is asked for."""
    answers = "" if runner is None else tensor_sha256(runner.logits(first))
    return Subject(
        model=name, parameters_sha256=parameters_sha256(model), probe_sha256=answers,
        gradient_sha256=NOT_REPEATABLE if runner is None else _gradient_sha256(runner, first),
        data=samples.name, split=samples.split, data_digest=samples.digest(),
    )  # fmt: skip


def require_subject(audit: Audit, runner: Runner, samples: Samples | Scenes) -> None:
    """Refuse an audit that is not of this model and these samples.

    Raises:
        BadInputError: weights, images, answers or gradients differ.

    """
    model, device = runner.model, runner.device
    chosen = audited_samples(samples, audit.plan.images)
    first = first_images(chosen, audit.plan.batch_size).to(device)
    own = None if is_stochastic(model) else Runner(model, audit.plan.batch_size, device, window=runner.window)
    if subject_of(own, model, audit.subject.model, chosen, first) != audit.subject:
        raise BadInputError(
            f"the audit of '{audit.subject.model}' is of another model, other images or another device",
            fix="audit the model that is evaluated, where it is evaluated",
        )


def _gradient_sha256(runner: Runner, images: Images) -> str:
    """Digest the input gradient, taken twice: kernels that add up in any order give other bits each time."""
    try:
        with frozen(runner.model):
            once, again = (tensor_sha256(runner.gradient(images, _to_all_classes)[1]) for _ in range(2))
    except Exception:  # noqa: BLE001 (foreign code; what fails here is flagged by the attacks, which fail alike)
        return NONE
    return once if once == again else NOT_REPEATABLE


def _to_all_classes(logits: Logits) -> PerSample:
    """Cross-entropy to all classes alike: no label is asked for, every logit counts, and nothing saturates."""
    losses = -torch.log_softmax(logits, 1).mean(1)
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)
