"""`audit`: whether a model's robust accuracy can be believed, asked of the model itself, in seconds."""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import nn

from robustbench_kpca.audit.bench import Bench
from robustbench_kpca.audit.budgets import resolved
from robustbench_kpca.audit.checks import run_checks
from robustbench_kpca.audit.limits import limits
from robustbench_kpca.audit.model_identity import audited_samples, first_images, require_answers, subject_of
from robustbench_kpca.audit.preflight import preflight
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.data.scenes import Scenes
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.api import as_data
from robustbench_kpca.evaluation.dense import scene_batch
from robustbench_kpca.evaluation.trial import BATCH_SIZE
from robustbench_kpca.inference.environment import revision, version
from robustbench_kpca.inference.runner import Runner, device_for, is_stochastic, own_window
from robustbench_kpca.inference.sliding_window.windows import batch_size_for
from robustbench_kpca.models.checkpoint import parameters_sha256, tensor_sha256
from robustbench_kpca.protocols.threat import Threat, parse_fraction
from robustbench_kpca.records.audit import Audit, Check, Plan, Subject, audit_path, load_audit
from robustbench_kpca.types import Images, Labels

IMAGES = 64
SCENES = 16  # every attack goes on to its end on every one
EPS = "8/255"


def audit(
    model: nn.Module,
    images: Any,
    labels: Any = None,
    *,
    eps: str | float = EPS,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    device: str | None = None,
    name: str | None = None,
    sibling: nn.Module | None = None,
    sibling_name: str | None = None,
    allow: Collection[str] | None = None,
    out: Path | None = None,
    fresh: bool = False,
) -> Audit:
    """Audit a model: ask what an honestly evaluated one would answer in a known way (docs/audit.md).

    Args:
        model: as in `evaluate`.
        images: as in `evaluate`.
        labels: as in `evaluate`.
        eps: radius of the L-infinity ball.
        limit: how many of the images, spread over the set; by default 64, and 16 scenes.
        seed: of all randomness.
        batch_size: at which the model always runs; by default 64, and of scenes no more than there are, fewer where
            the logits of their pixels would take much memory.
        device: such as "cuda"; by default the model's own.
        name: of the model; by default its class.
        sibling: another model of the same task, whose adversarial images are shown to this one.
        sibling_name: of the sibling; by default its class.
        allow: if given, what preflight finds is refused as in `evaluate`, but for these checks; else it is a flag.
        out: folder that keeps the audit; one by the same code of the same model, images and plan is returned as it is.
        fresh: audit again even if such a one is there.

    Raises:
        BadInputError: nothing can be asked: images that cannot be used, a model that fails on clean ones.

    """
    data = as_data(images, labels)
    samples = audited_samples(data, (SCENES if isinstance(data, Scenes) else IMAGES) if limit is None else limit)
    size = _batch_size(model, samples) if batch_size is None else batch_size
    where = device_for(model, device)
    x, y = (part.to(where) for part in _tensors(samples))
    started = time.perf_counter()
    other = None if sibling is None else (sibling_name or type(sibling).__name__)
    plan = Plan(
        norm="linf", eps=parse_fraction(eps), images=len(samples), seed=seed, batch_size=size,
        attacks=resolved(eps, per_pixel=y.ndim > 1), limits=limits(len(samples), per_pixel=y.ndim > 1), sibling=other,
    )  # fmt: skip
    name = name or type(model).__name__
    noisy = is_stochastic(model)
    runner = None if noisy else Runner(model.to(where), size, where, window=own_window(model) if y.ndim > 1 else 0)
    if runner is not None:
        require_answers(runner, samples, x[:size], y[:size])
    if runner is not None and allow is not None:
        preflight(runner, x[:size], y[:size], allow)
    subject = subject_of(runner, model, name, samples, first_images(samples, size).to(where))
    code = version("robustbench-kpca"), revision()
    kept = None if out is None or fresh else _kept(out, subject, plan)
    if kept is not None and (kept.version, kept.revision) == code:
        return kept
    if runner is None:
        checks = [_stochastic()]
    else:
        before = _state(model)
        bench = Bench(model, runner, x, y, eps, Threat("linf", plan.eps), seed, sibling)
        checks = [*run_checks(bench), _untouched(before, _state(model))]
    done = Audit(
        subject=subject, plan=plan, plan_digest=plan.digest(), checks=tuple(checks), version=code[0],
        revision=code[1], seconds=round(time.perf_counter() - started, 3),
    )  # fmt: skip
    if out is not None:
        done.save(out)
    return done


def _tensors(data: Samples | Scenes) -> tuple[Images, Labels]:
    return data.tensors() if isinstance(data, Samples) else scene_batch(data, len(data))


def _batch_size(model: nn.Module, data: Samples | Scenes) -> int:
    if isinstance(data, Samples):
        return BATCH_SIZE
    side = max(own_window(model), *data.size(0))
    return batch_size_for(data.classes, side, min(BATCH_SIZE, len(data)))


def _stochastic() -> Check:
    """Return the one check of a model that says itself that it draws noise: no answer of it could be repeated."""
    return Check(
        name="preflight", values={"stochastic": 1}, limit=0, flag=True,
        saw="the model draws noise at test time by its own account, so nothing else was asked",
        why="noise hides gradients; only an attack with expectation over transformation can judge it",
    )  # fmt: skip


def _kept(out: Path, subject: Subject, plan: Plan) -> Audit | None:
    """Return the audit of exactly this subject under this plan, if it is there and whole."""
    path = audit_path(out, subject, plan)
    if not path.is_file():
        return None
    try:
        found = load_audit(path)
    except BadInputError:  # damaged: it is made again
        return None
    return found if (found.subject, found.plan) == (subject, plan) else None


def _state(model: nn.Module) -> dict[str, Any]:
    """Everything an attack has no business to change."""
    return {
        "parameters and buffers": parameters_sha256(model),
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [None if one.grad is None else tensor_sha256(one.grad) for one in model.parameters()],
        "training mode": [module.training for module in model.modules()],
    }


def _untouched(before: dict[str, Any], after: dict[str, Any]) -> Check:
    """Whether the model is, after all attacks, what it was."""
    changed = {what: 1.0 for what, was in before.items() if after[what] != was}
    return Check(
        name="untouched",
        values=changed,
        limit=0,
        flag=bool(changed),
        saw=f"the attacks changed the model's {', '.join(changed)}" if changed else "the attacks changed nothing in it",
        why="a model that changes under attack is another model",
    )
