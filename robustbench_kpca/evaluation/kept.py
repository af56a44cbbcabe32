"""Keep clean and adversarial images of some attacked samples exactly: in the journal, then in the shard's file."""

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.records.images import LIMIT, KeptImages
from robustbench_kpca.tasks import task_named


def samples_to_keep(data: Dataset, scenario: Scenario, options: RunOptions, numbers: int) -> frozenset[str]:
    """Return the ids of the samples whose images, of `numbers` values each, are kept, evenly spread over the data.

    Raises:
        BadInputError: the task has no single image that decides a sample, or the images would be too large.
    """
    if not isinstance(scenario, Attack) or options.out is None or not options.keep_adversarial:
        return frozenset()
    if task_named(data.task).compute.success.graded:
        raise BadInputError(f"no images are kept for {data.task}", fix="leave --keep-adversarial out")
    ids = data.spread(options.keep_adversarial).ids
    most = LIMIT // (8 * numbers)  # two images of four bytes a number
    if len(ids) > most:
        raise BadInputError(
            f"the images of {len(ids)} samples take {8 * numbers * len(ids):,} bytes",
            expected=f"at most {LIMIT:,}",
            fix=f"keep {most}",
        )
    return frozenset(ids)


class Keeper:
    """Keeps images of wanted samples of one attack on `data`. With a journal they survive an interruption."""

    def __init__(self, wanted: frozenset[str], data: Dataset, space: InputSpace, journal: Journal | None) -> None:
        self.wanted, self.data, self.space = wanted, data, space
        self.pairs: dict[str, tuple[Tensor, Tensor]] = {}
        self.journal = journal.part("images") if journal is not None and wanted & set(data.ids) else None
        if journal is not None and self.journal is not None:
            self.journal.before_write = []
            saved = self.journal.read()
            self.pairs = dict(saved["rows"]) if saved else {}
            journal.before_write.append(self.save)

    def add(self, sample: Sample) -> None:
        """Take the images of a finished sample, if they are wanted."""
        if sample.id in self.wanted:
            clean, adversarial = (self.space.leave(image).float().cpu() for image in (sample.clean, sample.worst))
            self.pairs[sample.id] = clean, adversarial

    def save(self) -> None:
        """Write what there is, before the journal says that its samples are finished."""
        if self.journal is not None:
            self.journal.write({"rows": self.pairs})

    def images(self) -> KeptImages | None:
        """Return the images, in the order of the data; None if none are wanted of these."""
        names = tuple(name for name in self.data.ids if name in self.pairs)
        if not names:
            return None
        clean, adversarial = (torch.stack([self.pairs[name][which] for name in names]).numpy() for which in (0, 1))
        return KeptImages.of(names, clean, adversarial)
