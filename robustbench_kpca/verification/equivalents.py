"""Translate a protocol with native attacks to the equivalent protocol with attacks of other libraries.

The library of each attack was chosen by comparing them: torchattacks for FGSM, PGD, MIM, SPSA and C&W with one run, the
authors' code (as pyautoattack) for AutoAttack and its parts, foolbox for C&W with several runs, DDN, FMN and noise.
Remaining differences are stated at each entry.
"""

from collections.abc import Callable
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import load_toml, validate
from robustbench_kpca.protocols import presets
from robustbench_kpca.protocols.scenario import Attack, Stage
from robustbench_kpca.protocols.threat import Norm, parse_step

Options = dict[str, Any]
Match = tuple[str, Options] | None
_APGD = {"ce": "pyautoattack:apgd-ce", "dlr": "pyautoattack:apgd-dlr", "dlr_targeted": "pyautoattack:apgd-t"}
ENSEMBLES: dict[str, tuple[str, tuple[Norm, ...]]] = {
    "autoattack-linf-8_255": ("pyautoattack:standard", ("linf", "l2")),
    "autoattack-l1-12": ("pyautoattack:standard", ("l1",)),
    "autoattack-plus-linf-8_255": ("pyautoattack:plus", ("linf", "l2")),
    "autoattack-rand-linf-8_255": ("pyautoattack:rand", ("linf", "l2")),
}
"""Protocol of the package -> the ensemble that has its stages and draws, in these norms."""


def _fgsm(ours: Options, norm: Norm, eps: float) -> Match:  # noqa: ARG001
    return {"linf": ("torchattacks:FGSM", Options()), "l2": ("foolbox:L2FastGradientAttack", Options())}.get(norm)


def _pgd(ours: Options, norm: Norm, eps: float) -> Match:
    """Translate to torchattacks, which evaluates only the last iterate, and in L2 starts closer to the image."""
    alpha = parse_step(ours["step_size"], eps)
    options = {"alpha": alpha, "steps": ours["steps"], "random_start": ours["random_start"]}
    if norm == "linf":
        return "torchattacks:PGD", options
    return ("torchattacks:PGDL2", options | {"eps_for_division": 1e-30}) if norm == "l2" else None


def _mim(ours: Options, norm: Norm, eps: float) -> Match:
    """Translate to torchattacks, which divides gradients by their mean instead of their sum; the signs are equal."""
    options = {"alpha": parse_step(ours["step_size"], eps), "steps": ours["steps"], "decay": ours["decay"]}
    return ("torchattacks:MIFGSM", options) if norm == "linf" else None


def _apgd(ours: Options, norm: Norm, eps: float) -> Match:  # noqa: ARG001
    if ours["loss"] not in _APGD:
        return None
    targets = {"n_target_classes": ours["targets"]} if ours["loss"] == "dlr_targeted" else {}
    return _APGD[ours["loss"]], {"n_iter": ours["steps"], "rho": ours["rho"]} | targets


def _apgd_l1(ours: Options, norm: Norm, eps: float) -> Match:
    equivalent = _apgd(ours | {"rho": 0.75}, norm, eps)
    return None if equivalent is None else (equivalent[0], equivalent[1] | {"use_largereps": True})


def _fab(ours: Options, norm: Norm, eps: float) -> Match:  # noqa: ARG001
    options = {"n_iter": ours["steps"]} | {name: ours[name] for name in ("alpha_max", "eta", "beta")}
    if ours["random_start"]:  # in the authors' code the first run never has a random start
        return None
    if ours["targets"] == 0:
        return "pyautoattack:fab", options
    return "pyautoattack:fab-t", options | {"n_target_classes": ours["targets"]}


def _square(ours: Options, norm: Norm, eps: float) -> Match:  # noqa: ARG001
    return "pyautoattack:square", {"n_queries": ours["queries"], "p_init": ours["p_init"]}


def _cw(ours: Options, norm: Norm, eps: float) -> Match:  # noqa: ARG001
    """Translate several runs to foolbox, which ends a run for the whole batch; the native attack does so per sample.

    One run is translated to torchattacks, which does not search c, and cannot move pixels that are exactly 0 or 1.
    """
    if ours["binary_steps"] == 1 and norm == "l2":
        one_run = {"c": ours["initial_const"], "kappa": ours["confidence"], "steps": ours["steps"], "lr": ours["lr"]}
        return "torchattacks:CW", one_run
    options = {
        "binary_search_steps": ours["binary_steps"],
        "steps": ours["steps"],
        "stepsize": ours["lr"],
        "confidence": ours["confidence"],
        "initial_const": ours["initial_const"],
    }
    return ("foolbox:L2CarliniWagnerAttack", options) if norm == "l2" else None


def _ddn(ours: Options, norm: Norm, eps: float) -> Match:  # noqa: ARG001
    options = {"init_epsilon": ours["init_norm"], "steps": ours["steps"], "gamma": ours["gamma"]}
    return ("foolbox:DDNAttack", options) if norm == "l2" else None


def _fmn(ours: Options, norm: Norm, eps: float) -> Match:  # noqa: ARG001
    """Translate to foolbox; its attack in L2 leaves the projection out, so that it is none."""
    names = {"linf": "foolbox:LInfFMNAttack", "l1": "foolbox:L1FMNAttack"}
    options = {"steps": ours["steps"], "max_stepsize": ours["step_size"], "gamma": ours["gamma"]}
    return (names[norm], options) if norm in names else None


def _spsa(ours: Options, norm: Norm, eps: float) -> Match:  # noqa: ARG001
    """Translate to torchattacks: `nb_sample` counts pairs; no random start; one sign per pixel for the whole batch."""
    options = {
        "nb_iter": ours["steps"],
        "nb_sample": ours["samples"] // 2,
        "delta": ours["delta"],
        "lr": ours["lr"],
        "max_batch_size": 1,  # pairs at a time: changes only the random draws
    }
    return ("torchattacks:SPSA", options) if norm == "linf" else None


def _noise(ours: Options, norm: Norm, eps: float) -> Match:  # noqa: ARG001
    """Translate to foolbox, which scales the noise to the surface of the ball."""
    names = {"linf": "foolbox:LinfAdditiveUniformNoiseAttack", "l2": "foolbox:L2AdditiveUniformNoiseAttack"}
    return (names[norm], Options()) if norm in names else None


REFERENCES: dict[str, Callable[[Options, Norm, float], Match]] = {
    "fgsm": _fgsm,
    "pgd": _pgd,
    "mim": _mim,
    "apgd": _apgd,
    "apgd_l1": _apgd_l1,
    "fab": _fab,
    "square": _square,
    "cw": _cw,
    "ddn": _ddn,
    "fmn": _fmn,
    "spsa": _spsa,
    "noise": _noise,
}


def reference_of(scenario: Attack) -> Attack:
    """Return the protocol of the reference: the same as `scenario`, but with attacks of other libraries.

    A cascade with exactly the stages of AutoAttack (standard, plus or rand) becomes that ensemble; every other cascade
    is translated stage by stage.

    Raises:
        BadInputError: no stages, or a stage without a known equivalent.
    """
    if not scenario.stage:
        raise BadInputError("the protocol has no stages, so there is no attack to compare", fix="see: rbk list attacks")
    ensemble = _ensemble(scenario)
    stages = [_stage(ensemble, {}, 1)] if ensemble else [_match(stage, scenario) for stage in scenario.stage]
    names = ", ".join(dict.fromkeys(stage["attack"] for stage in stages))
    content = scenario.model_dump() | {"title": f"{scenario.title}, by {names}", "stage": stages}
    return validate(Attack, content, "the reference protocol")


def _ensemble(scenario: Attack) -> str | None:
    folder = presets.roots()[-1] / "attacks"  # a user's own protocol of such a name is another one
    for protocol, (name, norms) in ENSEMBLES.items():
        whole = validate(Attack, load_toml(folder / f"{protocol}.toml"), protocol)
        if scenario.norm in norms and (scenario.draws, scenario.stage) == (whole.draws, whole.stage):
            return name
    return None


def _match(stage: Stage, scenario: Attack) -> Options:
    """Return the equivalent of a stage. Only the reference of APGD can average over draws."""
    translate = REFERENCES.get(stage.attack)
    equivalent = None if translate is None else translate(stage.options, scenario.norm, scenario.eps)
    if equivalent is not None and scenario.draws > 1:
        name, options = equivalent
        equivalent = (name, options | {"eot_iter": scenario.draws}) if "apgd" in name else None
    if equivalent is None:
        raise BadInputError(
            f"there is no known equivalent of attack '{stage.attack}' in {scenario.norm}"
            + (f" with {scenario.draws} draws" if scenario.draws > 1 else ""),
        )
    return _stage(*equivalent, stage.restarts)


def _stage(attack: str, options: Options, restarts: int) -> Options:
    return {"attack": attack, "restarts": restarts, "options": options}
