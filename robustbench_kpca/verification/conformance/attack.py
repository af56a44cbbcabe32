"""What every attack promises: ball and box, one state a sample, any order, resumption, seeds, and its passes."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.checks import Checks
from robustbench_kpca._engine.attack_loop.engine import Engine, Sample, build_attack
from robustbench_kpca._engine.attack_loop.passes import passes_of
from robustbench_kpca._engine.attack_loop.sets import set_of
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attacks.foreign import isolated
from robustbench_kpca.protocols.scenario import Attack as Scenario
from robustbench_kpca.protocols.scenario import Stage, parse_scenario
from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.tasks import task_named
from robustbench_kpca.types import Attack, Images, Keys, Labels, State
from robustbench_kpca.verification.conformance.finding import Finding, checked, require
from robustbench_kpca.verification.conformance.watched_query import WatchedQuery, Wavy, rand

SHAPE = (2, 6, 6)
THREATS = (
    Threat("linf", 0.05),
    Threat("l2", 0.5),
    Threat("l1", 2.0),
    Threat("l0", 5),
    Threat("patches", 2, patch=2, corners="grid"),
    Threat("patches", 2, patch=3, corners="anywhere"),
)
MOST = 10_000
"""Steps; an attack that is not finished then never will be."""


@dataclass(frozen=True)
class Case:
    """Samples, and the model and the threat under which they are attacked."""

    model: Callable[[Tensor], Tensor]
    x: Images
    y: Labels
    keys: Keys
    threat: Threat

    @classmethod
    def usual(cls, threat: Threat, shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.float64) -> "Case":
        """Six images of a model whose rows do not depend on each other, to the bit."""
        x, y = rand(7, 6, *shape, dtype=dtype), torch.arange(6) % 3
        return cls(Wavy(shape, dtype=dtype), x, y, torch.arange(6) + 2**62, threat)

    def begin(self, attack: Attack, rows: Tensor) -> State:
        """Return the first state of some samples."""
        return attack.start(self.x[rows], self.y[rows], self.threat, self.keys[rows])

    def run(self, attack: Attack, state: State, rows: Tensor, steps: int = MOST) -> State:
        """Take `steps` steps with the samples that are not finished, as the loop does.

        Raises:
            Broken: a step wrote into the state that it was given, or returned other entries.
        """
        allowed = set_of(self.threat)

        def look(images: Images, index: Tensor, outside: bool) -> None:
            allowed.check(images, self.x[index], type(attack).__name__, Checks(), outside=outside)

        for _ in range(steps):
            running = (~state["finished"]).nonzero()[:, 0]
            if not len(running):
                break
            old, copies = ({name: values[running] for name, values in state.items()} for _ in range(2))
            new = attack.step(old, self.threat, WatchedQuery(self.model, look, rows[running]))
            for name, values in copies.items():
                require(torch.equal(old[name], values), f"a step wrote into '{name}' of the old state")
            require(new.keys() == state.keys(), f"a step returned {sorted(new)}, `start` {sorted(state)}")
            state = {name: values.index_copy(0, running, new[name]) for name, values in state.items()}
        return state

    @property
    def everything(self) -> Tensor:
        """The numbers of all samples."""
        return torch.arange(len(self.y))


def findings(kind: Any, options: dict[str, Any]) -> Iterator[Finding]:
    """Yield what was found of an attack.

    Raises:
        BadInputError: its options are missing, unknown or of the wrong type, or it begins under no norm.
    """
    if getattr(kind, "replaces_words", False):
        raise BadInputError(
            "an attack that replaces words", expected="an attack on images: others are not checked here"
        )
    with _registered(kind) as name:
        stage = Stage.model_validate({"attack": name, "restarts": 1} | options)
        make = partial(build_attack, stage)
        for case in _cases(make()):
            norm = case.threat.norm if case.threat.corners is None else str(case.threat)
            inside = checked(
                f"it stays in ball and box, and its state is one row a sample ({norm})",
                partial(keeps_ball_and_state, make, case),
            )
            yield inside
            for promise, check in PROMISES.items() if not inside.broken else ():
                yield checked(f"{promise} ({norm})", partial(check, make, case))
            if not inside.broken and case.threat.clip and getattr(kind, "one_label", True):
                yield checked(f"it costs no more passes than it says ({norm})", partial(costs, stage, case.threat))


def _cases(attack: Attack) -> Iterator[Case]:
    refused = BadInputError("an attack that begins under no norm", expected="one of linf, l2, l1, l0, patches")
    began = False
    for threat in THREATS:
        for clip in (True,) if threat.counted else (True, False):
            case = Case.usual(replace(threat, clip=clip))
            try:
                set_of(threat).require_attack(type(attack).__name__, attack)
                case.begin(attack, case.everything)
            except BadInputError as error:
                refused = error
                continue
            began = True
            yield case
            break
    if not began:
        raise refused


class _registered:  # noqa: N801 (a context)
    """Give an attack a name of its own as long as it is checked."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __enter__(self) -> str:
        ATTACKS.added["checked"] = self.kind
        return "checked"

    def __exit__(self, *error: object) -> None:
        del ATTACKS.added["checked"]


# ---- promises


def keeps_ball_and_state(make: Callable[[], Attack], case: Case) -> None:
    """Require that every image shown, and the last, lies in ball and box, and that a state has one row a sample."""
    attack, rows, allowed = make(), case.everything, set_of(case.threat)
    state = case.begin(attack, rows)
    for _ in range(MOST):
        for name, values in state.items():
            require(values.shape[:1] == rows.shape, f"'{name}' of its state has {tuple(values.shape)} for {len(rows)}")
        require(state["x"].dtype == case.x.dtype, f"x became {state['x'].dtype}")
        require(allowed.is_input(state["x"]), "x is no input of a model")
        if bool(state["finished"].all()):
            break
        state = case.run(attack, state, rows, 1)
    require(bool(state["finished"].all()), f"it is not finished after {MOST} steps")
    allowed.check(state["x"], case.x, type(attack).__name__, Checks())


def is_independent(make: Callable[[], Attack], case: Case, steps: int | None = None) -> None:
    """Require that batch mates and order do not matter, nor whether rows leave on the way or arrive later than others.

    Args:
        case: a case of six samples.
        steps: before rows leave, and after that; by default one, and then all.
    """
    attack, every = make(), case.everything
    first, rest = (1, MOST) if steps is None else (steps, steps)

    def halfway() -> State:
        return case.run(attack, case.begin(attack, every), every, first)

    whole = case.run(attack, halfway(), every, rest)
    chosen = torch.tensor([4, 1, 3])
    part = case.run(attack, {name: values[chosen] for name, values in halfway().items()}, chosen, rest)
    ahead, fresh = halfway(), case.begin(attack, every[2:])
    mixed = {name: torch.cat([ahead[name][:2], values]) for name, values in fresh.items()}
    mixed = case.run(attack, mixed, every, rest)
    late = case.run(attack, {name: values[2:] for name, values in mixed.items()}, every[2:], first)
    for name, values in whole.items():
        require(torch.equal(part[name], values[chosen]), f"'{name}' of a sample depends on the samples beside it")
        require(torch.equal(mixed[name][:2], values[:2]), f"'{name}' depends on samples that came later")
        require(torch.equal(late[name], values[2:]), f"'{name}' depends on samples that came earlier")


def resumes(make: Callable[[], Attack], case: Case) -> None:
    """Require that another process can go on from a state that was written to a file."""
    attack, every = make(), case.everything
    whole = case.run(attack, case.begin(attack, every), every)
    saved = pickle.dumps(case.run(make(), case.begin(make(), every), every, 1))
    again = case.run(make(), pickle.loads(saved), every)  # noqa: S301 (our own bytes)
    _same(whole, again, "is another when a run is resumed: it remembers outside its state")


def is_seeded(make: Callable[[], Attack], case: Case) -> None:
    """Require that all random numbers come from the keys of the samples."""
    states = []
    for seed in (1, 2):
        with isolated(seed, case.x.device):
            attack = make()
            states.append(case.run(attack, case.begin(attack, case.everything), case.everything))
    _same(states[0], states[1], "is another when the same is run again: it draws from a global generator")


def _same(first: State, second: State, broken: str) -> None:
    for name, values in first.items():
        require(torch.equal(values, second[name]), f"'{name}' {broken}")


def costs(stage: Stage, threat: Threat) -> None:
    """Require that no sample costs more passes than the attack states, as the loop counts them."""
    x, y = rand(3, 5, *SHAPE, dtype=torch.float32), torch.zeros(5, dtype=torch.int64)
    stated, model = passes_of(build_attack(stage), 3), Wavy(SHAPE, lead=100.0, dtype=torch.float32)
    settings = {"attack": stage.attack, "restarts": 1, **stage.options}
    where: dict[str, Any] = {"patch": threat.patch, "corners": threat.corners}
    for spent in passes(settings, threat.norm, threat.eps, model, x, y=y, **where)[0]:
        within = stated is None or (spent[0] <= stated[0] and spent[1] <= stated[1])
        require(within, f"a sample cost {spent} forward and backward passes; `most_passes` says {stated}")


PROMISES: dict[str, Callable[[Callable[[], Attack], Case], None]] = {
    "a sample does not depend on others, nor on their order": is_independent,
    "it can be resumed": resumes,
    "it is determined by its seed": is_seeded,
}

# ---- the loop

USUAL: dict[str, Any] = {
    "title": "t", "citations": [], "kind": "attack", "norm": "linf", "eps": 0.1, "policy": "stop_at_first",
    "labels": "true", "target": "none", "space": "pixel", "clip": True, "draws": 1, "precision": "fp32", "below": [],
}  # fmt: skip


def scenario(stages: Sequence[dict[str, Any]], **fields: Any) -> Scenario:
    """Return the scenario that a protocol of these stages would be."""
    parsed = parse_scenario(USUAL | fields | {"stage": list(stages)}, "test")
    assert isinstance(parsed, Scenario)
    return parsed


def passes(
    stage: dict[str, Any], norm: Norm, eps: float, model: Any, x: Images, y: Labels, batch_size: int = 4, **fields: Any
) -> tuple[list[tuple[int, int]], list[bool]]:
    """Return (forwards, backwards) of every sample as the loop counts them, and whether it was broken."""
    by_row: dict[int, Sample] = {}
    engine = Engine(
        Runner(model.eval(), batch_size, torch.device("cpu")),
        scenario([stage], norm=norm, eps=eps, **fields),
        task_named("classification").compute.success,
        [str(row) for row in range(len(y))],
        seed=0,
        sink=lambda sample: by_row.update({sample.index: sample}),
    )
    engine.run(iter([(list(range(len(y))), x, y)]))
    samples = [by_row[row] for row in range(len(y))]
    return [(sample.forwards, sample.backwards) for sample in samples], [bool(sample.broken_by) for sample in samples]
