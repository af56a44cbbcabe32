"""Call a model: as at one batch size, and without changing its parameters. What is recorded comes from here."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError, BenchmarkError, EvaluationError, reason_of
from robustbench_kpca._engine.inference.acceleration import compiled_as
from robustbench_kpca._engine.inference.fewer_rows import Answer, FewerRows
from robustbench_kpca._engine.inference.guard import Costs, require_one_precision, unharmed
from robustbench_kpca._engine.inference.mode import ordinary, require_evaluation_mode
from robustbench_kpca._engine.inference.patch_gradients import PatchGradients
from robustbench_kpca.types import Images, Logits, Loss, PerSample

T = TypeVar("T")
FEW = 8


@dataclass(frozen=True)
class Presentation:
    """How a model is called, and which shape its logits must have.

    Attributes:
        show: calls the model on a batch.
        fits: tells whether logits have the right shape for these inputs.
        expected: the right shape in words, for errors.
        fix: what to do if the shape is wrong, for errors.
        inside: whether gradients are those just inside the box (`edge.gradients_inside`).
    """

    show: Callable[[nn.Module, Images], Any]
    fits: Callable[[Tensor, Images], bool]
    expected: str
    fix: str = ""
    inside: bool = False

    def require(self, logits: object, x: Images) -> None:
        """Refuse logits of the wrong shape, and tensors that hold no floating-point numbers.

        Raises:
            BadInputError: the model did not return a tensor of the expected shape and kind.
        """
        kind = _unusable(logits) if isinstance(logits, Tensor) else ""
        if kind:
            raise BadInputError(f"the model returned {kind}", expected="a dense tensor of floating-point numbers")
        if isinstance(logits, Tensor) and (logits.shape == (len(x),) or logits.shape[1:2] == (1,)):
            raise BadInputError(
                f"the model returns one logit an image: {tuple(logits.shape)}",
                expected="one for every class, at least two",
                fix="return two, or wrap the model in one that returns torch.cat([torch.zeros_like(z), z], 1)",
            )
        if not isinstance(logits, Tensor) or not self.fits(logits, x):
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise BadInputError(f"the model returned {shape}", expected=self.expected, fix=self.fix)


def _unusable(logits: Tensor) -> str:
    """Name the kind of a tensor that cannot be logits; "" if it can."""
    if logits.is_nested or logits.layout != torch.strided:
        return "a nested tensor" if logits.is_nested else f"a sparse tensor ({logits.layout})"
    if logits.is_meta:
        return "a tensor on the device 'meta', which holds no numbers"
    return "" if logits.is_floating_point() else f"numbers of type {logits.dtype}"


def call(model: nn.Module, x: Images) -> Any:
    """Call the model on the whole batch at once; of an answer with several parts, as of transformers, take `logits`."""
    answer = model(x)
    return answer if isinstance(answer, Tensor) else getattr(answer, "logits", answer)


ANY_LOGITS = Presentation(
    call, lambda answer, x: answer.ndim > 1 and len(answer) == len(x), "logits of shape (batch, classes, ...)"
)
"""Presentation for logits of any shape (batch, classes, ...)."""


def is_stochastic(model: nn.Module) -> bool:
    """Whether a module of the model has `stochastic = True`: it draws noise at test time."""
    return any(getattr(module, "stochastic", False) for module in model.modules())


def require_module(model: object) -> None:
    """Refuse anything but a `torch.nn.Module`, such as a function that calls one.

    Raises:
        BadInputError: it is none.
    """
    if not isinstance(model, nn.Module):
        raise BadInputError(f"a model of type {type(model).__name__}", expected="a torch.nn.Module")


def device_for(model: nn.Module, device: str | None) -> torch.device:
    """Return the given device or, if it is None, the device of the model.

    Raises:
        BadInputError: the device does not exist or does not work.
    """
    if device is None:
        first = next(model.parameters(), None)
        return torch.device("cpu") if first is None else first.device
    try:
        assert float(torch.ones(1, device=device).sum()) == 1
        return torch.device(device)
    except Exception as error:  # noqa: BLE001 (each backend raises a different exception)
        raise BadInputError(
            f"device '{device}' cannot be used ({reason_of(error)})", fix="see: rbk list machine"
        ) from None


@contextmanager
def gradients_on(device: torch.device) -> Iterator[None]:
    """Take gradients of what lies on a device, whatever mode is on."""
    products = device.type == "cpu" and not compiled_as()
    with torch.inference_mode(mode=False), torch.enable_grad(), PatchGradients() if products else nullcontext():
        yield


class Runner:
    """Runs `model` on batches of `batch_size` images; smaller batches are padded with copies of the last image.

    Matrix kernels choose the order of summation by the shape, so results are equal to the bit only at equal batch
    sizes; the row of a sample in the batch does not matter. So a batch is padded to `batch_size`, or to fewer rows
    once these were seen to change no bit (`FewerRows`). When memory runs out, `batch_size` is halved permanently.

    With `draws` > 1, logits, losses and gradients are means over that many passes: the expectation over the noise of a
    stochastic model (Athalye, Engstrom, Ilyas & Kwok 2018, arXiv:1707.07397). Torch's generator is seeded by the images
    and the number of the draw, so equal batches get equal noise and different batches get different noise.

    `presentation` calls the model and defines the shape of its logits.

    `forwards` and `backwards` count the rows shown to the model so far, padding included. `first_gradient` holds what
    the first call of `gradient` asked and was answered, with the presentation, to be asked again elsewhere.

    With `as_it_is` the model may be in training mode or draw noise: its answers need not repeat.
    """

    def __init__(
        self,
        model: nn.Module,
        batch_size: int,
        device: torch.device,
        draws: int = 1,
        presentation: Presentation = ANY_LOGITS,
        *,
        as_it_is: bool = False,
    ) -> None:
        if not as_it_is:
            require_evaluation_mode(model)
        if not as_it_is and draws == 1 and is_stochastic(model):
            raise BadInputError(
                "the model draws noise at test time, so a forward pass is not repeatable",
                expected="a protocol that averages over several draws",
                fix="set draws, for example draws = 20",
            )
        if batch_size < 1:
            raise BadInputError(f"batch size {batch_size}", expected="at least 1")
        self.model, self.batch_size, self.device = model, batch_size, device
        self.draws, self.presentation, self.as_it_is = draws, presentation, as_it_is
        self.fewer = FewerRows()
        self.classes: int | None = None
        self.first_gradient: tuple[Images, Loss, Presentation, tuple[PerSample, Images, Logits]] | None = None
        self.forwards = self.backwards = 0
        self.costs = Costs()
        self._identified: tuple[Images, Logits, int] | None = None

    def of_few(self) -> "Runner":
        """Return a runner of small batches, for questions whose answers need no equal bits.

        Its batches are as large as these where the noise depends on the batch, or where a size is compiled.
        """
        few = copy(self)
        few.batch_size = self.batch_size if self.draws > 1 or compiled_as() else min(FEW, self.batch_size)
        return few

    def logits(self, x: Images) -> Logits:
        """One forward pass."""
        with torch.no_grad():
            return self._within_memory(lambda: self._few_rows(x, lambda rows: (self._logits(x, rows),)))[0]

    def identify(self, x: Images) -> Logits:
        """One forward pass of the first batch; its answers identify the model."""
        logits = self.logits(x)
        self._identified = x, logits.clone(), self.batch_size  # a model may write all answers into one memory
        return logits

    def clean_logits(self, x: Images) -> Logits:
        """`logits`, but of the first batch those that identified the model: it is not shown again."""
        if self._identified is not None:
            first, logits, size = self._identified
            if size == self.batch_size and first.shape == x.shape and torch.equal(first, x):
                return logits
        return self.logits(x)

    def agrees_apart(self, x: Images, logits: Logits) -> bool:
        """Show a few images of a batch without the others; tell whether their logits are the same to the bit."""
        if self._has_one_size():
            return False
        with torch.no_grad():
            return self.fewer.agrees(len(x), self.batch_size, (logits,), lambda rows: (self._logits(x, rows),))

    def logits_of_each(self, parts: Iterable[Images]) -> Iterator[Logits]:
        """Return the logits of equally long batches in turn; their rows are shown in full batches across their borders.

        Up to a batch of rows is taken from `parts` ahead of the answers.
        """
        rows: list[Images] = []
        answers: list[Logits] = []
        length = 1
        for part in parts:
            length = len(part)
            rows.append(part)
            if sum(map(len, rows)) < self.batch_size:
                continue
            joined = rows[0] if len(rows) == 1 else torch.cat(rows)
            full = len(joined) - len(joined) % self.batch_size
            answers.append(self.logits(joined[:full]))
            rows = [joined[full:]]
            *whole, rest = torch.cat(answers).tensor_split(list(range(length, sum(map(len, answers)) + 1, length)))
            yield from whole
            answers = [rest]
        if sum(map(len, rows)):
            answers.append(self.logits(torch.cat(rows)))
            yield from torch.cat(answers).split(length)

    def gradient(self, x: Images, loss: Loss) -> tuple[PerSample, Images, Logits]:
        """One forward and one backward pass: per-sample losses, their gradients with respect to `x`, and the logits."""
        with gradients_on(self.device):
            answer = self._within_memory(lambda: self._few_rows(x, lambda rows: self._gradient(x, loss, rows)))
            if self.first_gradient is None:
                kept = answer[0], answer[1].clone(), answer[2]
                self.first_gradient = ordinary(x).detach().clone(), loss, self.presentation, kept
            return answer

    def gradient_of_each(self, x: Images, losses: Sequence[Loss]) -> Iterator[tuple[PerSample, Images, Logits]]:
        """Return `gradient` of every loss at x, in turn; a batch that holds x several times is shown for as many."""
        together = max(self.batch_size // max(len(x), 1), 1) if self.draws == 1 else 1
        for first in range(0, len(losses), together):
            group = losses[first : first + together]

            def joined(logits: Logits, group: Sequence[Loss] = group) -> PerSample:
                return torch.cat([loss(part) for loss, part in zip(group, logits.split(len(x)), strict=True)])

            joint = self.gradient(torch.cat([x] * len(group)), joined)
            yield from zip(*(part.split(len(x)) for part in joint), strict=True)

    def _few_rows(self, x: Images, work: Callable[[int], Answer]) -> Answer:
        """Return what `work` returns at the batch size, from fewer rows if these are known to answer the same."""
        if self._has_one_size():
            return work(self.batch_size)
        return self.fewer.answer(len(x), self.batch_size, work)

    def _has_one_size(self) -> bool:
        return self.as_it_is or self.draws > 1 or compiled_as() is not None

    def _logits(self, x: Images, rows: int) -> Logits:
        if len(x) <= self.batch_size:
            return self._mean_call(x, rows)  # a single part may be large: do not copy it
        return _joined(len(x), (self._mean_call(part, rows) for part in x.split(self.batch_size)))

    def _gradient(self, x: Images, loss: Loss, rows: int) -> tuple[PerSample, Images, Logits]:
        draws = [self._gradient_of_draw(x, loss, draw, rows) for draw in range(self.draws)]
        if self.draws == 1:
            return draws[0]
        losses, gradients, logits = (torch.stack(part).mean(0) for part in zip(*draws, strict=True))
        return losses, gradients, logits

    def _gradient_of_draw(self, x: Images, loss: Loss, draw: int, rows: int) -> tuple[PerSample, Images, Logits]:
        x = ordinary(x).detach()
        parts = [part.requires_grad_() for part in x.split(self.batch_size)]
        if len(parts) == 1:
            logits = self._call(parts[0], draw, rows)
            losses = loss(logits)
            return losses.detach(), self._input_gradient(losses.sum(), parts[0], rows), logits.detach()
        with torch.no_grad():  # the batch size was halved: run each part once more below, for its own gradient
            logits = _joined(len(x), (self._call(part, draw, rows) for part in parts))
        logits.requires_grad_()
        losses = loss(logits)
        (weights,) = torch.autograd.grad(losses.sum(), logits)
        pairs = zip(parts, weights.split(self.batch_size), strict=True)
        gradient = torch.cat(
            [self._input_gradient((self._call(part, draw, rows) * weight).sum(), part, rows) for part, weight in pairs]
        )
        return losses.detach(), gradient, logits.detach()

    def _mean_call(self, x: Images, rows: int) -> Logits:
        if self.draws == 1:
            return self._call(x, 0, rows)
        answers = _joined(self.draws, (self._call(x, draw, rows)[None] for draw in range(self.draws)))
        return answers.mean(0)

    def _call(self, x: Images, draw: int, rows: int) -> Logits:
        unpadded, count = x, len(x)
        if count < rows:
            x = torch.cat([x, x[-1:].detach().expand(rows - count, *x.shape[1:])])
        model_input = x.contiguous()  # kernels sum in another order where channels lie last
        if model_input is unpadded:
            model_input = x.clone()  # the model may write into its input
        started = time.perf_counter()
        try:
            with self._noise(x, draw), unharmed(model_input):
                logits: Tensor = self.presentation.show(self.model, model_input)
        except (BenchmarkError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the user's code can raise anything
            if _out_of_memory(error):
                raise
            if isinstance(error, RuntimeError):
                require_one_precision(self.model, x)
            what = f"the model failed on images of shape {tuple(x.shape)} and {x.dtype}"
            raise _failure(what, error, "check that the model accepts such images") from error
        self.presentation.require(logits, x)
        self.forwards += len(x)
        self.costs.note(time.perf_counter() - started)
        if self.classes is None:
            self.classes = logits.shape[1]
        if logits.shape[1] != self.classes:
            raise BadInputError(
                f"the model returned logits of {logits.shape[1]} classes, and of {self.classes} before",
                expected="the same classes for every batch",
            )
        return (logits if len(logits) == count else logits[:count]).float()

    def _input_gradient(self, value: Tensor, x: Images, rows: int) -> Images:
        try:
            (gradient,) = torch.autograd.grad(value, x)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a backward function of the user can raise anything, too
            if _out_of_memory(error):
                raise
            raise _failure("the model cannot be differentiated", error, "make its operations differentiable") from error
        self.backwards += rows
        return gradient.contiguous()  # a convolution may lay channels last, which slows down all that follows

    @contextmanager
    def _noise(self, x: Images, draw: int) -> Iterator[None]:
        if self.draws == 1:
            yield
            return
        content = hashlib.sha256(x.detach().cpu().contiguous().numpy().tobytes() + draw.to_bytes(4, "little"))
        devices = [] if self.device.type != "cuda" else [self.device]
        with torch.random.fork_rng(devices):
            torch.manual_seed(int.from_bytes(content.digest()[:8], "little"))
            yield

    def _within_memory(self, work: Callable[[], T]) -> T:
        """Run `work`; each time memory runs out, halve the batch size and run it again.

        Raises:
            EvaluationError: memory runs out even with a single image.
        """
        while True:
            try:
                return work()
            except Exception as error:
                if not _out_of_memory(error):
                    raise
                if self.batch_size == 1:
                    raise EvaluationError("out of memory with a single image", fix="use a larger device") from error
            self.batch_size = (self.batch_size + 1) // 2


def _out_of_memory(error: BaseException) -> bool:
    """Recognise an out-of-memory error by its type or, for the RuntimeError of the CPU allocator, by its message."""
    words = ("not enough memory", "can't allocate memory", "out of memory")
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and any(text in str(error).lower() for text in words)
    )


def _joined(count: int, parts: Iterable[Tensor]) -> Tensor:
    """Concatenate tensors of `count` rows in all, each copied before the next is made."""
    joined, done = torch.empty(0), 0
    for part in parts:
        if not done:
            joined = part.new_empty(count, *part.shape[1:])
        joined[done : done + len(part)] = part
        done += len(part)
    return joined


_CURES = {
    "Inference tensors": "make all tensors of the model outside torch.inference_mode()",
    "use_reentrant": "give torch.utils.checkpoint.checkpoint use_reentrant=False",
}
"""What to do where torch's own message has these words."""


def _failure(what: str, error: BaseException, fix: str) -> BenchmarkError:
    cures = (cure for words, cure in _CURES.items() if words in str(error))
    return BadInputError(f"{what} ({reason_of(error)})", fix=next(cures, fix))
