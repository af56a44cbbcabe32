"""Keep the first samples of an attack to look at: a file beside the record, written while the attack goes on.

Each process writes a file of its own, `STEM.N.samples.npz` with the place N of its first sample; one, without N, is
left when the record is finished.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import replace_file
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.records.first_samples import BYTES, CLASSES, SUFFIX, FirstSamples, load_first_samples
from robustbench_kpca.records.spec import Spec
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.compute import Row
from robustbench_kpca.types import Images, Logits

EVERY = 10.0
"""Seconds between two writes."""
Keep = Callable[[Sample], None]
_Glance = tuple[Row, *tuple[NDArray[np.generic] | np.generic, ...]]
"""A row, and what the arrays of `FirstSamples` have of it."""


@dataclass(frozen=True)
class Glances:
    """Which samples of a record are kept to look at, and where; a process that makes some of them writes a file."""

    folder: Path
    spec: Spec
    samples: tuple[str, ...]

    @classmethod
    def of(
        cls, folder: Path | None, spec: Spec, data: Dataset, scenario: Scenario, most: int, numbers: int
    ) -> "Glances | None":
        """Choose at most so many first samples of sorted data, of so many numbers each, that are pictures attacked.

        None without a folder, without an attack, and where a sample has not one prediction.
        """
        count = min(most, BYTES // (2 * numbers))
        if folder is None or not count or not data.form.box or not isinstance(scenario, Attack):
            return None
        if "prediction" not in task_named(data.task).table(scenario.kind).columns:
            return None
        return cls(folder, spec, tuple(data.ids[:count]))

    def load(self, paths: Iterable[Path]) -> dict[str, _Glance]:
        """Return what readable files of this record hold."""
        glances: dict[str, _Glance] = {}
        for path in paths:
            with contextlib.suppress(BadInputError):
                first = load_first_samples(path)
                if first.spec == self.spec:
                    arrays = (first.clean, first.change, first.scale, first.classes, first.logits)
                    glances |= {row["sample"]: (row, *own) for row, *own in zip(first.rows, *arrays, strict=True)}
        return glances

    def write(self, path: Path, glances: Mapping[str, _Glance]) -> None:
        """Write a file in the order of samples. It is only for eyes: if it cannot be written, the attack goes on."""
        rows, *columns = zip(*(glances[name] for name in self.samples if name in glances), strict=True)
        content = FirstSamples(self.spec, rows, *(np.stack(column) for column in columns)).to_file()
        with contextlib.suppress(OSError):
            replace_file(path, content, durable=False)

    def join(self) -> None:
        """Make one file of what all processes have kept, when the record is finished."""
        parts = list(self.folder.glob(f"{escape(self.spec.stem())}.*{SUFFIX}"))
        if glances := self.load(parts):
            self.write(self.folder / f"{self.spec.stem()}{SUFFIX}", glances)
        for part in parts:
            with contextlib.suppress(OSError):
                part.unlink()

    @contextmanager
    def keeping(
        self, runner: Runner, data: Dataset, space: InputSpace, journal: Journal | None, keep: Keep | None
    ) -> Iterator[Keep | None]:
        """Return what to call with every finished sample of `data`, which also calls `keep`."""
        here = set(data.ids)
        places = [place for place, sample in enumerate(self.samples) if sample in here]
        if not places:
            yield keep
            return
        path = self.folder / f"{self.spec.stem()}.{places[0]}{SUFFIX}"
        writer = _Writer(self, path, runner, data, space)
        if journal is not None:
            journal.before_write.append(writer.save)

        def add(sample: Sample) -> None:
            if keep is not None:
                keep(sample)
            if sample.id in self.samples:
                writer.add(sample)

        yield add
        writer.save()


class _Writer:
    """Gathers the samples of one process. For the logits it shows the model their images once more, all together."""

    def __init__(self, kept: Glances, path: Path, runner: Runner, data: Dataset, space: InputSpace) -> None:
        self.kept, self.path, self.runner, self.data, self.space = kept, path, runner, data, space
        self.written = time.monotonic()
        self.glances = kept.load([path])  # an interrupted run has left it
        self.new: dict[str, tuple[Row, Images]] = {}  # with the image and the worst of it

    def add(self, sample: Sample) -> None:
        """Take a finished sample."""
        [row] = task_named(self.data.task).compute.rows(sample, self.data, self.space)
        pair = torch.stack([self.space.leave(image).float().cpu() for image in (sample.clean, sample.worst)])
        self.new[sample.id] = row, pair
        if time.monotonic() - self.written >= EVERY:
            self.save()

    def save(self) -> None:
        """Write the file anew, if there is anything new."""
        if self.new:
            shown = torch.cat([pair for _, pair in self.new.values()])
            logits = self.runner.logits(shown.to(self.runner.device)).float().cpu().split(2)
            for (name, (row, pair)), answers in zip(self.new.items(), logits, strict=True):
                self.glances[name] = (row, *_arrays(pair, answers))
            self.kept.write(self.path, self.glances)
            self.written, self.new = time.monotonic(), {}


def _arrays(pair: Images, logits: Logits) -> Iterator[NDArray[np.generic]]:
    """Return what `FirstSamples` has of an image and the worst of it, and of their logits."""
    clean, worst = pair
    most = logits.topk(min(CLASSES, logits.shape[1])).indices.flatten()
    scale = (worst - clean).abs().amax() / 127
    eight = (clean.clamp(0, 1) * 255).round().to(torch.uint8)
    steps = ((worst - clean) / scale.clamp(min=1e-12)).round().to(torch.int8)
    return (tensor.numpy() for tensor in (eight, steps, scale, most.to(torch.int32), logits[:, most]))
