"""The steps of a pack in words: how many of each kind are done, and why the others are not."""

from collections.abc import Iterable, Sequence

from robustbench_kpca.study.reproduction.efficiency import Measure
from robustbench_kpca.study.reproduction.steps import Diagnose, Evaluate, Follow, Planned, Train

_NOUNS = {
    Train: ("training", "trainings"),
    Evaluate: ("evaluation", "evaluations"),
    Diagnose: ("diagnosis", "diagnoses"),
    Follow: ("course of a training", "courses of trainings"),
    Measure: ("measurement", "measurements"),
}
_STATES = {"open": "not run yet", "absent": "cannot be run here", "failed": "failed"}


def counted(steps: Sequence[Planned]) -> str:
    """Say how many steps of each kind are done: `2 of 22 trainings, 18 of 171 evaluations`."""
    texts = []
    for kind, nouns in _NOUNS.items():
        finished = [planned.made for planned in steps if isinstance(planned.step, kind)]
        texts += [f"{sum(finished)} of {len(finished)} {nouns[len(finished) > 1]}"] if finished else []
    return ", ".join(texts)


def reasons(steps: Iterable[Planned]) -> list[tuple[str, str]]:
    """Return every reason why steps were not run, with the number of those steps by kind, and the first of them."""
    by_reason: dict[str, list[Planned]] = {}
    for planned in steps:
        if planned.state != "done":
            state = "" if planned.ended and planned.state == "open" else _STATES[planned.state]
            by_reason.setdefault(": ".join(filter(None, (state, planned.why))), []).append(planned)
    return [(why, _steps_of(same)) for why, same in by_reason.items()]


def _steps_of(steps: Sequence[Planned]) -> str:
    if len(steps) == 1:
        return str(steps[0].step)
    texts = []
    for kind, nouns in _NOUNS.items():
        number = sum(isinstance(planned.step, kind) for planned in steps)
        texts += [f"{number} {nouns[number > 1]}"] if number else []
    return f"{' and '.join([', '.join(texts[:-1])] * bool(texts[1:]) + texts[-1:])}; the first: {steps[0].step}"
