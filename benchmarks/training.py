"""What the training loop adds to the bare forward and backward passes: pictures a second of both, and their ratio.

The recipe is trained as `rbk train` does it. Between two of its steps a twin of the model makes the passes of one step
on a fixed batch, so both meet the same load of the machine. Seconds are CPU seconds of the process, elapsed ones on
other devices; medians over the steps after the first three.

    RBK_DATA=data python benchmarks/training.py symvit_cifar_small rpc_symvit_cifar_small [--steps 30] [--set KEY=VALUE]

With `--variants` the passes are made as the loop makes them, with channels last, and compiled; and a step of AdamW in
torch's three forms. Then nothing is trained.

With `--profile` the steps of the training are profiled: the share of each kind of operation in their time.

With `--together N` one adversarial step of N networks in one pass is timed, without the optimiser; the random starts of
its attack alone; and how long a CUDA device is busy in it.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _shared import cpu_times, header
from tabulate import tabulate
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.strict import parse_assignments
from robustbench_kpca._engine.inference.acceleration import products
from robustbench_kpca.attacks.shared.ball import uniform_in_ball
from robustbench_kpca.models.build import create_model
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train
from robustbench_kpca.training.objective import adversarial_images
from robustbench_kpca.training.recipe import Recipe, load_recipe
from robustbench_kpca.training.together import Stacked

KINDS = {
    "optimiser": ("Optimizer",), "attention": ("scaled_dot_product",), "matrix products": ("mm",),
    "convolutions": ("conv",), "GELU": ("gelu",), "layer norms": ("layer_norm",), "copies": ("copy_", "clone"),
}  # fmt: skip
"""Parts of the names of operations, by kind; the first kind that has one counts."""
FIRST = 3  # steps that are not counted: caches are cold, and the first begins before the clock


class EnoughError(Exception):
    """As many steps as were asked for."""


def bare(recipe: Recipe, device: str) -> Callable[[], None]:
    """Return the passes of one step: of every step of an attack, then of the training loss; nothing else."""
    model = create_model(recipe.model, **recipe.model_options).to(device).train()
    x = torch.rand(recipe.batch_size, 3, 32, 32, device=device)
    y = torch.arange(recipe.batch_size, device=device) % 10
    attacks = 0 if recipe.adversarial is None else int(recipe.adversarial.options.get("steps", 1))

    def passes() -> None:
        for _ in range(attacks):
            shown = x.clone().requires_grad_()
            torch.autograd.grad(F.cross_entropy(model(shown), y), shown)
        for parameter in model.parameters():
            parameter.grad = None
        F.cross_entropy(model(x), y).backward()

    return passes


def measure(name: str, overrides: dict[str, Any], steps: int, device: str) -> list[Any]:
    """Train for so many steps; return the row of the table."""
    _, recipe, text = load_recipe(name, overrides)
    passes = bare(recipe, device)
    looped: list[float] = []
    twin: list[float] = []
    last: list[float] = []

    def now() -> float:
        if device != "cpu":
            torch.accelerator.synchronize()
            return time.perf_counter()
        return time.process_time()

    def on_step(*_: Any, **__: Any) -> None:
        ended = now()
        looped.extend([ended - began for began in last])
        passes()
        last[:] = [now()]
        twin.append(last[0] - ended)
        if len(twin) == steps:
            raise EnoughError

    with tempfile.TemporaryDirectory() as folder:
        started = now()
        with contextlib.suppress(EnoughError):
            train("benchmark", recipe, text, Path(folder), Options(on_step=on_step))
        first = now() - started - sum(looped) - sum(twin)  # the first step is in here, too
    loop, alone = statistics.median(looped[FIRST:]), statistics.median(twin[FIRST:])
    speeds = [recipe.batch_size / seconds for seconds in (alone, loop)]
    return [name, recipe.batch_size, *speeds, loop / alone, first]


def profile(name: str, overrides: dict[str, Any], steps: int) -> list[list[Any]]:
    """Return rows: the share of each kind of operation in the time of so many steps of the training, on a CPU.

    What runs inside a step of the optimiser counts for it. Times are elapsed ones, as the profiler has them.
    """
    _, recipe, text = load_recipe(name, overrides)
    done: list[float] = []
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    def on_step(*_: Any, **__: Any) -> None:
        done.append(time.perf_counter())
        if len(done) == FIRST:
            profiler.start()
        if len(done) == FIRST + steps:
            profiler.stop()
            raise EnoughError

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(EnoughError):
        train("benchmark", recipe, text, Path(folder), Options(on_step=on_step))
    found: dict[str, float] = {}
    for event in profiler.events() or []:
        if event.cpu_parent is None:
            _add(event, found)
    whole = sum(found.values())
    rows = [[name, kind, 100 * spent / whole] for kind, spent in sorted(found.items(), key=lambda one: -one[1])]
    seconds = (done[-1] - done[FIRST - 1]) / steps
    return [*rows, [name, f"in operations, of {1000 * seconds:.0f} ms a step", whole / steps / 1e4 / seconds]]


def together(name: str, overrides: dict[str, Any], count: int, repeats: int, device: str) -> list[Any]:
    """Return the row of a step of `count` networks: milliseconds of it, of its starts, and of the device in it."""
    _, recipe, _ = load_recipe(name, overrides)
    settings = recipe.adversarial
    assert settings is not None, "a recipe with a table [adversarial]"
    model = Stacked([create_model(recipe.model, **recipe.model_options).to(device) for _ in range(count)]).train()
    x = torch.rand(count * recipe.batch_size, 3, 32, 32, device=device)
    y, keys = torch.arange(len(x), device=device) % 10, torch.arange(len(x))

    def step() -> None:
        for stack in model.stacks.values():
            stack.grad = None
        attacked = adversarial_images(model, x, y, keys, settings, epoch=recipe.epochs)
        F.cross_entropy(model(attacked), y).backward()

    def starts() -> None:
        uniform_in_ball(x, settings.threat(recipe.epochs), keys)

    def milliseconds(run: Callable[[], None]) -> float:
        seconds = []
        for _ in range(repeats + 1):
            started = time.perf_counter()
            run()
            if device != "cpu":
                torch.accelerator.synchronize()
            seconds.append(time.perf_counter() - started)
        return 1000 * statistics.median(seconds[1:])

    with products("ieee"):
        times, busy = [milliseconds(step), milliseconds(starts)], None
        if device == "cuda":
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                step()
                torch.cuda.synchronize()
            busy = sum(event.self_device_time_total for event in profiler.key_averages()) / 1000
    return [name, count, len(x), *times, busy]


def _add(event: Any, found: dict[str, float]) -> None:
    """Add the time of an operation and of those inside it to their kinds."""
    kind = next((kind for kind, parts in KINDS.items() if any(part in event.name for part in parts)), None)
    if kind is not None or not event.cpu_children:
        found[kind or "other"] = found.get(kind or "other", 0.0) + event.cpu_time_total
        return
    found["other"] = found.get("other", 0.0) + event.self_cpu_time_total
    for child in event.cpu_children:
        _add(child, found)


def variants(name: str, overrides: dict[str, Any], repeats: int) -> list[list[Any]]:
    """Return rows: the milliseconds of one step's passes in three forms, then of three forms of AdamW; on a CPU."""
    _, recipe, _ = load_recipe(name, overrides)
    x, y = torch.rand(recipe.batch_size, 3, 32, 32), torch.arange(recipe.batch_size) % 10
    plain, last, compiled = (create_model(recipe.model, **recipe.model_options).train() for _ in range(3))
    last = last.to(memory_format=torch.channels_last)
    forms = {
        "as in the loop": (plain, x),
        "channels last": (last, x.contiguous(memory_format=torch.channels_last)),
        "torch.compile": (torch.compile(compiled), x),
    }

    def passes(model: Any, images: torch.Tensor) -> Callable[[], None]:
        return lambda: F.cross_entropy(model(images), y).backward()

    contenders = {f"passes, {form}": passes(*pair) for form, pair in forms.items()}
    for form, options in {"one by one": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}.items():
        twin = create_model(recipe.model, **recipe.model_options)
        F.cross_entropy(twin(x), y).backward()
        contenders[f"AdamW, {form}"] = torch.optim.AdamW(twin.parameters(), **options).step
    first = []
    for run in contenders.values():
        started = time.perf_counter()
        run()
        first.append(time.perf_counter() - started)
    times = cpu_times(list(contenders.values()), repeats)
    rows = zip(contenders, times, first, strict=True)
    return [[name, what, 1000 * seconds, begun] for what, seconds, begun in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description="What the training loop adds to bare forward and backward passes.")
    parser.add_argument("recipes", nargs="*", default=["symvit_cifar_small"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in `rbk train`")
    parser.add_argument("--variants", action="store_true", help="other forms of the passes and of the optimiser")
    parser.add_argument("--profile", action="store_true", help="where the time of a step goes")
    parser.add_argument("--together", type=int, metavar="N", help="a step of N networks in one pass")
    settings = parser.parse_args()
    device = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
    print(header(("torch", "timm", "accelerate")), device, sep="; ", end="\n\n")
    if settings.profile:
        shares = [profile(name, parse_assignments(settings.set), settings.steps) for name in settings.recipes]
        head = ["recipe", "kind of operation", "share (%)"]
        print(tabulate([row for rows in shares for row in rows], head, tablefmt="github", floatfmt=".1f"))
        return
    if settings.together:
        rows = [
            together(name, parse_assignments(settings.set), settings.together, settings.steps, device)
            for name in settings.recipes
        ]
        head = ["recipe", "networks", "images", "step (ms)", "its starts (ms)", "device busy (ms)"]
        print(tabulate(rows, head, tablefmt="github", floatfmt=".1f"))
        return
    if settings.variants:
        found = [variants(name, parse_assignments(settings.set), settings.steps) for name in settings.recipes]
        head = ["recipe", "what", "ms a step", "the first (s)"]
        print(
            tabulate([row for rows in found for row in rows], head, tablefmt="github", floatfmt=("", "", ".1f", ".1f"))
        )
        return
    rows = [measure(name, parse_assignments(settings.set), settings.steps, device) for name in settings.recipes]
    head = ["recipe", "batch", "bare (pictures/s)", "loop (pictures/s)", "loop / bare", "start and first step (s)"]
    print(tabulate(rows, head, tablefmt="github", floatfmt=("", "", ".0f", ".0f", ".3f", ".1f")))


if __name__ == "__main__":
    main()
