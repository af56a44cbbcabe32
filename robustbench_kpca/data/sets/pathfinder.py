"""Generated: Pathfinder, pictures of two long dashed curves and short ones: are both discs on one curve? As tokens.

The task of Linsley et al. (2018), arXiv:1805.08315, as the Long Range Arena has it (arXiv:2011.04006): 32 x 32 grey
pixels, dashes of 2 pixels with gaps of 1, two targets of 14 dashes whose beginnings are 7 pixels apart, distractors of
a third of that length, discs of radius 1.5 at the beginning of a target and at the end of it (1) or of the other (0).
The drawing is ours, not the published program: turns are uniform within 1/4 pi, and curves keep 2 pixels apart. Both
targets end equally far from where the first begins, so that the distance of the discs says nothing.
`pathfinder:side=16,contour=4,distractors=2` is a smaller task.

`pathfinder:FOLDER` reads the published files, such as `lra_release/pathfinder32/curv_contour_length_14`: lines of
`metadata/*.npy`, which are text, name a picture and its label. In that order, eight tenths are `train`, one `val` and
one `test`. Empty files, of which the release has a few, are left out. A token is a grey level plus 2.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import read_file
from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca.data.forms import TOKENS
from robustbench_kpca.data.io.place import natural, plain_name, stored_folder
from robustbench_kpca.data.io.reading import read_rgb
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples
from robustbench_kpca.data.sets._sized import name_of, require_within, sized

PARTS = ("test", "val", "train")
CLASSES = ("two curves", "one curve")
LEVELS = 2
"""Token of black: 0 is padding, and 1 an unknown word."""
DASH, GAP, APART, RADIUS, TURN = 2.0, 1.0, 2.0, 1.5, np.pi / 4
TRIES = 8
BRIGHT = 1.5
"""Value of a dash at full cover, before values are cut at 1; the published contrasts are 2 and 0.75."""
Dashes = NDArray[np.complex128]
"""(dashes, 3): both ends and the middle of each; the real part is the column, the imaginary part the row."""


@dataclass(frozen=True)
class Size:
    """Limits of the pictures, and the number of pictures in each part.

    Attributes:
        contour: dashes of a target; the published tasks have 6, 9 and 14.
        distractors: their number; each has a third of the dashes of a target.
    """

    side: int = 32
    contour: int = 14
    distractors: int = 5
    test: int = 1_000
    val: int = 500
    train: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        most = {"side": 128, "contour": 64, "distractors": 64}
        require_within(self, "pathfinder", {"side": 10, "contour": 2, "distractors": 0, "seed": 0}, most)
        if 24 * self.contour > (self.side - 2) ** 2:  # both targets, 3 long and 2 wide a dash, on half of the picture
            raise BadInputError(f"no room for two curves of {self.contour} dashes", fix="ask for shorter ones")


def load(request: Request) -> ArraySamples:
    """Return `test` (the default), `val` or `train`; half of the generated pictures are of each class."""
    split, (size, folder) = request.split_of("pathfinder", PARTS), sized(Size, "pathfinder", request.folder)
    if folder and size != Size():
        raise BadInputError(f"sizes of the pictures in {folder}", expected="sizes of generated pictures only")
    if folder:
        return _published(stored_folder("pathfinder", folder), split)
    pictures = _drawn(size, split)
    labels, ids = [i % 2 for i in range(len(pictures))], [f"pathfinder/{split}/{i:06d}" for i in range(len(pictures))]
    return _samples(pictures, labels, ids, name_of("pathfinder", size), split)


def _samples(
    pictures: list[NDArray[np.uint8]], labels: list[int], ids: list[str], name: str, split: str
) -> ArraySamples:
    tokens = torch.from_numpy(np.stack(pictures)).flatten(1)[:, None, None].float() + LEVELS
    return ArraySamples(
        tokens, labels, name=name, split=split, classes=len(CLASSES), class_names=CLASSES, form=TOKENS, ids=ids
    )


@cache
def _drawn(size: Size, split: str) -> list[NDArray[np.uint8]]:
    return [draw(size, split, index)[0] for index in range(getattr(size, split))]


def draw(size: Size, split: str, index: int) -> tuple[NDArray[np.uint8], list[Dashes]]:
    """Draw a picture of class `index` modulo 2; return its grey levels (side, side) and its curves, targets first.

    Raises:
        BadInputError: there is no room for all dashes.
    """
    rng = generator(sample_key(size.seed, f"pathfinder/{split}", str(index)))
    for _ in range(100):
        curves = _curves(rng, size)
        if curves:
            begin, end = curves[0][0, 0], curves[0 if index % 2 else 1][-1, -1]
            return _rendered(curves, (begin, end), size.side), curves
    raise BadInputError(f"no room for the curves of {name_of('pathfinder', size)}", fix="ask for fewer or shorter ones")


def _curves(rng: np.random.Generator, size: Size) -> list[Dashes]:
    """Return two targets and the distractors that found room; nothing if a target found none."""
    first = _curve(rng, complex(*rng.uniform(3, size.side - 3, 2)), size.contour, [], size.side)
    if first is None:
        return []
    second = next((curve for _ in range(TRIES) if (curve := _second(rng, first, size)) is not None), None)
    if second is None:
        return []
    curves = [first, second]
    for _ in range(3 * size.distractors):
        if len(curves) < 2 + size.distractors:
            start = complex(*rng.uniform(1, size.side - 1, 2))
            curve = _curve(rng, start, max(1, size.contour // 3), curves, size.side)
            curves += [] if curve is None else [curve]
    return curves


def _second(rng: np.random.Generator, first: Dashes, size: Size) -> Dashes | None:
    """Return a curve whose end is as far from the beginning of the first as the end of that is; None if stuck.

    It is drawn anywhere, put 7 pixels (of 32) away, turned until that holds, and then led around the beginning
    of the first to where it has room.
    """
    shape = _curve(rng, complex(*rng.uniform(3, size.side - 3, 2)), size.contour, [], size.side)
    if shape is None:
        return None
    gap, chord, wanted = 7 * size.side / 32, shape[-1, -1] - shape[0, 0], abs(first[-1, -1] - first[0, 0])
    cosine = (wanted**2 - gap**2 - abs(chord) ** 2) / (2 * gap * abs(chord))
    if abs(cosine) > 1:
        return None
    turn = rng.choice((-1, 1)) * np.arccos(cosine) - np.angle(chord)
    ways = np.exp(2j * np.pi * rng.uniform(size=4 * TRIES))
    curves = (first[0, 0] + way * (gap + (shape - shape[0, 0]) * np.exp(1j * turn)) for way in ways)
    return next((curve for curve in curves if _has_room(curve, first, size.side)), None)


def _has_room(curve: Dashes, other: Dashes, side: int) -> bool:
    return bool(_inside(curve, side).all() and (abs(curve.ravel()[:, None] - other.ravel()) >= APART).all())


def _inside(places: Dashes, side: int) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (np.minimum(places.real, places.imag) >= 1) & (
        np.maximum(places.real, places.imag) <= side - 1
    )
    return inside


def _curve(rng: np.random.Generator, start: complex, count: int, curves: list[Dashes], side: int) -> Dashes | None:
    """Return a curve of `count` dashes that stays inside, and apart from the others and from itself; None if stuck.

    Where a dash finds no room, the last three are taken back.
    """
    taken = np.concatenate([np.zeros(0, complex), *(curve.ravel() for curve in curves)])
    steps, dashes = np.array([0, DASH / 2, DASH]), np.zeros((0, 3), complex)
    for _ in range(5 * count):
        if len(dashes):
            ways = np.exp(1j * (np.angle(dashes[-1, -1] - dashes[-1, 0]) + rng.uniform(-TURN, TURN, TRIES)))
            begins = dashes[-1, -1] + GAP * ways
        else:
            ways, begins = np.exp(1j * rng.uniform(-np.pi, np.pi, TRIES)), np.full(TRIES, start)
        places = begins[:, None] + ways[:, None] * steps
        obstacles = np.concatenate([taken, dashes[:-1].ravel()])
        good = _inside(places, side).all(1) & (abs(places[:, :, None] - obstacles) >= APART).all((1, 2))
        if good.any():
            dashes = np.concatenate([dashes, places[int(good.argmax())][None]])
        elif len(dashes):
            dashes = dashes[:-3]
        else:
            return None
        if len(dashes) == count:
            return dashes
    return None


def _rendered(curves: list[Dashes], discs: tuple[complex, complex], side: int) -> NDArray[np.uint8]:
    """Draw at twice the size, with dashes one point thick, and average."""
    fine = np.zeros((2 * side, 2 * side))
    dashes = np.concatenate(curves)
    points = dashes[:, :1] + (dashes[:, 2:] - dashes[:, :1]) * np.linspace(0, 1, 17)
    fine[(2 * points.imag).astype(int), (2 * points.real).astype(int)] = BRIGHT
    rows, columns = (np.mgrid[: 2 * side, : 2 * side] + 0.5) / 2
    for disc in discs:
        fine[abs(columns + 1j * rows - disc) <= RADIUS] = 1.0
    means = fine.reshape(side, 2, side, 2).mean((1, 3)).clip(0, 1)
    levels: NDArray[np.uint8] = np.rint(255 * means).astype(np.uint8)
    return levels


def _published(root: Path, split: str) -> ArraySamples:
    tables = sorted(root.glob("metadata/*.npy"), key=lambda path: natural(path.name))
    rows = [row for table in tables for row in _rows(table)]
    low, high = {"train": (0, 8), "val": (8, 9), "test": (9, 10)}[split]
    part = rows[low * len(rows) // 10 : high * len(rows) // 10]
    pairs = [(file, label) for file, label in part if not (root / file).is_file() or (root / file).stat().st_size]
    if not pairs:
        raise BadInputError(f"{root} has no pictures of {split}", expected="metadata/*.npy that name ten or more")
    pictures = [np.asarray(read_rgb(root / file))[..., 0].copy() for file, _ in pairs]
    for (file, _), picture in zip(pairs, pictures, strict=True):
        if picture.shape != pictures[0].shape:
            raise BadInputError(f"{root / file} has another size than {pairs[0][0]}", expected="pictures of one size")
    samples = _samples(
        pictures, [label for _, label in pairs], [file for file, _ in pairs], f"pathfinder-{plain_name(root)}", split
    )
    if empty := len(part) - len(pairs):
        samples.notes = (f"empty files of {samples.name} were left out: {empty}",)
    return samples


def _rows(table: Path) -> list[tuple[str, int]]:
    """Return file and label of each line `imgs/0 sample_0.png 0 1 ...`."""
    rows = []
    for number, line in enumerate(read_file(table, most=2**30).decode("utf-8", "replace").splitlines(), 1):
        folder, file, _, label = (line.split() + [""] * 4)[:4]
        if label not in ("0", "1") or ".." in Path(folder, file).parts or Path(folder, file).is_absolute():
            raise BadInputError(
                f"{table}, line {number}: {line[:60]!a}", expected="folder, file, number and label, 0 or 1"
            )
        rows.append((f"{folder}/{file}", int(label)))
    return rows
