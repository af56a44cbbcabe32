"""Scene sets: layouts and ids become classes exactly, and whatever does not fit is named in one line."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.io.labelling import read_table
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.scenes import IGNORE, ArrayScenes, distinct_colours

RNG = np.random.default_rng(0)
TABLE = "id,name\n2,road\n7,sky\n9,tree\n255,ignore\n"
IDS = np.array([2, 7, 9, 255], np.uint8)
CLASSES = np.array([0, 1, 2, IGNORE], np.int16)


def save(path: Path, pixels: np.ndarray, mode: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path)
    return path


def picture(height: int = 9, width: int = 12) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


def numbers(height: int = 9, width: int = 12) -> np.ndarray:
    drawn = RNG.integers(0, 4, (height, width))
    drawn.flat[:4] = range(4)
    return drawn


def folder(root: Path, names=("a", "b", "deep/c"), masks: str = "masks") -> tuple[Path, dict[str, np.ndarray]]:
    drawn = {name: numbers() for name in names}
    for name, mask in drawn.items():
        save(root / "images" / f"{name}.png", picture())
        save(root / masks / f"{name}.png", IDS[mask])
    (root / "classes.csv").write_text(TABLE)
    return root, drawn


@pytest.mark.parametrize("masks", ["masks", "annotations"])
def test_a_folder_of_ids(tmp_path, masks):
    root, drawn = folder(tmp_path / "town", masks=masks)
    scenes = load_data(f"masks:{root}")
    assert (scenes.name, scenes.split, scenes.ids) == ("town", "all", ["a", "b", "deep/c"])
    assert scenes.class_names == ("road", "sky", "tree")
    for index, name in enumerate(scenes.ids):
        assert scenes.image(index).dtype == np.uint8
        assert scenes.image(index).shape == (9, 12, 3)
        assert scenes.mask(index).dtype == np.int16
        assert np.array_equal(scenes.mask(index), CLASSES[drawn[name]])
    again = pickle.loads(pickle.dumps(scenes))
    assert again.digest() == scenes.digest()
    assert np.array_equal(again.mask(1), scenes.mask(1))


@pytest.mark.parametrize("mode", ["P", "L", "I;16"])
def test_whatever_the_file_holds_the_classes_are_the_same(tmp_path, mode):
    root, drawn = folder(tmp_path / "t", ["a"])
    path = root / "masks" / "a.png"
    if mode == "P":
        image = Image.fromarray(IDS[drawn["a"]], "P")
        image.putpalette(bytes(range(256)) * 3)
        image.save(path)
    else:
        save(path, IDS[drawn["a"]].astype({"L": np.uint8, "I;16": np.uint16}[mode]))
    assert np.array_equal(load_data(f"masks:{root}").mask(0), CLASSES[drawn["a"]])


def test_large_and_black_and_white_masks(tmp_path, monkeypatch):
    root, _ = folder(tmp_path / "t", ["a"])
    (root / "classes.csv").write_text("id,name\n0,ground\n1,figure\n")
    drawn = numbers() % 2 == 1
    Image.fromarray(drawn).save(root / "masks" / "a.png")
    assert np.array_equal(load_data(f"masks:{root}").mask(0), drawn)
    monkeypatch.setattr("robustbench_kpca.data.io.labelling.STRIP", 30)
    root, drawn = folder(tmp_path / "t", ["a"])
    assert np.array_equal(load_data(f"masks:{root}").mask(0), CLASSES[drawn["a"]])
    ids = IDS[drawn["a"]]
    ids[7, 3] = 8
    save(root / "masks" / "a.png", ids)
    with pytest.raises(BadInputError, match=r"a\.png .*id 8 .*row 7, column 3.* 2, 7, 9, 255"):
        load_data(f"masks:{root}").mask(0)


def test_splits_of_a_folder(tmp_path):
    root, _ = folder(tmp_path / "t", ["train/a", "train/b", "val/c"])
    assert load_data(f"masks:{root}").ids == ["c"]
    assert load_data(f"masks:{root}", "train").ids == ["a", "b"]
    with pytest.raises(BadInputError, match=r"'test'.*train, val"):
        load_data(f"masks:{root}", "test")
    flat, _ = folder(tmp_path / "flat")
    with pytest.raises(BadInputError, match="'train'"):
        load_data(f"masks:{flat}", "train")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BROKEN = {
    "size": (lambda path: save(path, IDS[numbers(12, 9)]), r"a\.png .*9 x 12 .*12 x 9", ""),
    "id": (lambda path: save(path, np.full((9, 12), 3, np.uint8)), r"a\.png .*id 3 .*row 0, column 0", " 2, 7, 9, 255"),
    "colours": (lambda path: save(path, picture()), r"a\.png .*RGB\b", "ids"),
    "empty": (lambda path: save(path, np.full((9, 12), 255, np.uint8)), r"a\.png .*empty", ""),
    "mode": (lambda path: save(path, picture(), "LA"), r"a\.png .*LA\b", ""),
    "file": (cut, r"mask .*a\.png", ""),
}
"""What is wrong, by its key fact; and what was expected."""


@pytest.mark.parametrize("what", BROKEN)
def test_a_bad_mask_is_named(tmp_path, what):
    spoil, fact, expected = BROKEN[what]
    root, _ = folder(tmp_path / "t", ["a", "b"])
    spoil(root / "masks" / "a.png")
    with pytest.raises(BadInputError, match=f"{fact}.*{expected}") as caught:
        load_data(f"masks:{root}").mask(0)
    assert "\n" not in str(caught.value)


def test_bad_images_and_sets_are_named(tmp_path):
    root, _ = folder(tmp_path / "t", ["a", "b"])
    cut(root / "images" / "a.png")
    with pytest.raises(BadInputError, match=r"a\.png"):
        load_data(f"masks:{root}").image(0)
    (root / "images" / "a.png").write_bytes(b"")
    with pytest.raises(BadInputError, match=r"a\.png"):
        load_data(f"masks:{root}").mask(0)
    image, mask = picture(2, 2), np.zeros((2, 2), int)
    for images, masks, options in (
        ([], [], {}),
        ([image], [], {}),
        ([image, image], [mask, mask], {"ids": ["a", "a"]}),
        ([image], [mask], {"palette": np.zeros((2, 3), np.uint8)}),
    ):
        with pytest.raises(BadInputError):
            ArrayScenes(images, masks, "abc", **options)


@pytest.mark.parametrize(("gone", "left"), [("masks", "images"), ("images", "masks")])
def test_files_without_a_partner_are_named(tmp_path, gone, left):
    root, _ = folder(tmp_path / "t", ["a", "b", "c"])
    for name in "ac":
        (root / gone / f"{name}.png").unlink()
    with pytest.raises(BadInputError, match=rf"{left}/a\.png .*{gone}.*\b2\b"):
        load_data(f"masks:{root}")


def test_masks_in_jpeg_and_double_names_are_refused(tmp_path):
    root, _ = folder(tmp_path / "t", ["a"])
    save(root / "masks" / "a.jpg", IDS[numbers()])
    assert load_data(f"masks:{root}").files[0][1].suffix == ".png"
    (root / "masks" / "a.png").unlink()
    with pytest.raises(BadInputError, match="png or bmp"):
        load_data(f"masks:{root}")
    root, _ = folder(tmp_path / "t", ["a"])
    digest = load_data(f"masks:{root}").digest()
    for name in ("images/README.md", "masks/.DS_Store", "masks/Thumbs.db", "images/.hidden.png", "notes.txt"):
        (root / name).write_bytes(b"x")
    assert load_data(f"masks:{root}").digest() == digest
    save(root / "images" / "a.jpg", picture())
    with pytest.raises(BadInputError, match=r"suffix"):
        load_data(f"masks:{root}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,name\n0,ignore\n", "0 classes"),
        ("id,name\n-1,a\n", "ids from 0"),
        ("id,name\nx,a\n", "cannot be used"),
        ("id,name\n0,a\n0,b\n", "id 0 twice"),
        ("id,name\n0,a\n1,a\n", "name a twice"),
        ("id,name\n0,a\n1,\n", "names"),
    ],
)
def test_tables_that_make_no_sense(tmp_path, text, message):
    (tmp_path / "classes.csv").write_text(text)
    with pytest.raises(BadInputError, match=message) as caught:
        read_table(tmp_path / "classes.csv")
    assert "\n" not in str(caught.value)


def test_the_digest_and_colours_of_classes(tmp_path):
    root, _ = folder(tmp_path / "t")
    table = root / "classes.csv"
    first = load_data(f"masks:{root}").digest()
    table.write_text(TABLE.replace("road", "street"))
    assert load_data(f"masks:{root}").digest() == first
    table.write_text(TABLE.replace("9,tree", "9,ignore"))
    assert load_data(f"masks:{root}").digest() != first
    table.write_text(TABLE)
    save(root / "masks" / "a.png", IDS[numbers()])
    assert load_data(f"masks:{root}").digest() != first
    colours = distinct_colours(300)
    assert len(np.unique(colours, axis=0)) == 300
    apart = np.abs(colours[:150, None].astype(int) - colours[:150]).sum(2) + 1_000 * np.eye(150, dtype=int)
    assert apart.min() >= 45, "two classes of ADE20K look the same"
    assert colours[:150].max(1).min() >= 45  # black is what is to be ignored
    assert np.array_equal(distinct_colours(7), colours[:7])


def test_ade20k(tmp_path):
    for part in ("training", "validation"):
        ids = np.array([[0, 1, 2], [149, 150, 0]], np.uint8)
        save(tmp_path / "images" / part / f"{part}.jpg", picture(2, 3))
        save(tmp_path / "annotations" / part / f"{part}.png", ids)
    scenes = load_data(f"ade20k:{tmp_path}")
    assert (scenes.ids, scenes.classes, scenes.class_names[149]) == (["validation"], 150, "id 150")
    assert scenes.mask(0).tolist() == [[-1, 0, 1], [148, 149, -1]]
    assert scenes.expected == 2_000
    assert load_data(f"ade20k:{tmp_path}", "train").ids == ["training"]
    digest = scenes.digest()
    rows = [f"{i}\t.1\t1\t1\t{'wall, partition' if i < 3 else f'thing {i}, x'}" for i in range(1, 151)]
    (tmp_path / "objectInfo150.txt").write_text("\n".join(["Idx\tRatio\tTrain\tVal\tName", *rows[:1], *rows[1:]]))
    named = load_data(f"ade20k:{tmp_path}")
    assert named.class_names[:4] == ("wall, partition", "wall, partition", "thing 3", "thing 4")
    assert named.digest() == digest
    (tmp_path / "objectInfo150.txt").write_text("\n".join(["heading", *rows[:20]]))
    with pytest.raises(BadInputError, match=r"20 classes.* 150"):
        load_data(f"ade20k:{tmp_path}")
    (tmp_path / "objectInfo150.txt").unlink()
    save(tmp_path / "annotations" / "validation" / "validation.png", np.full((2, 3), 151, np.uint8))
    with pytest.raises(BadInputError, match=r"id 151 .*row 0, column 0.* 0-150"):
        load_data(f"ade20k:{tmp_path}").mask(0)


@pytest.mark.parametrize(
    ("places", "suffix"), [(("images/val", "annotations/val"), ".png"), (("val", "valannot"), ".jpg")]
)
def test_camvid(tmp_path, places, suffix):
    save(tmp_path / places[0] / f"x{suffix}", picture(3, 4))
    save(tmp_path / places[1] / "x.png", np.arange(12, dtype=np.uint8).reshape(3, 4))
    scenes = load_data(f"camvid:{tmp_path}")
    assert scenes.name == ("camvid" if suffix == ".png" else "camvid-jpeg")
    assert scenes.mask(0).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, -1]]
    assert (scenes.class_names[3], tuple(scenes.palette[3])) == ("road", (128, 64, 128))
    (tmp_path / "images" / "val").mkdir(parents=True, exist_ok=True)
    with pytest.raises(BadInputError, match=r"images/train.*\bval$"):
        load_data(f"camvid:{tmp_path}", "train")


@pytest.mark.parametrize(
    ("source", "split", "message"),
    [
        ("masks:/no/such", "val", "there is no folder"),
        ("ade20k", "val", "RBK_DATA"),
        ("ade20k:/no/such", "test", "'test'"),
        ("camvid:/no/such", "all", "no split 'all'"),
    ],
)
def test_sources_that_do_not_exist(source, split, message, monkeypatch):
    monkeypatch.delenv("RBK_DATA", raising=False)
    with pytest.raises(BadInputError, match=message):
        load_data(source, split)


def scenes(n: int = 5) -> ArrayScenes:
    shapes = [(4 + i, 6) for i in range(n)]
    masks = [RNG.integers(-1, 3, shape) for shape in shapes]
    return ArrayScenes([picture(*shape) for shape in shapes], masks, "abc", ids=[f"s{i + 8}" for i in range(n)])


def test_parts_order_and_limits_keep_what_belongs_together():
    whole = scenes()
    part = whole.take([3, 1])
    assert part.ids == ["s11", "s9"]
    assert np.array_equal(part.image(0), whole.image(3))
    assert np.array_equal(part.mask(1), whole.mask(1))
    assert part.in_order().ids == ["s9", "s11"]
    assert whole.in_order() is whole
    assert part.digest() == part.in_order().digest() == whole.take([1, 3]).digest() != whole.digest()
    assert part.expected is None
    assert load_data("shapes", limit=4).ids == [f"shapes/val/{i:04d}" for i in (25, 75, 125, 175)]
    assert len(load_data("shapes", limit=1_000)) == 200
    with pytest.raises(BadInputError, match="limit 0"):
        load_data("shapes", limit=0)


def test_sizes_are_known_and_sets_found_in_the_environment(tmp_path, monkeypatch):
    root, _ = folder(tmp_path / "t", ["a", "b"])
    save(root / "images" / "a.png", picture(5, 30))
    cut(root / "images" / "a.png")
    stored = load_data(f"masks:{root}")
    with pytest.raises(BadInputError, match="cannot be read"):
        stored.image(0)
    assert [stored.size(0), stored.size(1), stored.take([1, 0]).size(1)] == [(5, 30), (9, 12), (5, 30)]
    assert [scenes().size(index) for index in (0, 4)] == [(4, 6), (8, 6)]
    monkeypatch.setenv("RBK_DATA", str(tmp_path))
    with pytest.raises(BadInputError, match="camvid"):
        load_data("camvid")
    save(tmp_path / "camvid" / "val" / "x.png", picture(3, 4))
    save(tmp_path / "camvid" / "valannot" / "x.png", np.zeros((3, 4), np.uint8))
    assert load_data("camvid").ids == ["x"]


@pytest.mark.parametrize(
    ("image", "mask", "message"),
    [
        (np.zeros((4, 6), np.uint8), np.zeros((4, 6), int), "expected uint8"),
        (picture(4, 6), np.zeros((6, 4), int), r"shape \(6, 4\)"),
        (picture(4, 6), np.zeros((4, 6)), "float64"),
        (picture(4, 6), np.full((4, 6), 3), "class 3.* 2"),
        (picture(4, 6), np.full((4, 6), -1), "is empty"),
    ],
)
def test_arrays_that_are_no_scene(image, mask, message):
    with pytest.raises(BadInputError, match=message):
        ArrayScenes([image], [mask], "abc")


REAL = {
    # pixels of the classes there, counted by an independent reading of the files
    ("ade20k", "val"): (6, 150),
    ("ade20k", "train"): (6, 150),
    ("camvid", "val"): (40, 11),
    ("camvid", "train"): (120, 11),
}


@pytest.mark.parametrize(("name", "split"), REAL)
def test_real_sets(real_data, name, split):
    real_data(name)
    found = load_data(name, split)
    assert (len(found), found.classes) == REAL[name, split]
    for index in range(0, len(found), 5):
        raw = np.array(Image.open(found.files[index][1])).astype(int)
        expected = raw - 1 if name == "ade20k" else np.where(raw == 11, -1, raw)
        assert np.array_equal(found.mask(index), expected)
        assert found.image(index).shape == (*expected.shape, 3)


MEASURE = """
import resource, sys
from robustbench_kpca.data.load import load_data
scenes = load_data("masks:" + sys.argv[1])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
assert scenes.image(0).shape == (3000, 4000, 3)
image = peak() - before
assert scenes.mask(0).shape == (3000, 4000)
print(image, peak() - before)
"""


@pytest.mark.slow
def test_a_large_scene_takes_little_more_memory_than_its_pixels(tmp_path):
    root, _ = folder(tmp_path / "t", ["a"])
    drawn = np.tile(numbers(100, 100), (30, 40))
    save(root / "images" / "a.png", np.tile(picture(100, 100), (30, 40, 1)))
    save(root / "masks" / "a.png", IDS[drawn])
    done = subprocess.run([sys.executable, "-c", MEASURE, root], capture_output=True, text=True, check=True)
    image, both = map(float, done.stdout.split())
    pixels = 3_000 * 4_000 * 3 / 2**20
    assert image < 3.5 * pixels, done.stdout
    assert both < 4.5 * pixels, done.stdout
