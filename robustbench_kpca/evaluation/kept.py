"""Keep images of attacked samples: the first ones to look at while the attack goes on, others exactly, for the record.

First samples are rounded. Each process writes a file of its own, `STEM.N.samples.npz` with the place N of its first
sample; one, without N, is left when the record is finished. Exact images lie in the journal, then in the shard's file.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import replace_file
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.records.first_samples import BYTES, CLASSES, SUFFIX, FirstSamples, load_first_samples
from robustbench_kpca.records.images import LIMIT, KeptImages
from robustbench_kpca.records.spec import Spec
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.compute import Row
from robustbench_kpca.types import Images, Logits

FIRST = 20
"""First samples of an attack that are kept to look at, if their images take at most `BYTES`. No record names them."""
EVERY = 10.0
"""Seconds between two files of first samples."""
_Shown = tuple[Row, *tuple[NDArray[np.generic] | np.generic, ...]]
"""A row, and what the arrays of `FirstSamples` have of it."""


@dataclass(frozen=True)
class Wanted:
    """Which samples of a record are kept with their images.

    Attributes:
        spec: of the record.
        folder: of the record; None: no first samples are kept.
        first: ids of the first samples.
        exact: ids of the samples whose exact images are kept.
    """

    spec: Spec
    folder: Path | None = None
    first: tuple[str, ...] = ()
    exact: frozenset[str] = frozenset()

    @classmethod
    def of(cls, spec: Spec, data: Dataset, scenario: Scenario, options: RunOptions, numbers: int) -> "Wanted":
        """Choose samples of sorted data, of so many numbers each: the first ones, and some spread over the data.

        There are no first samples without a folder, and where a sample is no picture or has not one prediction.

        Raises:
            BadInputError: the task has no single image that decides a sample, or exact images would be too large.
        """
        task = task_named(data.task)
        if not isinstance(scenario, Attack) or options.out is None:
            return cls(spec)
        pictures = bool(data.form.box) and "prediction" in task.table(scenario.table).columns
        first = data.ids[: min(FIRST, BYTES // (2 * numbers)) if pictures else 0]
        exact = data.spread(options.keep_adversarial).ids if options.keep_adversarial else []
        if exact and task.compute.success.graded:
            raise BadInputError(f"no images are kept for {data.task}", fix="leave --keep-adversarial out")
        most = LIMIT // (8 * numbers)  # two images of four bytes a number
        if len(exact) > most:
            raise BadInputError(
                f"the images of {len(exact)} samples take {8 * numbers * len(exact):,} bytes",
                expected=f"at most {LIMIT:,}",
                fix=f"keep {most}",
            )
        return cls(spec, options.out, tuple(first), frozenset(exact))

    def load(self, paths: Iterable[Path]) -> dict[str, _Shown]:
        """Return what readable files hold of the first samples of this record."""
        shown: dict[str, _Shown] = {}
        for path in paths:
            with contextlib.suppress(BadInputError):
                file = load_first_samples(path)
                if file.spec == self.spec:
                    arrays = (file.clean, file.change, file.scale, file.classes, file.logits)
                    shown |= {row["sample"]: (row, *own) for row, *own in zip(file.rows, *arrays, strict=True)}
        return shown

    def write(self, path: Path, shown: Mapping[str, _Shown]) -> None:
        """Write a file of first samples, in their order. Without it nothing is missing, so no error ends the attack."""
        rows, *columns = zip(*(shown[name] for name in self.first if name in shown), strict=True)
        content = FirstSamples(self.spec, rows, *(np.stack(column) for column in columns)).to_file()
        with contextlib.suppress(OSError):
            replace_file(path, content, durable=False)

    def join(self) -> None:
        """Make one file of the first samples that all processes have kept, when the record is finished."""
        if self.folder is None:
            return
        parts = list(self.folder.glob(f"{escape(self.spec.stem())}.*{SUFFIX}"))
        if shown := self.load(parts):
            self.write(self.folder / f"{self.spec.stem()}{SUFFIX}", shown)
        for part in parts:
            with contextlib.suppress(OSError):
                part.unlink()


class Keeper:
    """Keeps images of the samples of one attack on `data`. With a journal they survive an interruption."""

    def __init__(
        self, wanted: Wanted, runner: Runner, data: Dataset, space: InputSpace, journal: Journal | None
    ) -> None:
        self.wanted, self.runner, self.data, self.space = wanted, runner, data, space
        here = set(data.ids)
        self.exact: dict[str, tuple[Tensor, Tensor]] = {}
        self.journal = journal.part("images") if journal is not None and wanted.exact & here else None
        if self.journal is not None:
            self.journal.before_write = []
            saved = self.journal.read()
            self.exact = dict(saved["rows"]) if saved else {}
        places = [place for place, sample in enumerate(wanted.first) if sample in here]
        self.path = wanted.folder / f"{wanted.spec.stem()}.{places[0]}{SUFFIX}" if places and wanted.folder else None
        self.shown = {} if self.path is None else wanted.load([self.path])  # an interrupted run has left it
        self.new: dict[str, tuple[Row, Images]] = {}
        self.written = time.monotonic()
        if journal is not None:
            journal.before_write.append(self.save)

    def add(self, sample: Sample) -> None:
        """Take the images of a finished sample, if they are wanted."""
        first = self.path is not None and sample.id in self.wanted.first
        if not first and sample.id not in self.wanted.exact:
            return
        clean, worst = (self.space.leave(image).float().cpu() for image in (sample.clean, sample.worst))
        if sample.id in self.wanted.exact:
            self.exact[sample.id] = clean, worst
        if first:
            [row] = task_named(self.data.task).compute.rows(sample, self.data, self.space)
            self.new[sample.id] = row, torch.stack([clean, worst])
            if time.monotonic() - self.written >= EVERY:
                self.show()

    def save(self) -> None:
        """Write what there is, before the journal says that its samples are finished."""
        if self.journal is not None:
            self.journal.write({"rows": self.exact})
        self.show()

    def images(self) -> KeptImages | None:
        """Return the exact images, in the order of the data; None if none are wanted of these."""
        names = tuple(name for name in self.data.ids if name in self.exact)
        if not names:
            return None
        clean, worst = (torch.stack([self.exact[name][which] for name in names]).numpy() for which in (0, 1))
        return KeptImages.of(names, clean, worst)

    def show(self) -> None:
        """Write the new first samples. For their logits the model is shown them once more, all together."""
        if self.new and self.path is not None:
            shown = torch.cat([pair for _, pair in self.new.values()])
            logits = self.runner.logits(shown.to(self.runner.device)).float().cpu().split(2)
            for (name, (row, pair)), answers in zip(self.new.items(), logits, strict=True):
                self.shown[name] = (row, *_arrays(pair, answers))
            self.wanted.write(self.path, self.shown)
            self.written, self.new = time.monotonic(), {}


def _arrays(pair: Images, logits: Logits) -> Iterator[NDArray[np.generic]]:
    """Return what `FirstSamples` has of an image and the worst of it, and of their logits."""
    clean, worst = pair
    largest = logits.topk(min(CLASSES, logits.shape[1])).indices.flatten()
    scale = (worst - clean).abs().amax() / 127
    eight = (clean.clamp(0, 1) * 255).round().to(torch.uint8)
    steps = ((worst - clean) / scale.clamp(min=1e-12)).round().to(torch.int8)
    return (tensor.numpy() for tensor in (eight, steps, scale, largest.to(torch.int32), logits[:, largest]))
