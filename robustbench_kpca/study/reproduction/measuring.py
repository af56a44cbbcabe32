"""Operations, time and memory of a batch: a network with random weights and inputs, at test and in training.

Training is a forward and a backward pass for all parameters, without the optimiser.
"""

import gc
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Literal

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import STRICT
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.models.families import VIT, parts_of, shape_of

Clock = Literal["processor", "elapsed"]
Run = Callable[[], object]


class Pass(BaseModel):
    """What a batch costs at test, or in training.

    Attributes:
        operations: of matrix products and convolutions, two for each multiply-add. Attention is counted as plain
            products, without what fused attention computes again.
        seconds: the seconds of every call.
        peak_bytes: the most bytes of tensors at one time, gradients included, parameters and inputs not.
    """

    model_config = STRICT
    operations: int
    seconds: tuple[float, ...]
    peak_bytes: int

    @property
    def time(self) -> float:
        """The median of the seconds."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Largest distance of a call from the median, as a share of the median."""
        return max(abs(seconds - self.time) for seconds in self.seconds) / self.time


class Subject:
    """A network and a batch for it. Inputs of a layer inside a network (`inner`) have a gradient, too."""

    def __init__(self, network: nn.Module, x: Tensor, device: str, *, inner: bool = False) -> None:
        self.network, self.x = network.to(device), x.to(device)
        self.wanted = [*self.network.parameters(), *([self.x.requires_grad_()] if inner else [])]

    @property
    def parameters(self) -> int:
        """The number of all parameters."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def test(self) -> Tensor:
        """Run forward."""
        self.network.eval()
        with torch.no_grad():
            out: Tensor = self.network(self.x)
        return out

    def train(self) -> tuple[Tensor, ...]:
        """Run forward and backward; the loss is the cross-entropy plus the losses that attentions add."""
        self.network.train()
        out = self.network(self.x.view_as(self.x))  # the counter of operations takes no leaf
        labels = torch.zeros(len(out), *out.shape[2:], dtype=torch.long, device=out.device)
        loss = F.cross_entropy(out, labels)
        for module in self.network.modules():
            loss = loss + sum(getattr(module, "penalties", {}).values())
        return torch.autograd.grad(loss, self.wanted, allow_unused=True)


def subject_of(request: ModelRequest, tokens: int | None, batch_size: int, device: str) -> Subject:
    """Return a model, or the attention of its blocks for a number of tokens, with random inputs.

    Raises:
        BadInputError: the model cannot be built, it is no ViT, or a picture cannot be cut into that number of tokens.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if tokens is None:
            model: Any = request.load()
            return Subject(model, inputs(model, batch_size), device)
        if parts_of(request.model)[1] is not VIT:
            raise BadInputError(f"tokens = {tokens} of {request.model}", expected="a ViT, whose attention stands alone")
        side = math.isqrt(tokens - 1)
        if side**2 != tokens - 1:
            raise BadInputError(f"tokens = {tokens}", expected="a square, for the patches, and the class token: 197")
        size = side * shape_of(request.model, request.options)["patch_size"]
        model = replace(request, options={**request.options, "img_size": size, "depth": 1}).load()
        x = torch.randn(batch_size, tokens, model.config["embed_dim"])
        return Subject(model.blocks[0].attn, x, device, inner=True)


def inputs(model: Any, batch_size: int) -> Tensor:
    """Return random inputs of a model: words, signals or pictures."""
    config = getattr(model, "config", {})
    if "vocab_size" in config:
        return torch.randint(config["vocab_size"], (batch_size, 1, 1, config["window"])).float()
    if config.get("vocabulary"):
        return torch.randint(1, config["vocabulary"], (batch_size, 1, 1, config["length"])).float()
    if "channels" in config:
        return torch.rand(batch_size, config["channels"], 1, config["length"])
    return torch.rand(batch_size, *model.pretrained_cfg["input_size"])


def passes_of(subjects: Sequence[Subject], repeats: int, device: str) -> list[tuple[Pass, Pass]]:
    """Return what a batch costs each network, at test and in training."""
    passes, clock = [], time.process_time if clock_of(device) == "processor" else elapsed(device)
    with torch.random.fork_rng():
        for runs in ([subject.test for subject in subjects], [subject.train for subject in subjects]):
            for run in runs:
                run()
            seconds = interleaved(runs, repeats, clock)
            counted = [operations(run) for run in runs]
            for subject in subjects:
                subject.network.eval()  # drops the losses of the last batch, with what they keep alive
            peaks = [peak_bytes(run, device) for run in runs]
            passes.append(
                [
                    Pass(operations=count, seconds=tuple(times), peak_bytes=peak)
                    for count, times, peak in zip(counted, seconds, peaks, strict=True)
                ]
            )
    return list(zip(*passes, strict=True))


# --- operations, time and memory of a call ----------------------------------------------------------------------------


def operations(run: Run) -> int:
    """Count the operations of matrix products and convolutions, two for each multiply-add."""
    from torch.utils.flop_counter import FlopCounterMode  # a second of imports, of Triton

    grouped: Any = {torch.ops.aten.convolution_backward: _convolution_backward}
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=grouped) as counter:
        run()
    return int(counter.get_total_flops())


def _convolution_backward(gradient: Any, _x: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """Count a backward convolution as one forward per requested gradient; torch's own count ignores groups."""
    wanted = sum(rest[-1][:2])  # requested gradients of input and weight
    return int(wanted * 2 * math.prod(gradient) * math.prod(weight[1:]))


def clock_of(device: str) -> Clock:
    """Return which clock is right: on one thread of a CPU its processor time, which others hardly disturb."""
    return "processor" if device == "cpu" and torch.get_num_threads() == 1 else "elapsed"


def elapsed(device: str) -> Callable[[], float]:
    """Return a clock of elapsed seconds, which waits for a GPU to finish."""

    def clock() -> float:
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def interleaved(runs: Sequence[Run], repeats: int, clock: Callable[[], float]) -> list[list[float]]:
    """Return the seconds of every call of each run; they take turns, so that slow drift affects all equally."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, seconds in zip(runs, times, strict=True):
            started = clock()
            run()
            seconds.append(clock() - started)
    return times


def peak_bytes(run: Run, device: str = "cpu") -> int:
    """Return the peak bytes of tensors allocated during `run`."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result: Any = run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler logs every start and stop
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        result = run()
    del result
    assert profile.profiler is not None
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most
