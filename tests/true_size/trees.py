"""Folders with the names, labels and numbers of files of the real sets: hard links to 96 pictures.

    python tests/true_size/trees.py FOLDER [--share 1.0]     # then RBK_DATA=FOLDER
    python tests/true_size/trees.py FOLDER --text            # WikiText-103's size: 0.6 GB

Names are the real ones where RBK_DATA has `imagenet_meta`, else made by the rules that readers check. `--share` keeps
that share of the files of every class.
"""

import argparse
import gzip
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from robustbench_kpca.data.imagenet_classes import imagenet_classes, imagenet_wnids, robustbench_validation
from robustbench_kpca.data.sets import ade20k, wikitext103
from robustbench_kpca.data.shifted_imagenet import SHIFTED
from robustbench_kpca.protocols.corruption_names import COMMON

PICTURES = 96
"""Files that all others are links to: ext4 allows 65,000 links a file, and all sets together have 5.2 million."""
_TRAINING = 1_281_167
_LISTS = {
    "imagenet-a": "imagenet-a_file_names.txt.gz",
    "imagenet-r": "imagenet-r_file_names.txt.gz",
    "imagenet-sketch": "imagenet-sketch_file_names.txt.gz",
    "imagenet-v2": "imagenetv2_file_names.txt.gz",
}


class Pictures:
    """A few pictures of one size; `link` makes the next file of a tree a link to one of them."""

    def __init__(self, folder: Path, make: Iterable[bytes]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.files, self.made = list[Path](), 0
        for number, data in enumerate(make):
            self.files.append(folder / str(number))
            self.files[-1].write_bytes(data)

    def link(self, path: Path) -> None:
        """Make `path` one more name of the next picture."""
        os.link(self.files[self.made % len(self.files)], path)
        self.made += 1

    def fill(self, root: Path, files: Iterable[str]) -> int:
        before, folders = self.made, set[str]()
        for file in files:
            folder = file.rpartition("/")[0]
            if folder not in folders:
                (root / folder).mkdir(parents=True, exist_ok=True)
                folders.add(folder)
            self.link(root / file)
        return self.made - before


def photographs() -> Iterator[bytes]:
    """JPEG files of 224 x 224 pixels, the size of ImageNet-C's."""
    for seed in range(PICTURES):
        blocks = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), np.uint8)
        yield encoded(blocks.repeat(32, 0).repeat(32, 1), "JPEG")


def renumber(root: Path) -> dict[int, int]:
    """Let each picture of a tree be 8 x 8 pixels whose red is its number; return inode -> number.

    A file is written in place, so all its links show the new picture.
    """
    numbers = {}
    for path in (root / ".pictures").iterdir():
        path.write_bytes(encoded(np.full((8, 8, 3), (int(path.name), 0, 0), np.uint8), "PNG"))
        numbers[path.stat().st_ino] = int(path.name)
    return numbers


def scenes() -> Iterator[tuple[bytes, bytes]]:
    """A picture and its mask, 64 x 48 pixels: 0 (no class) and a few of the 150 classes, all of which occur."""
    for seed in range(PICTURES):
        rng = np.random.default_rng(seed)
        mask = (1 + (3 * seed + rng.integers(0, 5, (6, 8))) % ade20k.CLASSES).astype(np.uint8).repeat(8, 0).repeat(8, 1)
        mask[:4] = 0
        yield encoded(rng.integers(0, 256, (48, 64, 3), np.uint8), "JPEG"), encoded(mask, "PNG")


def encoded(array: np.ndarray, form: str) -> bytes:
    from io import BytesIO

    file = BytesIO()
    Image.fromarray(array).save(file, form)
    return file.getvalue()


def meta(name: str) -> list[str] | None:
    """Return the lines of a list of real names, None where it is not at hand."""
    path = Path(os.environ.get("RBK_DATA", "nowhere"), "imagenet_meta", name)
    return gzip.decompress(path.read_bytes()).decode().splitlines() if path.is_file() else None


def validation() -> list[str]:
    """Return `WNID/ILSVRC2012_val_00000001.JPEG` of 50,000 files, 50 a class."""
    wnids, lines = imagenet_wnids(), meta("ilsvrc2012_val_labels.txt.gz")
    if lines is not None:
        return sorted(f"{wnids[int(label)]}/{name}" for name, label in (line.split() for line in lines))
    known, names = robustbench_validation(), [f"ILSVRC2012_val_{number:08d}" for number in range(1, 50_001)]
    counted = Counter(known.values())
    rest = iter([wnid for wnid in wnids for _ in range(50 - counted[wnid])])
    return sorted(f"{known.get(name) or next(rest)}/{name}.JPEG" for name in names)


def training() -> list[str]:
    """Return 1,281,167 names, 1,281 or 1,282 a class."""
    wnids = imagenet_wnids()
    return [f"{wnid}/{wnid}_{k}.JPEG" for c, wnid in enumerate(wnids) for k in range((_TRAINING - c + 999) // 1000)]


def collection(name: str) -> list[str]:
    """Return the files of ImageNet-A, -O, -R, -V2 or -Sketch."""
    real = meta(_LISTS[name]) if name in _LISTS else None
    if real is not None:
        return real
    indices, number = imagenet_classes(name if name in ("imagenet-a", "imagenet-r", "imagenet-o") else "all"), SHIFTED
    folders = [str(i) if name == "imagenet-v2" else imagenet_wnids()[i] for i in indices]
    return [f"{folders[k % len(folders)]}/{k}.jpeg" for k in range(number[name].images)]


def kept(files: list[str], share: float) -> list[str]:
    counts, seen = Counter(file.partition("/")[0] for file in files), Counter[str]()
    chosen = []
    for file in files:
        folder = file.partition("/")[0]
        if seen[folder] < max(1, round(share * counts[folder])):
            chosen.append(file)
            seen[folder] += 1
    return chosen


def make(root: Path, share: float = 1.0, sets: Iterable[str] | None = None) -> dict[str, int]:
    """Make the trees below `root`; return the number of files by set.

    sets: of "imagenet", "imagenet/train", "imagenet-c", the collections and "ade20k"; default: all.
    """
    pictures, made = Pictures(root / ".pictures", photographs()), dict[str, int]()
    wanted = set(sets or ("imagenet", "imagenet/train", "imagenet-c", "imagenet-o", *_LISTS, "ade20k"))
    files = kept(validation(), share)
    for name in sorted(wanted):
        if name == "imagenet":
            made[name] = pictures.fill(root / name / "val", files)
        elif name == "imagenet/train":
            made[name] = pictures.fill(root / name, kept(training(), share))
        elif name == "imagenet-c":
            cells = [root / name / corruption / str(severity) for corruption in COMMON for severity in range(1, 6)]
            made[name] = sum(pictures.fill(cell, files) for cell in cells)
        elif name == "ade20k":
            made[name] = _make_scenes(root, share)
        else:
            made[name] = pictures.fill(root / name, kept(collection(name), share))
    return made


def _make_scenes(root: Path, share: float) -> int:
    pairs, total = list(scenes()), 0
    images, masks = (Pictures(root / f".{k}", data) for k, data in enumerate(zip(*pairs, strict=True)))
    for part, number in ade20k.SPLITS.values():
        prefix = "ADE_val" if part == "validation" else "ADE_train"
        names = [f"{prefix}_{k:08d}" for k in range(1, 1 + round(share * number))]
        total += images.fill(root / "ade20k" / "images" / part, [f"{name}.jpg" for name in names])
        total += masks.fill(root / "ade20k" / "annotations" / part, [f"{name}.png" for name in names])
    return total


def write_words(root: Path, share: float = 1.0) -> None:
    """Write `wiki.{train,valid,test}.tokens` with WikiText-103's numbers of words and its vocabulary.

    Word k of the vocabulary stands in the training part about in proportion to 1 / k (Zipf), each at least once. There
    is an article every few thousand words.
    """
    folder, rng = root / wikitext103.NAME, np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    number = wikitext103.VOCABULARY - len(("<eos>", "=", "Article", "<unk>", "AAA"))
    words = np.array([f"w{k}" for k in range(number)])
    chance = 1 / np.arange(1, number + 1)
    for split, name in wikitext103.SPLITS.items():
        left = round(share * wikitext103.WORDS[split])
        with (folder / f"wiki.{name}.tokens").open("w", encoding="utf-8") as file:
            if split == "train":
                left -= _write(file, ["<unk>", "AAA", *words])
            while left > 0:
                some = max(1, min(2**20, (left - 6) * 100 // 101))  # beside six of a heading, and an end a line
                left -= _write(file, [*words[rng.choice(number, some, p=chance / chance.sum())]])


def _write(file, words: list[str], line: int = 100) -> int:
    """Write one article of lines of about a hundred words; return the number of its words and ends of lines."""
    lines = ["", "= Article =", "", *(" ".join(words[k : k + line]) for k in range(0, len(words), line))]
    file.write("\n".join(lines) + "\n")
    return len(words) + 3 + len(lines)


def main() -> None:
    """Make what the options ask for, and print numbers and seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--set", action="append", help="only this set, such as imagenet-c; repeatable")
    parser.add_argument("--text", action="store_true", help="only WikiText-103")
    options = parser.parse_args()
    started = time.perf_counter()
    if options.text:
        write_words(options.folder, options.share)
    else:
        for name, number in make(options.folder, options.share, options.set).items():
            print(f"{name}: {number:,} files")
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
