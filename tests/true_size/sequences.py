"""Files of the UEA archive and of the Long Range Arena: numbers, lengths and classes as published, few different rows.

The ten problems are those of Chen et al. (2023); sizes are those of the archive (Bagnall et al. 2018, arXiv:1811.00075)
and of the Arena (Tay et al. 2020, arXiv:2011.04006).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from trees import Pictures, encoded

ROWS = 16
"""Different rows of a file; the others repeat them."""


@dataclass(frozen=True)
class Problem:
    """A problem of the archive: numbers of series, of dimensions and of classes, and the longest series."""

    train: int
    test: int
    dimensions: int
    length: int
    classes: int


UEA = {
    "EthanolConcentration": Problem(261, 263, 3, 1751, 4),
    "FaceDetection": Problem(5890, 3524, 144, 62, 2),
    "Handwriting": Problem(150, 850, 3, 152, 26),
    "Heartbeat": Problem(204, 205, 61, 405, 2),
    "JapaneseVowels": Problem(270, 370, 12, 29, 9),
    "PEMS-SF": Problem(267, 173, 963, 144, 7),
    "SelfRegulationSCP1": Problem(268, 293, 6, 896, 2),
    "SelfRegulationSCP2": Problem(200, 180, 7, 1152, 2),
    "SpokenArabicDigits": Problem(6599, 2199, 13, 93, 10),
    "UWaveGestureLibrary": Problem(120, 320, 3, 315, 8),
}
VARYING = {"JapaneseVowels": 7, "SpokenArabicDigits": 4}
"""Problems whose series differ in length, with the shortest."""
TEXT = {"train": 22_500, "val": 2_500, "test": 25_000}
PAIRS = {"train": 147_086, "eval": 18_090, "test": 17_437}
PATHS = 200_000
PICTURES = {"train": 47_500, "val": 2_500, "test": 10_000}
"""CIFAR-10's, of whose 50,000 training images the package keeps every twentieth for `val`; the Arena keeps 5,000."""
LISTS = {"train": 96_000, "val": 2_000, "test": 2_000}


def write_problem(root: Path, name: str) -> Path:
    """Write `NAME_TRAIN.ts` and `NAME_TEST.ts`; return their folder."""
    problem, rng, folder = UEA[name], np.random.default_rng(0), root / name
    folder.mkdir(parents=True)
    classes = [str(number + 1) for number in range(problem.classes)]
    head = f"@problemName {name}\n@timeStamps false\n@classLabel true {' '.join(classes)}\n@data\n"
    lengths = [problem.length, *rng.integers(VARYING.get(name, problem.length), problem.length + 1, ROWS - 1)]
    rows = []
    for length in lengths:
        values = np.char.mod("%.2f", rng.normal(size=(problem.dimensions, length)))
        rows.append(":".join(",".join(series) for series in values))
    for part, number in (("TRAIN", problem.train), ("TEST", problem.test)):
        with (folder / f"{name}_{part}.ts").open("w") as file:
            file.write(head)
            file.writelines(f"{rows[k % ROWS]}:{classes[k % problem.classes]}\n" for k in range(number))
    return folder


def _texts() -> list[str]:
    """Return texts of 1,000 to 6,000 bytes, of which the first 4,096 are read."""
    rng = np.random.default_rng(0)
    return ["".join(map(chr, rng.integers(97, 123, 1000 + 5000 * k // (ROWS - 1)))) for k in range(ROWS)]


def write_texts(root: Path, share: float = 1.0) -> Path:
    """Write `train.tsv`, `val.tsv` and `test.tsv` of two classes, as many texts as IMDB has."""
    root.mkdir(parents=True)
    texts = _texts()
    for split, number in TEXT.items():
        with (root / f"{split}.tsv").open("w") as file:
            file.write("text\tlabel\n")
            file.writelines(f"{texts[k % ROWS]}\t{k % 2}\n" for k in range(round(share * number)))
    return root


def write_pairs(root: Path, share: float = 1.0) -> Path:
    """Write `new_aan_pairs.{train,eval,test}.tsv`, which have no names of columns."""
    root.mkdir(parents=True)
    texts = _texts()
    for split, number in PAIRS.items():
        with (root / f"new_aan_pairs.{split}.tsv").open("w") as file:
            for k in range(round(share * number)):
                file.write(f"{k % 2}.0\t{k}\t{k + 1}\t{texts[k % ROWS]}\t{texts[(k + 5) % ROWS]}\n")
    return root


def link_paths(root: Path, share: float = 1.0) -> Path:
    """Make `imgs/K/sample_J.png` of 32 x 32 pixels, a thousand a folder, and their labels in `metadata/K.npy`."""
    rng = np.random.default_rng(0)
    pictures = Pictures(
        root / ".pictures", (encoded(rng.integers(0, 256, (32, 32), np.uint8), "PNG") for _ in range(ROWS))
    )
    (root / "metadata").mkdir()
    for folder in range(round(share * PATHS) // 1000):
        pictures.fill(root, [f"imgs/{folder}/sample_{k}.png" for k in range(1000)])
        lines = [f"imgs/{folder} sample_{k}.png {k} {k % 2} 1 2 3" for k in range(1000)]
        (root / "metadata" / f"{folder}.npy").write_text("\n".join(lines) + "\n")
    return root


def write_pictures(root: Path, share: float = 1.0) -> Path:
    """Write `cifar-10-batches-bin`: records of a label and 3,072 bytes, ten thousand a file."""
    folder, number = root / "cifar-10-batches-bin", round(share * 10_000)
    folder.mkdir(parents=True)
    records = np.random.default_rng(0).integers(0, 256, (number, 3073), np.uint8)
    records[:, 0] = np.arange(number) % 10
    for name in ("test_batch", *(f"data_batch_{k}" for k in range(1, 6))):
        records.tofile(folder / f"{name}.bin")
    return root


def ask_for_lists(root: Path, share: float = 1.0) -> str:
    """Return the request of ListOps at the Arena's size; the package draws the lists."""
    numbers = (f"{split}={round(share * number)}" for split, number in LISTS.items())
    return f"depth=10,arguments=10,least=500,length=2000,{','.join(numbers)}"
