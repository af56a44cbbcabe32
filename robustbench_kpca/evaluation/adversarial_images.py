"""Keep the adversarial images of an evaluation, and repeat the verdicts of a record on them."""

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.records.images import LIMIT, KeptImages
from robustbench_kpca.tasks import task_named


class Keeper:
    """Gathers the images of at most `count` samples, spread over the data as `--limit` does.

    With a journal they survive an interruption. `numbers` is how many numbers one image has.

    Raises:
        BadInputError: the task has no single image that decides a sample, or the images are too large.

    """

    def __init__(self, data: Dataset, space: InputSpace, count: int, numbers: int, journal: Journal | None) -> None:
        if task_named(data.task).compute.success.graded:
            raise BadInputError(f"no images are kept for {data.task}", fix="leave --keep-adversarial out")
        self.wanted = set(data.spread(count).ids)
        size = 8 * numbers * len(self.wanted)  # two images of four bytes a number
        if size > LIMIT:
            raise BadInputError(
                f"the images of {len(self.wanted)} samples take {size:,} bytes",
                expected=f"at most {LIMIT:,}",
                fix=f"keep {LIMIT // (8 * numbers)}",
            )
        self.order, self.space = data.ids, space
        self.found: dict[str, tuple[Tensor, Tensor]] = {}
        self.part: Journal | None = None
        if journal is not None:
            self.part = journal.part("images")
            self.part.before_write = []
            saved = self.part.read()
            self.found = dict(saved["rows"]) if saved else {}
            journal.before_write.append(self._save)

    def add(self, sample: Sample) -> None:
        """Take the images of a finished sample, if it is one of those to keep."""
        if sample.id in self.wanted:
            clean, worst = (self.space.leave(image).float().cpu() for image in (sample.clean, sample.worst))
            self.found[sample.id] = clean, worst

    def result(self) -> KeptImages:
        """Return the images, in the order of the data."""
        kept = [self.found[name] for name in self.order if name in self.found]
        assert kept, "every sample is attacked, or found wrong before"
        clean, attacked = (torch.stack([pair[which] for pair in kept]).numpy() for which in (0, 1))
        return KeptImages.of(tuple(name for name in self.order if name in self.found), clean, attacked)

    def _save(self) -> None:
        assert self.part is not None
        self.part.write({"rows": self.found})
