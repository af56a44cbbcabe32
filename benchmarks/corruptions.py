"""What corruptions cost: beside imagecorruptions 1.1.2 and its fork that uses numba, and a whole grid end to end.

    python benchmarks/corruptions.py [library] [--fork FORK] [--only zoom glass] [--images 4] [--repeats 3] [--side 224]
    python benchmarks/corruptions.py grid --data PHOTOS --checkpoint deit_tiny.safetensors [--limit 60] [--workers 0 2]

`library`: imagecorruptions is patched so that it runs. Times are process CPU milliseconds per image on one thread,
including OpenCV: medians of interleaved runs after one warm-up run, means over severities 1 to 5. Ours are whole calls
of `corrupt_one`, which seeds each image. q85 includes the JPEG compression used for the released ImageNet-C. The images
are crops of the two photographs included in scikit-learn; the frost images are those of imagecorruptions. The fork is
included if a folder contains it and numba is installed:

    pip install numba
    pip install --no-deps --target FORK imagecorruptions-imaug==1.1.5

`grid`: pictures a second of the model alone, of making the pictures alone, and of both as `rbk eval` does it. Where all
cores are used, a picture that costs g to make and m to classify takes at least (g + m) / cores: both at once cannot
reach the speed of the model alone unless g is small. That bound is printed beside what was reached. CPU is that of this
process and its workers.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import cv2
import numpy as np
import torch
from _shared import header
from patched import imagecorruptions, source
from PIL import Image
from sklearn.datasets import load_sample_images
from tabulate import tabulate

from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.corruptions import Cell, Mode, Pixels, corrupt_one
from robustbench_kpca.corruptions.shared.storage import store
from robustbench_kpca.evaluation.part import show_all
from robustbench_kpca.evaluation.requests import DataRequest
from robustbench_kpca.models import load_model
from robustbench_kpca.protocols.corruption_names import COMMON, EXTRA, SEVERITIES
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import cells_of
from robustbench_kpca.study.reproduction.measuring import interleaved
from robustbench_kpca.tasks import task_named

PACKAGES = ("imagecorruptions", "numpy", "scipy", "opencv-python-headless", "pillow", "scikit-image", "numba")
COLUMNS = {
    "ms": "", "1.1.2": ".2f", "fork": ".2f", "exact": ".2f", "fast": ".3f", "fast, q85": ".3f",
    "1.1.2 / exact": ".1f", "1.1.2 / fast": ".1f", "fork / exact": ".1f", "fork / fast": ".1f",
}  # fmt: skip


def photographs(count: int, side: int) -> list[Pixels]:
    """Crop squares from two photographs, from left to right."""
    images = load_sample_images().images
    lefts = np.linspace(0, images[0].shape[1] - side, max(1, (count + 1) // 2)).astype(int)
    return [images[index % 2][100 : 100 + side, lefts[index // 2] :][:, :side].copy() for index in range(count)]


def load_fork(folder: Path) -> ModuleType:
    """Import the fork under another name: its package is also called `imagecorruptions`."""
    package = folder / "imagecorruptions"
    spec = importlib.util.spec_from_file_location(
        "imagecorruptions_fork", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return importlib.import_module("imagecorruptions_fork.corruptions")


def theirs(name: str, severity: int, images: list[Pixels], library: ModuleType | None = None) -> Callable[[], None]:
    """Return a run of the library, by default imagecorruptions."""
    function = getattr(library or imagecorruptions(), name)

    def run() -> None:
        for image in images:
            np.uint8(function(Image.fromarray(image), severity))

    return run


def ours(mode: Mode, name: str, severity: int, images: list[Pixels], *, stored: bool = False) -> Callable[[], None]:
    cell = Cell(name, severity, "imagecorruptions", mode, 0, str(source().parent / "frost"))

    def run() -> None:
        for index, image in enumerate(images):
            picture = corrupt_one(image, cell, str(index))
            if stored:
                store(picture)

    return run


def measure(name: str, images: list[Pixels], repeats: int, fork: ModuleType | None) -> list[float]:
    """Return milliseconds of 1.1.2, fork, exact, fast, and fast with q85: means over severities; NaN without a fork."""
    times = []
    for severity in SEVERITIES:
        here = (name, severity, images)
        contenders = [theirs(*here), ours("exact", *here), ours("fast", *here)]
        contenders += [ours("fast", *here, stored=True)] + ([theirs(*here, fork)] if fork else [])
        interleaved(contenders, 1, time.process_time)
        seconds = [statistics.median(own) for own in interleaved(contenders, repeats, time.process_time)]
        times.append([1e3 * each / len(images) for each in seconds] + ([] if fork else [np.nan]))
    reference, exact, fast, stored, forked = np.mean(times, axis=0).tolist()
    return [reference, forked, exact, fast, stored]


def row(title: str, times: list[float]) -> list[Any]:
    reference, forked, exact, fast, _ = times
    return [title, *times, reference / exact, reference / fast, forked / exact, forked / fast]


def summary(times: dict[str, list[float]]) -> list[list[Any]]:
    """Return means over the 15 corruptions, with and without the reference's slowest one, and images per second."""
    rows = []
    for title, left_out in (("mean of 15", ()), ("mean of 14, without glass_blur", ("glass_blur",))):
        mean = np.mean([times[name] for name in COMMON if name not in left_out], axis=0)
        rows += [row(title, mean.tolist()), [f"pictures/s, {title[8:]}", *(1e3 / mean).tolist()]]
    return rows


def library(arguments: argparse.Namespace) -> None:
    """Print the table of all corruptions."""
    for package in ("imagecorruptions", "skimage", *(["numba"] if arguments.fork else [])):
        if importlib.util.find_spec(package) is None:
            sys.exit(f"{package} is missing: pip install '.[reference]' numba")
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    print(header(PACKAGES))
    if arguments.fork:
        found = [f"{one.name} {one.version}" for one in metadata.distributions(path=[str(arguments.fork)])]
        print(f"fork: {', '.join(found)}")
    imagecorruptions()  # before the fork, which has the same name
    fork = load_fork(arguments.fork) if arguments.fork else None
    images = photographs(arguments.images, arguments.side)
    names = [name for name in COMMON + EXTRA if not arguments.only or any(word in name for word in arguments.only)]
    times = {name: measure(name, images, arguments.repeats, fork) for name in names}
    rows = [row(name, times[name]) for name in names]
    if set(COMMON) <= set(names):
        rows += summary(times)
    print(f"\n{tabulate(rows, [*COLUMNS], tablefmt='github', floatfmt=tuple(COLUMNS.values()))}")


def timed(run: Callable[[], int]) -> tuple[int, float, float]:
    """Return the pictures of a run, its wall seconds and its CPU seconds, with those of finished workers."""
    before, started = os.times(), time.perf_counter()
    pictures = run()
    after, wall = os.times(), time.perf_counter() - started
    return pictures, wall, sum(after[:4]) - sum(before[:4])


def grid(asked: argparse.Namespace) -> None:
    """Print the speed of the model, of making the pictures, and of both."""
    print(header())
    size: int = asked.batch_size
    model = load_model(asked.model, asked.checkpoint)
    data = DataRequest(asked.data, limit=asked.limit).load_for(model).in_order()
    protocol = load_scenario(asked.protocol)[1]
    compute, cores = task_named(data.task).compute, len(os.sched_getaffinity(0))
    rows = range(len(cells_of(protocol)) * len(data))

    def make(workers: int) -> int:
        shown = compute.shown(data, protocol, rows, batch_size=size, workers=workers, seed=0, frost="generated")
        return sum(len(numbers) for numbers, _ in shown)

    def classify() -> int:
        runner = Runner(model, size, torch.device("cpu"))
        images = torch.rand(size, 3, *data.size(0))
        with frozen(model):
            for _ in range(batches):
                runner.logits(images)
        return batches * size

    def both(workers: int) -> int:
        runner = Runner(model, size, torch.device("cpu"))
        results = compute.results("model", runner, data, protocol, None, 0)
        with frozen(model):
            show_all(
                [results], data, protocol, batch_size=size, seed=0, workers=workers, frost="generated",
                progress=None,
            )  # fmt: skip
        return len(rows)

    batches = 1
    classify()
    batches = max(4, len(rows) // size // 4)
    found = {"model alone": timed(classify)}
    for workers in asked.workers:
        found[f"pictures alone, workers {workers}"] = timed(partial(make, workers))
    for workers in asked.workers:
        found[f"end to end, workers {workers}"] = timed(partial(both, workers))
    table = [
        (name, pictures, f"{pictures / wall:.1f}", f"{1000 * cpu / pictures:.1f}")
        for name, (pictures, wall, cpu) in found.items()
    ]
    print(tabulate(table, ("", "pictures", "pictures/s", "CPU ms a picture"), disable_numparse=True))
    m, g = (1000 * found[name][2] / found[name][0] for name in list(found)[:2])
    bound = 1000 * cores / (m + g)
    print(f"bound of both on {cores} cores: {bound:.1f} pictures/s (model {m:.1f} ms, making {g:.1f} ms)")
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(required=True)
    part = parts.add_parser("library", help="single pictures; what is measured where no part is named")
    part.add_argument("--only", nargs="+", default=[], help="corruptions whose name contains one of these")
    part.add_argument("--fork", type=Path, help="folder that contains imagecorruptions-imaug 1.1.5")
    part.add_argument("--images", type=int, default=4, help="number of images")
    part.add_argument("--repeats", type=int, default=3, help="timed runs of each; the median is shown")
    part.add_argument("--side", type=int, default=224, help="side of the images, in pixels")
    part.set_defaults(run=library)
    part = parts.add_parser("grid", help="a corruption grid end to end")
    part.add_argument("--data", required=True)
    part.add_argument("--model", default="timm:deit_tiny_patch16_224")
    part.add_argument("--checkpoint")
    part.add_argument("--protocol", default="imagenet-c-generated")
    part.add_argument("--limit", type=int, default=60)
    part.add_argument("--batch-size", type=int, default=64)
    part.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    part.set_defaults(run=grid)
    asked = parser.parse_args(sys.argv[1:] or ["library"])
    asked.run(asked)


if __name__ == "__main__":
    main()
