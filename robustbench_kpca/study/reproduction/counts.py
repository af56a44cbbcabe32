"""How many steps of a pack are done, by kind, and why the others are not."""

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


def counted(planned: Sequence[Planned]) -> str:
    """Say how many steps of each kind are done: `2 of 22 trainings, 18 of 171 evaluations`."""
    texts = []
    for kind, nouns in _NOUNS.items():
        mine = [one.made for one in planned if isinstance(one.step, kind)]
        texts += [f"{sum(mine)} of {len(mine)} {nouns[len(mine) > 1]}"] if mine else []
    return ", ".join(texts)


def reasons(planned: Iterable[Planned]) -> list[tuple[str, str]]:
    """Return every reason why steps were not run, with the number of those steps by kind, and the first of them."""
    found: dict[str, list[Planned]] = {}
    for one in planned:
        if one.state != "done":
            state = "" if one.ended and one.state == "open" else _STATES[one.state]
            found.setdefault(": ".join(filter(None, (state, one.why))), []).append(one)
    return [(why, _steps_of(same)) for why, same in found.items()]


def _steps_of(planned: Sequence[Planned]) -> str:
    if len(planned) == 1:
        return str(planned[0].step)
    texts = []
    for kind, nouns in _NOUNS.items():
        number = sum(isinstance(one.step, kind) for one in planned)
        texts += [f"{number} {nouns[number > 1]}"] if number else []
    return f"{' and '.join([', '.join(texts[:-1])] * bool(texts[1:]) + texts[-1:])}; the first: {planned[0].step}"
