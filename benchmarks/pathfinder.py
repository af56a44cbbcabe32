"""What tells Pathfinder's classes apart without following a curve: distance and places of the discs, and all pixels.

python benchmarks/pathfinder.py [SOURCE], by default that of the board. Test accuracy in percent.
"""

import sys

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.neural_network import MLPClassifier

from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.data.sets._sized import sized
from robustbench_kpca.data.sets.pathfinder import Size, draw

SOURCE = "pathfinder:side=10,contour=2,distractors=0"


def discs(size: Size, split: str) -> NDArray[np.float64]:
    """Return the places of the discs of every picture, (pictures, 4), in pixels."""
    rows = []
    for index in range(getattr(size, split)):
        curves = draw(size, split, index)[1]
        first, last = curves[0][0, 0], curves[0 if index % 2 else 1][-1, -1]
        rows.append((first.real, first.imag, last.real, last.imag))
    return np.array(rows)


def main(source: str) -> None:
    """Print a table."""
    size = sized(Size, "pathfinder", source.partition(":")[2])[0]
    parts = [Samples.require(load_data(source, split)).tensors() for split in ("train", "test")]
    labels = [part[1].numpy() for part in parts]
    places = [discs(size, split) for split in ("train", "test")]
    away = [np.hypot(*(place[:, :2] - place[:, 2:]).T)[:, None] for place in places]
    pixels = [(images.flatten(1).numpy() - 2) / 255 for images, _ in parts]
    forest = RandomForestClassifier(100, min_samples_leaf=10, random_state=0)
    perceptron = MLPClassifier((256, 128), alpha=1e-3, max_iter=10, random_state=0)
    for name, model, (train, test) in (
        ("distance of the discs, forest", forest, away),
        ("places of the discs, forest", forest, places),
        ("all pixels, perceptron", perceptron, pixels),
    ):
        print(f"{name}: {100 * model.fit(train, labels[0]).score(test, labels[1]):.1f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else SOURCE)
