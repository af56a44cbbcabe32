"""What an audit will cost, and how far it is: passes of its attacks, times the measured time of a pass."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.attack_loop.cost import Passes, most_passes
from robustbench_kpca._engine.inference.runner import Runner, frozen
from robustbench_kpca.audit import limits
from robustbench_kpca.audit.budgets import budget
from robustbench_kpca.tasks.audit_plan import AuditPlan
from robustbench_kpca.types import Images, Logits, PerSample

# Of every sample: for checks that run no attack, and for the pictures of the smoother copy
_REACH, _STAIRS = len(limits.REACH_RADII), 1 + len(limits.STAIRS_SHIFTS)
_BESIDE = Passes(
    2 * limits.SLOPE_DIRECTIONS + _REACH * (2 * limits.REACH_DIRECTIONS + 2) + _STAIRS + 15, 6 + _REACH + _STAIRS
)
_SMOOTHED = Passes(limits.SMOOTHED_DRAWS * limits.SMOOTHED_STEPS + 1, limits.SMOOTHED_DRAWS * limits.SMOOTHED_STEPS)


@dataclass
class Meter:
    """Counts the passes of an audit and reports them.

    Attributes:
        most: name of an attack -> passes that all samples together can still spend in it.
        progress: what is reported to.
        clock: seconds.
        stage: the check that runs.
    """

    most: dict[str, int] = field(default_factory=dict)
    progress: Progress | None = None
    clock: Callable[[], float] = time.monotonic
    stage: str = ""
    done: int = 0
    ended: int = 0  # most passes of what has ended

    def __post_init__(self) -> None:
        self.begun = self.clock()

    def during(self, name: str, runner: Runner) -> None:
        """Report while an attack runs."""
        self._tell(name, runner.forwards + runner.backwards)

    def after(self, name: str, runner: Runner) -> None:
        """Take note that an attack has ended: what it did not spend is no longer possible."""
        spent = runner.forwards + runner.backwards
        self.ended += self.most.pop(name, spent)
        self.done += spent
        self._tell("", 0)

    def _tell(self, name: str, spent: int) -> None:
        if self.progress is None:
            return
        done, rest = self.done + spent, max(self.most.get(name, 0) - spent, 0)
        later = sum(most for other, most in self.most.items() if other != name)
        typical = min(self.done / self.ended, 1.0) if self.ended else 1.0
        left = (self.clock() - self.begun) / done * (rest + later) * typical if done else None
        self.progress(done, done + rest + later, passes=(done, done + rest + later), stage=self.stage, left=left)


def costs(
    plan: AuditPlan, eps: str | float, names: Collection[str], classes: int, *, transfers: int, graded: bool
) -> dict[str, Passes]:
    """Return the most passes of a sample in each part of an audit.

    Args:
        plan: the attacks of the task.
        eps: radius of the ball.
        names: the attacks that are made.
        classes: number of classes.
        transfers: how often the strongest attack is made on another model.
        graded: whether success is, as in `most_passes`.
    """
    scenarios = {name: budget(plan, name, eps)[1] for name in names}
    parts = {name: most_passes(own, classes, graded=graded) or Passes(1, 0) for name, own in scenarios.items()}
    more = {again(name): parts[name] for name in ("order", "pgd") if name in parts}
    more |= {again("apgd-doubled"): parts["apgd-doubled"].times(transfers)} if transfers else {}
    more |= {"smoothed": _SMOOTHED} if "apgd-doubled" in parts else {}
    return parts | more | {"": _BESIDE}


def again(name: str) -> str:
    """Name the repetition of an attack: in another order, on another model, or to the end of its budget."""
    return f"{name} again"


def seconds_of(runner: Runner, images: Images, passes: Iterable[Passes]) -> float | None:
    """Time a batch that was shown before; return the seconds of so many passes a sample; None if it fails."""
    try:
        with frozen(runner.model):
            started = time.perf_counter()
            runner.logits(images).sum().item()  # waits for the device
            middle = time.perf_counter()
            runner.gradient(images, _flat)[0].sum().item()
            ended = time.perf_counter()
    except Exception:  # noqa: BLE001 (the model can raise anything; the checks will flag it)
        return None
    forward, both = middle - started, ended - middle
    backward = max(both - forward, 0.0)
    return sum(part.forwards * forward + part.backwards * backward for part in passes) / runner.batch_size


def _flat(logits: Logits) -> PerSample:
    """Return a loss that depends on every logit."""
    return logits.flatten(1).logsumexp(1)
