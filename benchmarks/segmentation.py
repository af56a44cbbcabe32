"""Measure the overhead of sliding windows over bare forward passes, and the memory for an image.

    OMP_NUM_THREADS=1 python benchmarks/segmentation.py
    OMP_NUM_THREADS=1 python benchmarks/segmentation.py --memory  # only the memory for an image

The bare passes use the same windows in the same batches; a second column adds the class of every pixel, which any
evaluation needs. The loop crops windows, averages logits, and assembles images. Relative overheads are medians over
rounds in which the three were measured one after the other.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import _shared
import numpy as np
import torch

from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca._engine.inference.sliding_window import Stream, Windowing, first_largest, starts
from robustbench_kpca.models import create_model
from robustbench_kpca.study.reproduction.measuring import interleaved

CASES = (
    ("symvit_segmenter_tiny", (512, 1024), 512, 1, 2),
    ("symvit_segmenter_tiny", (512, 683), 512, 1, 2),
    ("symvit_segmenter_tiny", (512, 683), 480, 1, 2),
    ("symvit_shapes", (64, 64), 64, 64, 256),
)
"""Model, size of the images, stride, batch size, number of images."""


def windows_of(image: Any, side: int, stride: int) -> list[Any]:
    """Return the windows of an image."""
    pixels = torch.from_numpy(image).permute(2, 0, 1).float() / 255
    height, width = image.shape[:2]
    places = [(y, x) for y in starts(height, side, stride) for x in starts(width, side, stride)]
    return [pixels[:, y : y + side, x : x + side] for y, x in places]


def compare(name: str, size: tuple[int, int], stride: int, batch_size: int, count: int, repeats: int) -> str:
    """Return one row: CPU seconds of bare passes, of passes with the class of every pixel, and of the loop."""
    torch.manual_seed(0)
    model = create_model(name).eval()
    side: Any = model.window
    runner = Runner(model, batch_size, torch.device("cpu"))
    images = np.random.default_rng(0).integers(0, 256, (count, *size, 3), dtype=np.uint8)
    bare = torch.stack([window for image in images for window in windows_of(image, side, min(stride, side))])

    def passes() -> None:
        for part in bare.split(batch_size):
            runner.logits(part)

    def labels() -> None:
        for part in bare.split(batch_size):
            for logits in runner.logits(part):
                first_largest(logits)

    def loop() -> None:
        stream = Stream[int](runner, Windowing(side, min(stride, side)))
        found = [pair for number, image in enumerate(images) for pair in stream.put(number, image)] + stream.flush()
        assert len(found) == count

    passes()
    times = interleaved([passes, labels, loop], repeats, time.process_time)
    shares = [
        f"{100 * (statistics.median(mine / other for mine, other in zip(times[2], own, strict=True)) - 1):+.1f} %"
        for own in times[:2]
    ]
    seconds = " | ".join(f"{statistics.median(own):.2f} s" for own in times)
    return f"| {name} | {size[0]} x {size[1]} | {stride} | {len(bare)} | {seconds} | {' | '.join(shares)} |"


def memory() -> None:
    """Segment 512 x 683 pixels in 150 classes; print this process's peak memory."""
    torch.manual_seed(0)
    runner = Runner(create_model("symvit_segmenter_tiny").eval(), 1, torch.device("cpu"))
    image = np.random.default_rng(0).integers(0, 256, (512, 683, 3), dtype=np.uint8)
    stream = Stream[None](runner, Windowing(512, 512))
    assert stream.put(None, image) + stream.flush()
    print(f"{stream.decided} windows, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def main() -> None:
    """Print the table and the memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="measure only the memory for an image")
    asked = parser.parse_args()
    if asked.memory:
        memory()
        return
    print(_shared.header(("torch", "numpy")))
    print("| model | picture | stride | windows | passes | with classes | loop | over passes | over classes |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        print(compare(*case, asked.repeats), flush=True)
    done = subprocess.run([sys.executable, __file__, "--memory"], capture_output=True, text=True, check=True)
    print(f"512 x 683 pixels, 150 classes: {done.stdout.strip()}")


if __name__ == "__main__":
    main()
