"""What an audit is of: the model's parameters and what they answer on the first of the audited images."""

from torch import nn

from robustbench_kpca.audit import Audit, Subject
from robustbench_kpca.data._loading import spread
from robustbench_kpca.data._samples import Samples
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.runner import Runner
from robustbench_kpca.files import sha256
from robustbench_kpca.models.checkpoint import parameters_sha256
from robustbench_kpca.types import Images


def is_stochastic(model: nn.Module) -> bool:
    """Whether the model says itself that it draws noise at test time."""
    return any(getattr(module, "stochastic", False) for module in model.modules())


def audited_samples(samples: Samples, images: int) -> Samples:
    """Return those of an evaluation's images that its audit looks at."""
    return spread(samples.in_order(), images)


def subject_of(runner: Runner | None, model: nn.Module, name: str, samples: Samples, first: Images) -> Subject:
    """Identify model and images; `first` is the first batch of them. Without a runner no answer is asked for."""
    answers = "" if runner is None else sha256(runner.logits(first).cpu().contiguous().numpy().tobytes())
    return Subject(
        model=name, parameters_sha256=parameters_sha256(model), probe_sha256=answers,
        data=samples.name, split=samples.split, data_digest=samples.digest(),
    )  # fmt: skip


def require_subject(audit: Audit, runner: Runner, samples: Samples) -> None:
    """Refuse an audit that is not of this model and these samples.

    Raises:
        BadInputError: weights, images or answers differ.

    """
    model, device = runner.model, runner.device
    chosen = audited_samples(samples, audit.plan.images)
    first = chosen.take(list(range(min(audit.plan.batch_size, len(chosen))))).tensors()[0].to(device)
    own = None if is_stochastic(model) else Runner(model, audit.plan.batch_size, device)
    if subject_of(own, model, audit.subject.model, chosen, first) != audit.subject:
        raise BadInputError(
            f"the audit of '{audit.subject.model}' is of another model, other images or another device",
            fix="audit the model that is evaluated, where it is evaluated",
        )
