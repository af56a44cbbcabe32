"""`audit`: check whether attacks on a model are effective, so that its robust accuracy can be trusted."""

import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec

import torch
from torch import nn

from robustbench_kpca._core.early_exit import no_early_exit
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.progress import Progress, Screen, python_screen
from robustbench_kpca._core.strict import parse_fraction
from robustbench_kpca._engine.attack_loop.passes import Meter
from robustbench_kpca._engine.attack_loop.query import require_finite
from robustbench_kpca._engine.inference.environment import PACKAGE, revision, version
from robustbench_kpca._engine.inference.mode import require_evaluation_mode
from robustbench_kpca._engine.inference.runner import Runner, device_for, is_stochastic
from robustbench_kpca.audit.budgets import resolved
from robustbench_kpca.audit.checks import run_checks
from robustbench_kpca.audit.context import AuditContext, all_finite
from robustbench_kpca.audit.limits import limits
from robustbench_kpca.audit.model_identity import subject_of
from robustbench_kpca.audit.options import AuditOptions
from robustbench_kpca.audit.preflight import at_edge, preflight
from robustbench_kpca.data.given import as_dataset
from robustbench_kpca.models.checkpoint import parameters_sha256, tensor_sha256
from robustbench_kpca.models.mixing import rpc_layers
from robustbench_kpca.models.source import class_names_of, is_differentiable, require_words, stated_classes, stated_view
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.records.audit import Audit, Check, Plan, Subject, audits_of, load_audit
from robustbench_kpca.records.audit_versions import inactive, left_to_full, summary
from robustbench_kpca.tasks import task_named

P = ParamSpec("P")


def shown(screen: Screen, name: str, ask: Callable[..., Audit], progress: Progress | None = None) -> Audit:
    """Audit, and show what that costs, the flags, the ball of the attacks, and the running time; "kept" if it existed.

    Args:
        name: of the model.
        ask: makes the audit, given `announce` and `progress` of `audit`.
        progress: that of the caller; default: one on the screen.
    """
    announced: list[str] = []

    def announce(text: str) -> None:
        announced.append(text)
        screen.say(f"{name}  {text}")

    done = ask(announce=announce, progress=screen.start(f"{name}  audit") if progress is None else progress)
    existed = not announced  # only a new audit announces anything
    ball, how = Threat(done.plan.norm, done.plan.eps), "kept" if existed else f"{done.seconds:.1f} s"
    verdict = summary(done), inactive([done])
    parts = (done.subject.model, f"{done.plan.level} audit", ball, *verdict, f"({how})", left_to_full(done))
    (screen.warn if done.flags else screen.say)("  ".join(str(part) for part in parts if part))
    return done


def _showing(ask: Callable[P, Audit]) -> Callable[P, Audit]:
    """Show an audit as the command does, unless the caller follows it by `announce` or `progress`."""

    @wraps(ask)
    def showing(*args: P.args, **how: P.kwargs) -> Audit:
        if how.get("announce") is not None or how.get("progress") is not None:
            return ask(*args, **how)
        name = how.get("name") or type(args[0] if args else how.get("model")).__name__
        with python_screen(quiet=bool(how.get("quiet"))) as screen:
            return shown(screen, str(name), partial(ask, *args, **how))

    return showing


@no_early_exit()
@torch.inference_mode(mode=False)
@_showing
def audit(
    model: nn.Module,
    images: Any,
    labels: Any = None,
    *,
    announce: Callable[[str], None] | None = None,
    progress: Progress | None = None,
    quiet: bool = False,  # noqa: ARG001 (read by `_showing`)
    **settings: Any,
) -> Audit:
    """Audit a model: run checks whose results are known if attacks on the model are effective (docs/trust.md).

    Args:
        model: as in `evaluate`.
        images: as in `evaluate`.
        labels: as in `evaluate`.
        announce: told what a new audit will cost, before it begins; not called if a stored one is returned.
        progress: told of the passes done, and of the most that are still possible. Where neither it nor `announce` is
            given, the audit is shown on a terminal, in a notebook, or in the log (`progress.python_screen`).
        quiet: show nothing; flags are logged.
        **settings: fields of `AuditOptions`, such as `eps="4/255"` or `level="quick"`.

    Raises:
        BadInputError: the images cannot be used, or the model fails on clean images.
    """
    options = AuditOptions(**settings)
    if not is_differentiable(model):
        raise BadInputError("an audit of a model without gradients", expected="a model in torch")
    require_evaluation_mode(model)
    data = as_dataset(images, labels)
    task = task_named(data.task)
    require_words(model, data.vocabulary_sha256, data.name)
    data = task.compute.at_size(data, stated_view(model) if data.raw else None, requested=False)
    compute, chosen = task.compute, task.compute.audited(data, options.limit)
    size = compute.batch_size(model, chosen, None) if options.batch_size is None else options.batch_size
    where = device_for(model, options.device)
    x, y = (part.to(where) for part in compute.tensors(chosen))
    started = time.perf_counter()
    plans = {
        which: Plan(
            norm="linf", eps=parse_fraction(options.eps), images=len(chosen), seed=options.seed, batch_size=size,
            attacks=resolved(compute.audit, options.eps, which),
            limits=limits(len(chosen), compute.audit.limits), level=which,
        )
        for which in ("full", options.level)
    }  # fmt: skip
    plan = plans[options.level]
    name = options.name or type(model).__name__
    presentation = compute.presentation(model, "attack")
    runner = None if is_stochastic(model) else Runner(model.to(where), size, where, presentation=presentation)
    classes = stated_classes(model) if runner is None else runner.logits(x[:size]).shape[1]
    if classes is not None:
        whole, (chosen, _) = chosen, compute.match_classes(chosen, classes, class_names_of(model))
        y = y if chosen is whole else compute.tensors(chosen)[1].to(where)
    if runner is not None and options.allow is not None:
        preflight(runner, x[:size], y[:size], options.allow, causal=compute.causal)
    subject = subject_of(runner, model, name, chosen, compute.first_inputs(model, chosen, None, size).to(where))
    code = version(PACKAGE), revision()
    for each in plans.values():
        stored = None if options.out is None or options.fresh else _stored_audit(options.out, subject, each, code)
        if stored is not None:
            return stored
    if runner is None:
        if announce is not None:
            announce(f"{options.level} audit: the model draws noise, so nothing is attacked")
        checks = [_stochastic()]
    else:
        before = _state(model)
        at_edge(runner, x[:size], chosen.form)
        context = AuditContext(
            task,
            model,
            runner,
            x,
            labels=y,
            eps=options.eps,
            threat=Threat("linf", plan.eps),
            seed=options.seed,
            level=options.level,
        )
        require_finite(context.per_batch(x, y, all_finite))
        context.meter = _metered(context, announce, progress)
        checks = [*run_checks(context), _untouched(before, _state(model))]
    done = Audit(
        subject=subject,
        plan=plan,
        plan_digest=plan.digest(),
        checks=tuple(checks),
        version=code[0],
        revision=code[1],
        seconds=round(time.perf_counter() - started, 3),
    )
    if options.out is not None:
        done.save(options.out)
    return done


def _metered(context: AuditContext, announce: Callable[[str], None] | None, progress: Progress | None) -> Meter:
    """Announce what an audit costs: the passes of samples that withstand every attack.

    The attacks `order` and `pgd` are made twice, and the strongest once more for every smoother copy. Checks without an
    attack are left out, because they cost a few dozen passes a sample.
    """
    if announce is None and progress is None:
        return Meter()
    full = context.level == "full" and "apgd-doubled" in context.attacks
    copies = full * 2 * bool(rpc_layers(context.model))
    names = [*context.attacks, *({"order", "pgd"} & set(context.attacks)), *(copies * ["apgd-doubled"])]
    most = sum(context.most(name) for name in names)
    if announce is not None:
        announce(f"{context.level} audit: at most {most:,} passes of attacks")
    return Meter(most, progress)


def _stochastic() -> Check:
    """Return the only check of a model that declares itself stochastic: its logits are not repeatable."""
    return Check(
        name="preflight",
        values={"stochastic": 1},
        limit=0,
        flag=True,
        saw="the model declares that it draws noise at test time, so no other check was run",
        why="noise masks gradients; such a model needs an attack with expectation over transformation",
    )


def _stored_audit(out: Path, subject: Subject, plan: Plan, code: tuple[str, str | None]) -> Audit | None:
    """Return a stored audit of this subject under this plan by this version and revision; None if there is none."""
    for path in audits_of(out, subject, plan):
        try:
            stored = load_audit(path)
        except BadInputError:  # damaged
            continue
        if (stored.subject, stored.plan, (stored.version, stored.revision)) == (subject, plan, code):
            return stored
    return None


def _state(model: nn.Module) -> dict[str, Any]:
    """Return everything about the model that attacks must not change."""
    return {
        "parameters and buffers": parameters_sha256(model),
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [None if tensor.grad is None else tensor_sha256(tensor.grad) for tensor in model.parameters()],
        "training mode": [module.training for module in model.modules()],
    }


def _untouched(before: dict[str, Any], after: dict[str, Any]) -> Check:
    changed = {what: 1.0 for what, was in before.items() if after[what] != was}
    return Check(
        name="untouched",
        values=changed,
        limit=0,
        flag=bool(changed),
        saw=f"the attacks changed the model's {', '.join(changed)}"
        if changed
        else "the attacks did not change the model",
        why="if an attack changes the model, later results are those of a different model",
    )
