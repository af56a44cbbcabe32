"""What a worker does: load the model once, make one shard after the other, stop cleanly if told to."""

import pickle
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustbench_kpca._core.errors import BenchmarkError, EvaluationError, reason_of
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._engine.inference.acceleration import accelerated
from robustbench_kpca._engine.inference.edge import gradients_inside
from robustbench_kpca._engine.inference.environment import environment
from robustbench_kpca._engine.inference.journal import Journal, StoppableJournal
from robustbench_kpca._engine.inference.loader import share_cores
from robustbench_kpca._engine.inference.runner import device_for
from robustbench_kpca.audit.first_batch import FirstBatch
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.evaluation import moved, runner_for
from robustbench_kpca.evaluation.identity import Added, code_from_outside, join
from robustbench_kpca.evaluation.kept import samples_to_keep
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.part import Subject, make_shard
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.evaluation.versions import algorithms
from robustbench_kpca.models.checkpoint import parameters_sha256, tensor_sha256
from robustbench_kpca.protocols.scenario import Scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.shards import Shard
from robustbench_kpca.records.spec import Environment, Spec
from robustbench_kpca.tasks import task_named

GRACE = 25.0
"""Seconds in which a worker that is told to stop must have written its journal."""
THREADS = 1
"""Threads of every worker: another number would change the last bits of logits."""
MADE, FAILED, CRASHED, REFUSED = "made", "failed", "crashed", "refused"
Answer = tuple[str, Any]
"""What became of a shard.

(`MADE`, (`Made`, content of the shard's file)); (`FAILED`, why) after a foreseen error; (`CRASHED`, why) after another
one; (`REFUSED`, error) where the work as a whole cannot be done here.
"""
_SAME_FIELDS = (
    "python", "processor", "device", "threads", "deterministic", "packages", "revision", "compiled", "float32",
)  # fmt: skip
"""Fields of the environment that must be equal on all machines of an evaluation."""


@dataclass(frozen=True)
class Work:
    """All that another process needs to make the outcomes of any of a record's samples; it is pickled once.

    Attributes:
        model: how the model is loaded; the model itself if it was given in Python.
        data: the samples, sorted, with the model's numbers as labels.
        scenario: the protocol.
        options: options of the run.
        spec: the record's; the other process must find the same weights and the same answers to the first batch.
        folder: where the journals of its shards are, for a worker that sees it.
        algorithms: versions of our algorithms; the other process must have the same.
        added: what the user's program added to registries and the protocol or the task needs.
        surroundings: the environment that the record states, where workers may run on other machines; they refuse to
            work in another one. None: all of them are on this machine.
        smaller: the outcomes of all samples at the next smaller budget, where known.
        inside: whether gradients are taken inside the box, as the first process found (`preflight.at_edge`).
    """

    model: ModelRequest | nn.Module
    data: Dataset
    scenario: Scenario
    options: RunOptions
    spec: Spec
    folder: str
    algorithms: Mapping[str, int] = field(default_factory=dict)
    surroundings: Environment | None = None
    added: tuple[Added, ...] = ()
    smaller: Outcomes | None = None
    inside: bool = False


def subject_of(work: Work, model: nn.Module) -> Subject:
    """Return a model that is ready to make shards of a record.

    Raises:
        EvaluationError: this process has another environment, other weights or other answers than the first one.
    """
    spec, data = work.spec, work.data
    join(work.added)
    device = device_for(model, work.options.device)
    _require_same_environment(work, device)
    _require_same_code(work, model)
    runner = runner_for(model, data, work.scenario, spec.batch_size, device)
    first_batch = task_named(data.task).compute.first_inputs(model, data, work.scenario, spec.batch_size)
    logits = runner.identify(moved(first_batch, device))
    if (parameters_sha256(model), tensor_sha256(logits)) != (spec.model.parameters_sha256, spec.model.probe_sha256):
        raise EvaluationError(
            f"model '{spec.model.name}' has other weights or other answers in another process",
            expected="a model that is determined by its name, options and weights, and machines of one kind",
            fix="evaluate it in one process",
        )
    if work.inside:
        runner.presentation = gradients_inside(runner.presentation)
    wanted = samples_to_keep(data, work.scenario, work.options, numbers=first_batch[0].numel())
    return Subject(spec.model.name, runner, FirstBatch.of(runner, first_batch, logits), wanted)


_acceleration = ExitStack()
"""Holds the settings that accelerate the loaded model, until other work is loaded."""
_journals_to_remove: list[Journal] = []
"""Journal of the last shard, if any: removed at the next call, as by then the file of the shard is written."""


def make(content: bytes, shard: Shard, progress: Progress | None = None) -> Answer:
    """Make a shard of a pickled `Work` in this process; the model stays loaded for the next shard."""
    torch.set_num_threads(THREADS)
    while _journals_to_remove:
        _journals_to_remove.pop().remove()
    work, subject = _load_work(content)
    if isinstance(subject, BenchmarkError):
        return REFUSED, subject
    assert work is not None
    folder, journal = Path(work.folder), None
    if folder.is_dir():  # a worker on another machine may not see it: then it can lose one shard
        journal = StoppableJournal(folder / shard.journal, shard.digest)
    arguments = (work.data, work.scenario, work.options, shard)
    try:
        result = make_shard(replace(subject, journal=journal), *arguments, smaller=work.smaller, progress=progress)
    except Exception as error:  # noqa: BLE001 (a shard that fails must not end the run)
        return FAILED if isinstance(error, BenchmarkError) else CRASHED, reason_of(error)
    _journals_to_remove.extend([journal] if journal else [])
    return MADE, result


@lru_cache(maxsize=1)
def _load_work(content: bytes) -> tuple[Work | None, Subject | BenchmarkError]:
    """Load what a pickled `Work` needs; return an error where that cannot be."""
    _acceleration.close()
    try:
        work = pickle.loads(content)  # noqa: S301 (from the first process of this run)
        share_cores(work.options.processes or 1)
        model = work.model if isinstance(work.model, nn.Module) else _model(pickle.dumps(work.model))
        _acceleration.enter_context(accelerated([model], work.options.compile, tf32=work.options.tf32))
        return work, subject_of(work, model)
    except BenchmarkError as error:
        return None, error
    except Exception as error:  # noqa: BLE001 (unpickling the user's model can raise anything)
        return None, EvaluationError(
            f"a process cannot load what it should evaluate ({reason_of(error)})",
            fix="name the model as FILE.py:FACTORY, or evaluate it in one process",
        )


@lru_cache(maxsize=1)
def _model(content: bytes) -> nn.Module:
    """Load a requested model, and keep it: the next work is often the same model under another protocol."""
    request: ModelRequest = pickle.loads(content)  # noqa: S301 (pickled by this process)
    return request.load()


def _require_same_environment(work: Work, device: Any) -> None:
    """Refuse to evaluate on a machine unlike the one that the record states; unchecked if all workers are on it."""
    if work.surroundings is None:
        return
    ours = environment(device)
    for name in _SAME_FIELDS:
        actual, expected = getattr(ours, name), getattr(work.surroundings, name)
        if actual != expected:
            raise EvaluationError(
                f"a worker has {name} {_short(actual)}, and the first process {_short(expected)}",
                expected="machines of one kind with the same packages and the same code",
            )


def _require_same_code(work: Work, model: nn.Module) -> None:
    """Refuse to evaluate with other code than that which the record names, such as a file that was edited meanwhile."""
    ours: dict[str, Any] = {**code_from_outside(model, work.data.task, work.scenario), **algorithms(work.scenario)}
    expected = {**work.spec.code, **work.algorithms}
    differing = sorted(name for name in ours.keys() | expected.keys() if ours.get(name) != expected.get(name))
    if differing:
        raise EvaluationError(
            f"the code of {differing[0]} is another one in another process",
            expected="the same files in all processes, unchanged while they run",
            fix="run the same command again",
        )


def _short(value: Any) -> str:
    return str(value)[:200]
