"""A fourth task, defined outside the package: every place of a short sequence is called high or low.

A sample is a float tensor (1, 1, LENGTH) in [0, 1]. Place i is high where its value is above one half. An attack
succeeds where any place of the sequence is wrong.
"""

from functools import partial

import numpy as np
import torch
from torch import nn

from robustbench_kpca._engine.attack_loop.success import Success
from robustbench_kpca._engine.inference.loader import in_batches
from robustbench_kpca._engine.inference.runner import Presentation, call
from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.data import DATASETS
from robustbench_kpca.data.base import Dataset, Part, array_fingerprint
from robustbench_kpca.metrics import METRICS, PERCENT, Mean, Scores
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.table import COUNTS, Table
from robustbench_kpca.tasks import TASKS
from robustbench_kpca.tasks.audit_plan import SHARED_ATTACKS, AuditPlan
from robustbench_kpca.tasks.compute import Compute
from robustbench_kpca.tasks.pages import Pages
from robustbench_kpca.tasks.results import ModelResults
from robustbench_kpca.tasks.task import Task

LENGTH, COUNT = 6, 20

TASK = Task(
    name="tagging",
    unit="tag",
    tables={
        "clean": Table("tagging", "clean", {"sample": "str", "tags": "int", "right": "int"}),
        "attack": Table(
            "tagging", "attack", {"sample": "str", "broken_by": "str", "linf": "float", **dict.fromkeys(COUNTS, "int")}
        ),
    },
    compute_at=f"{__name__}:COMPUTE",
    pages_at=f"{__name__}:PAGES",
)
PAGES = Pages()


class Sequences(Dataset):
    """Sequences whose values keep a distance of 0.005 to 0.2 from one half."""

    task = "tagging"

    def __init__(self, request=None):
        super().__init__("toy-tags", "test", [f"{i:02d}" for i in range(COUNT)], classes=2)
        rng = np.random.default_rng(0)
        sign = rng.integers(0, 2, (COUNT, LENGTH)) * 2 - 1
        self.values = (0.5 + sign * rng.uniform(0.005, 0.2, (COUNT, 1))).astype(np.float32)

    def image(self, index):
        return torch.from_numpy(self.values[index])[None, None]

    def tags(self, index):
        return torch.from_numpy((self.values[index] > 0.5).astype(np.int64))

    def fingerprint(self, index):
        return array_fingerprint(self.values[index])

    def digest_rows(self, prints):
        return sorted(f"{name} {content}" for name, content in zip(self.ids, prints, strict=True))

    def take(self, indices):
        return _Some(self, indices)


class _Some(Part, Sequences):
    def tags(self, index):
        return self.whole.tags(self.indices[index])


class AnyTagWrong(Success):
    graded = False

    def judge(self, logits, labels):
        predictions = logits.argmax(1)
        own = logits.gather(1, labels[:, None])[:, 0]
        others = logits.gather(1, 1 - labels[:, None])[:, 0]
        return predictions, (own - others).amin(1)

    def reached(self, predictions, labels):
        return (predictions != labels).any(1)

    def share(self, predictions, labels):
        return (predictions == labels).double().mean(1)

    def unanswered(self, predictions):
        return (predictions < 0).any(1)

    def split(self, rows):
        return list(rows.to("cpu", torch.int16).clone())

    def join(self, answers, device=None):
        return torch.stack(list(answers)).to(device).long()

    def check_protocol(self, protocol, attacks):
        pass


class TagResults(ModelResults):
    def __init__(self, name, runner, data, journal):
        super().__init__(name, runner, journal)
        self.data, self.right = data, list(self.saved.get("rows", {}).values())

    @property
    def forwards(self):
        return len(self.right)

    def show(self, first, batch):
        x, y = batch
        with self.timed():
            self.right += (self.runner.logits(x).argmax(1) == y).sum(1).tolist()

    def content(self):
        return len(self.right), dict(enumerate(self.right))

    def outcomes(self):
        columns = {"sample": self.data.ids, "tags": [LENGTH] * len(self.data), "right": self.right}
        return Outcomes.from_columns(TASK.tables["clean"], columns)


class Tagging(Compute):
    success = AnyTagWrong()
    audit = AuditPlan(
        samples=8, attacks=SHARED_ATTACKS, strongest=("pgd-doubled",), white_box=("pgd", "pgd-doubled"),
        black_box=("noise",), left_out="", limits={},
    )  # fmt: skip

    def require_data(self, data, protocol):
        pass

    def presentation(self, model, kind):
        return Presentation(
            call,
            lambda logits, x: logits.shape == (len(x), 2, LENGTH),
            expected=f"logits of shape (batch, 2, {LENGTH})",
        )

    def first_inputs(self, model, data, protocol, count):
        return next(self.batches(data, range(min(count, len(data))), count))[1]

    def batches(self, data, indices, batch_size, workers=0):
        if indices:
            yield from in_batches(partial(_fetch, data), _collate, indices, batch_size=batch_size, workers=workers)

    def shown(self, data, protocol, rows, *, batch_size, workers, seed, frost):
        for numbers, x, y in self.batches(data, rows, batch_size, workers):
            yield numbers, (x, y)

    def results(self, name, runner, data, protocol, journal, seed):
        return TagResults(name, runner, data, journal)

    def rows(self, sample, data, space):
        size = float(distance(sample.worst[None], sample.clean[None], "linf"))
        row = {"sample": sample.id, "broken_by": sample.broken_by, "linf": size}
        return [row | {name: getattr(sample, name) for name in COUNTS}]

    def is_settled(self, rows):
        return bool(rows[0]["broken_by"])

    def combined(self, rows, smaller):
        return [rows[0] | {name: rows[0][name] + smaller[0][name] for name in COUNTS}]


COMPUTE = Tagging()


def _fetch(data, index):
    return index, data.image(index), data.tags(index)


def _collate(items):
    numbers, x, y = zip(*items, strict=True)
    return list(numbers), torch.stack(x), torch.stack(y)


class Threshold(nn.Module):
    """Logits (0, slope (x - 1/2 - shift)) of every place: a value at distance d from 1/2 + shift breaks at eps = d."""

    def __init__(self, shift=0.0):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(float(shift)))

    def forward(self, x):
        score = 10 * (x[:, 0, 0] - 0.5 - self.shift)
        return torch.stack([torch.zeros_like(score), score], 1)


def exact():
    return Threshold().eval()


def shifted():
    return Threshold(0.03).eval()


def _tag_accuracy(outcomes):
    return Scores(outcomes["sample"], outcomes["right"] / outcomes["tags"])


def _unbroken(outcomes):
    return Scores(outcomes["sample"], (outcomes["broken_by"] == "").astype(float))


def register(setitem):
    """Add task, data set and metrics for the time of a test; `setitem` is `monkeypatch.setitem`."""
    setitem(TASKS.added, "tagging", TASK)
    setitem(DATASETS.added, "toy-tags", Sequences)
    tagging = partial(Mean, task="tagging", unit=PERCENT)
    METRICS.add(tagging(name="tag_accuracy", title="Tags right", kinds=("clean",), scores=_tag_accuracy))
    METRICS.add(tagging(name="robust_sequences", title="Sequences unbroken", kinds=("attack",), scores=_unbroken))
