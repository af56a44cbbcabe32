"""Keep the first samples of an attack to look at: a file beside the record, written while the attack goes on."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.records.first_samples import BYTES, CLASSES, SUFFIX, FirstSamples, load_first_samples
from robustbench_kpca.records.spec import Spec
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.compute import Row

EVERY = 10.0
"""Seconds between two writes; each shows the model what is new, in one batch."""
Keep = Callable[[Sample], None]
_Glance = tuple[Row, NDArray[np.uint8], NDArray[np.int8], np.float32, NDArray[np.int32], NDArray[np.float32]]
"""A row, and what `FirstSamples` has of it."""


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
    """Gathers the samples of one process. It shows them to the model once more, for the logits."""

    def __init__(self, kept: Glances, path: Path, runner: Runner, data: Dataset, space: InputSpace) -> None:
        self.kept, self.path, self.runner, self.data, self.space = kept, path, runner, data, space
        self.waiting: dict[str, tuple[Row, Tensor, Tensor]] = {}
        self.written = time.monotonic()
        self.glances: dict[str, _Glance] = {}
        with contextlib.suppress(BadInputError):  # an interrupted run has left it
            first = load_first_samples(path)
            if first.spec == kept.spec:
                arrays = (first.clean, first.change, first.scale, first.classes, first.logits)
                self.glances = {row["sample"]: (row, *own) for row, *own in zip(first.rows, *arrays, strict=True)}

    def add(self, sample: Sample) -> None:
        """Take a finished sample."""
        [row] = task_named(self.data.task).compute.rows(sample, self.data, self.space)
        clean, worst = (self.space.leave(image).float().cpu() for image in (sample.clean, sample.worst))
        self.waiting[sample.id] = row, clean, worst
        if time.monotonic() - self.written >= EVERY:
            self.save()

    def save(self) -> None:
        """Write the file anew. It is only for eyes: if it cannot be written, the attack goes on."""
        if not self.waiting:
            return
        _, cleans, worsts = zip(*self.waiting.values(), strict=True)
        clean, worst = torch.stack(cleans), torch.stack(worsts)
        logits = self.runner.logits(torch.cat([clean, worst]).to(self.runner.device)).float().cpu()
        pairs = torch.stack(logits.chunk(2), 1)
        most = pairs.topk(min(CLASSES, pairs.shape[2]), dim=2).indices.flatten(1)
        values = pairs.gather(2, most[:, None].expand(-1, 2, -1))
        scale = (worst - clean).abs().amax((1, 2, 3)) / 127
        steps = ((worst - clean) / scale.clamp(min=1e-12)[:, None, None, None]).round().to(torch.int8)
        eight = (clean.clamp(0, 1) * 255).round().to(torch.uint8)
        arrays = (part.numpy() for part in (eight, steps, scale, most.to(torch.int32), values))
        for (sample, (row, _, _)), *own in zip(self.waiting.items(), *arrays, strict=True):
            self.glances[sample] = (row, *own)
        self.waiting = {}
        rows, *columns = zip(*(self.glances[name] for name in self.kept.samples if name in self.glances), strict=True)
        content = FirstSamples(self.kept.spec, rows, *(np.stack(column) for column in columns)).to_file()
        with contextlib.suppress(OSError):
            replace_file(self.path, content, durable=False)
        self.written = time.monotonic()
