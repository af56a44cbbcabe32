"""Options of a training that do not change its numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from robustbench_kpca._core.progress import Progress
from robustbench_kpca.training.ledger import Epoch


@dataclass(frozen=True)
class Options:
    """Options of a run that do not change its numbers.

    Attributes:
        resume: continue after the last finished epoch, if there is one.
        fresh: start again, whatever is there under this name.
        data: folder of image files or scenes, for recipes that read them.
        keep_every: keep the weights of every so many epochs, as `<name>.epoch-010.safetensors`; 0 keeps the last only.
        stop_at: moment of `time.monotonic` after which no further epoch is begun; one more is, where it has passed.
        revision: of the code, for the provenance.
        on_epoch: called after every epoch, with the name of the run.
        on_step: called after every step with the numbers of images that are done, and of all images of the run.
        on_note: called with remarks: what was adapted of initial weights, and that the machine is another.
    """

    resume: bool = False
    fresh: bool = False
    data: Path | None = None
    keep_every: int = 0
    stop_at: float | None = None
    revision: str | None = None
    on_epoch: Callable[[str, Epoch], None] | None = None
    on_step: Progress | None = None
    on_note: Callable[[str], None] | None = None
