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

With `--first N` the first N steps of the papers' recipes are trained on noise that lies on the device, at their own
batch size and precision, beside timm's model of the same size; `--quick` makes batches of two pictures, to see whether
it works:

    python benchmarks/training.py --first 100
"""

import argparse
import contextlib
import gc
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import timm
import torch
from _shared import cpu_times, header
from tabulate import tabulate
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.strict import parse_assignments
from robustbench_kpca._engine.inference.acceleration import products
from robustbench_kpca.attacks.shared.ball import uniform_in_ball
from robustbench_kpca.models.build import create_model
from robustbench_kpca.models.families import shape_of
from robustbench_kpca.models.operations import operations_of
from robustbench_kpca.training import run as training_run
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train
from robustbench_kpca.training.objective import adversarial_images
from robustbench_kpca.training.recipe import Recipe, load_recipe
from robustbench_kpca.training.source import Batch, Source
from robustbench_kpca.training.together import Stacked

KINDS = {
    "optimiser": ("Optimizer",), "attention": ("scaled_dot_product",), "matrix products": ("mm",),
    "convolutions": ("conv",), "GELU": ("gelu",), "layer norms": ("layer_norm",), "copies": ("copy_", "clone"),
}  # fmt: skip
"""Parts of the names of operations, by kind; the first kind that has one counts."""
FIRST = 3  # steps that are not counted: caches are cold, and the first begins before the clock


PAPERS = (
    "vit_tiny", "symvit_tiny", "rpc_symvit_tiny", "rpc_symvit_all_tiny", "fan_tiny", "rpc_fan_tiny",
    "rpc_symvit_segmenter_tiny", "softmax_lm_paper", "rpc_lm_paper",
)  # fmt: skip
PEAKS = {"H100": (989e12, 67e12), "H200": (989e12, 67e12), "A100": (312e12, 19.5e12)}
"""Operations a second in bf16 and in float32 without TF32, as the makers of a device state them."""


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


def noise(recipe: Recipe, folder: Path | None, accelerator: Any) -> Source:  # noqa: ARG001 (signature of `source_of`)
    """Return a source that gives one batch of noise, of the shape that the recipe's own source has, again and again."""
    table = next(table for table in training_run.TABLES if getattr(recipe, table) is not None)
    shape, device, n = shape_of(recipe.model, recipe.model_options), accelerator.device, recipe.batch_size
    side = recipe.text.window if recipe.text else recipe.scenes.crop if recipe.scenes else shape["img_size"]
    classes = shape["vocab_size" if recipe.text else "num_classes"]
    size = {"images": (n,), "scenes": (n, side, side), "text": (n, 1, side)}[table]
    y = torch.randint(classes, size, device=device)
    x = y[:, None] if recipe.text else torch.rand(n, 3, side, side, device=device)

    class Noise(Source):
        reads = training_run.TABLES[table].reads
        length, data_sha256 = 1_000_000 // n * n, ""

        def epoch(self, _: int) -> Iterator[Batch]:
            while True:
                yield Batch(x, y, [str(i) for i in range(n)], n, n / y.numel())

        def held_out(self, _: str) -> Iterator[Any]:
            return iter(())

        def sample(self) -> tuple[torch.Tensor, int]:
            return x[:1], classes - 1

    return Noise(recipe, None, accelerator)


def first_steps(name: str, overrides: dict[str, Any], steps: int, device: str) -> list[Any]:
    """Return the row of a recipe's first steps: pictures a second, beside timm's model, memory, share of the peak."""
    _, recipe, text = load_recipe(name, overrides)
    ended: list[float] = []

    def synchronised() -> float:
        if device != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter()

    def on_step(*_: Any, **__: Any) -> None:
        ended.append(synchronised())
        if len(ended) > steps:
            raise EnoughError

    def rate() -> float:
        return recipe.batch_size / statistics.median(after - before for before, after in pairwise(ended))

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(EnoughError):
        train("benchmark", recipe, text, Path(folder), Options(on_step=on_step))
    ours, memory = rate(), torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    peaks = [value for kind, value in PEAKS.items() if device == "cuda" and kind in torch.cuda.get_device_name()]
    operations = operations_of(recipe.model, recipe.model_options)
    peak = peaks[0][recipe.precision != "bf16"] if peaks else None
    share = None if peak is None or operations is None else 100 * 3 * operations * ours / peak
    theirs = None
    if size := re.search(r"(tiny|small|base)_patch16_224$", recipe.model):
        ended.clear()
        with contextlib.suppress(EnoughError):
            plain(timm.create_model(f"vit_{size[0]}"), recipe, device, on_step)
        theirs = rate()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return [name, recipe.batch_size, recipe.precision, ours, theirs, theirs and ours / theirs, memory, share]


def plain(model: Any, recipe: Recipe, device: str, on_step: Callable[[], None]) -> None:
    """Train as a script of ten lines would: cross-entropy and AdamW, in the recipe's precision, on noise."""
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    x, y = torch.rand(recipe.batch_size, 3, 224, 224, device=device), torch.arange(recipe.batch_size, device=device)
    while True:
        with torch.autocast(device, torch.bfloat16, enabled=recipe.precision == "bf16"):
            loss = F.cross_entropy(model(x), y % 1000)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        on_step()


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
    steps: dict[str, dict[str, Any]] = {"one by one": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    for form, options in steps.items():
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
    parser.add_argument("recipes", nargs="*", default=None)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in `rbk train`")
    parser.add_argument("--variants", action="store_true", help="other forms of the passes and of the optimiser")
    parser.add_argument("--profile", action="store_true", help="where the time of a step goes")
    parser.add_argument("--together", type=int, metavar="N", help="a step of N networks in one pass")
    parser.add_argument("--first", type=int, metavar="N", help="the first N steps of the papers' recipes, on noise")
    parser.add_argument("--quick", action="store_true", help="with --first: batches of two pictures")
    settings = parser.parse_args()
    settings.recipes = settings.recipes or (PAPERS if settings.first else ["symvit_cifar_small"])
    device = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
    print(header(("torch", "timm", "accelerate")), device, sep="; ", end="\n\n")
    if settings.first:
        training_run.source_of = noise
        head = ["recipe", "batch", "precision", "pictures/s", "timm's", "ratio", "memory (GB)", "of the peak (%)"]
        overrides = parse_assignments(settings.set) | ({"batch_size": 2} if settings.quick else {})
        for name in settings.recipes:
            try:
                row = first_steps(name, overrides, settings.first, device)
            except torch.OutOfMemoryError:
                row = [name, "", "", "out of memory"]
            print(tabulate([row], head, tablefmt="github", floatfmt=("", "", "", ".4g", ".4g", ".2f", ".1f", ".1f")))
        return
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
