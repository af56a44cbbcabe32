"""Image files of every kind become the pixels that Pillow and torchvision define, or one line."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn
from torchvision import datasets, transforms

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.io.reading import image_files, read_rgb
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.request import View
from robustbench_kpca.evaluation.requests import how_shown

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
GREY = RNG.integers(0, 256, (20, 30), dtype=np.uint8)


def save(path: Path, image: Image.Image, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def tree(root: Path, names=("a", "b"), images=2, size=(30, 20)) -> Path:
    for name in names:
        for number in range(images):
            pixels = RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            save(root / name / f"{number}.png", Image.fromarray(pixels))
    return root


def grey(pixels):
    return np.repeat(pixels[..., None], 3, axis=-1)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([], "contains no images"),
        (["a/1.heic", "b/2.heic", "a/notes"], r"no picture in a format that is read, but 2 \.heic, 1 without suffix"),
        (["1.png", "a/2.png"], r"1 images beside its class folders, such as '1\.png'"),
    ],
)
def test_a_folder_without_images_says_what_it_has_instead(names, reason, tmp_path):
    for name in names:
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_bytes(b"")
    (tmp_path / "d").mkdir(exist_ok=True)
    with pytest.raises(BadInputError, match=reason):
        load_data(str(tmp_path / "d"))


@pytest.mark.parametrize("transparency", [None, 0, bytes([0, 128, 255])])
def test_a_palette_is_resolved_whatever_is_transparent_in_it(tmp_path, transparency):
    indices = (GREY % 3).astype(np.uint8)
    palette = np.array([[9, 8, 7], [1, 2, 3], [200, 100, 50]], np.uint8)
    image = Image.fromarray(indices)
    image.putpalette(palette.flatten().tolist())
    options = {} if transparency is None else {"transparency": transparency}
    assert np.array_equal(read_rgb(save(tmp_path / "x.png", image, **options)), palette[indices])


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_dropped_as_torchvision_drops_it(tmp_path, mode):
    image = Image.fromarray(COLOURS if mode == "RGBA" else GREY)
    image.putalpha(0)
    assert image.mode == mode
    assert np.array_equal(read_rgb(save(tmp_path / "x.png", image)), COLOURS if mode == "RGBA" else grey(GREY))


def test_deep_colours_are_scaled_and_orientations_ignored(tmp_path):
    levels = np.array([[0, 128, 129, 255, 256, 257, 32768, 65535]], np.uint16)
    path = save(tmp_path / "x.png", Image.fromarray(levels))
    expected = [round(int(level) / 257) for level in levels[0]]
    assert np.array(read_rgb(path))[0, :, 0].tolist() == expected
    assert expected[-1] == 255
    assert expected[3] == 1
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save(tmp_path / "x.png", Image.fromarray(COLOURS), exif=exif)
    with Image.open(path) as image:
        assert image.getexif()[0x0112] == 6
    assert np.array_equal(read_rgb(path), COLOURS)
    image = Image.fromarray(GREY > 127)
    assert image.mode == "1"
    assert np.array_equal(read_rgb(save(tmp_path / "x.png", image)), grey(255 * (GREY > 127).astype(np.uint8)))
    path = save(tmp_path / "x.jpg", Image.new("CMYK", (8, 8), (0, 255, 255, 0)), quality=100)
    red, green, blue = np.array(read_rgb(path)).reshape(-1, 3).mean(0)
    assert red > 250
    assert max(green, blue) < 5


@pytest.mark.parametrize(("crop", "interpolation"), [(0.875, "bicubic"), (0.9, "bicubic"), (1.0, "bilinear")])
def test_views_are_torchvisions(crop, interpolation):
    resize = transforms.Resize(int(32 / crop), transforms.InterpolationMode(interpolation))
    reference, view = transforms.Compose([resize, transforms.CenterCrop(32)]), View(32, crop, interpolation)
    for size in ((1, 1), (1, 7), (40, 3), (225, 224), (500, 333), (333, 500)):
        image = Image.fromarray(RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
        assert np.array_equal(view.apply(image), reference(image))


@pytest.mark.parametrize("settings", [{"size": 0}, {"crop": 0}, {"crop": 1.1}, {"interpolation": "cubic"}])
def test_views_that_make_no_sense(settings):
    with pytest.raises(BadInputError):
        View(**{"size": 32} | settings)


def test_pictures_that_cannot_be_read_are_refused(tmp_path):
    save(tmp_path / "t" / "a" / "x.png", Image.new("RGB", (1, 5_000)))
    with pytest.raises(BadInputError, match=r"x\.png.*1 x 5000"):
        load_data(str(tmp_path / "t"), view=View(224, 0.875)).image(0)
    for dtype in (np.float32, np.int32):
        with pytest.raises(BadInputError, match="grey of 32 bits"):
            read_rgb(save(tmp_path / "x.tif", Image.fromarray(GREY.astype(dtype))))
    # OpenJPEG shows one that ends with the marker of its first tile as grey.
    path = save(tmp_path / "x.j2k", Image.fromarray(COLOURS))
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"\xff\x90") + 2])
    Image.open(path).load()
    with pytest.raises(BadInputError, match="truncated"):
        read_rgb(path)


LOSSLESS = {
    "gif": {}, "tif": {"compression": "tiff_lzw"}, "tiff": {}, "ppm": {}, "pnm": {}, "jp2": {"irreversible": False},
    "j2k": {"irreversible": False}, "webp": {"lossless": True}, "bmp": {},
}  # fmt: skip


@pytest.mark.parametrize("suffix", [*LOSSLESS, "jfif", "jpe", "avif", "pgm"])
def test_every_format_has_the_pixels_of_torchvision(tmp_path, suffix):
    pixels = COLOURS // 64 * 64 % 128  # eight colours, as a palette holds them
    image = Image.fromarray(GREY if suffix == "pgm" else pixels)
    path = save(tmp_path / "t" / "a" / f"0.{suffix}", image, **LOSSLESS.get(suffix, {}))
    found = load_data(str(tmp_path / "t")).image(0)
    assert np.array_equal(found, datasets.folder.pil_loader(str(path)))
    assert suffix not in LOSSLESS or np.array_equal(found, pixels)


@pytest.mark.parametrize("form", ["GIF", "TIFF", "PNG"])
def test_of_several_frames_none_is_chosen(tmp_path, form):
    frames = [Image.new("RGB", (8, 8), (90 * number, 0, 0)) for number in range(3)]
    path = save(tmp_path / "x", frames[0], format=form, save_all=True, append_images=frames[1:])
    with pytest.raises(BadInputError, match="several frames or pages"):
        read_rgb(path)


def test_frames_and_capitals_are_taken(tmp_path):
    frames = [Image.new("RGB", (8, 8), (90 * number, 0, 0)) for number in range(3)]
    path = save(tmp_path / "x.jpg", frames[1], format="MPO", save_all=True, append_images=frames[2:])
    assert np.asarray(read_rgb(path))[0, 0, 0] == pytest.approx(90, abs=2)
    root = tree(tmp_path / "t", ("a",), 1)
    for name in ("x.JPEG", "y.Jpg", "deep/z.webp", "v.bmp"):
        save(root / "a" / name, Image.fromarray(COLOURS))
    assert load_data(str(root)).ids == ["a/0.png", "a/deep/z.webp", "a/v.bmp", "a/x.JPEG", "a/y.Jpg"]


def spoiled(path: Path, kind: str) -> None:
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(file, "JPEG")
    whole = file.getvalue()
    content = {"empty": b"", "half": whole[: len(whole) // 2], "text": b"not an image", "header": whole[:20]}
    path.write_bytes(content[kind])


@pytest.mark.parametrize("kind", ["empty", "half", "text", "header"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, kind):
    root = tree(tmp_path / "t")
    spoiled(root / "a" / "bad.jpg", kind)
    samples = load_data(str(root))
    with pytest.raises(BadInputError, match=r"bad\.jpg") as caught:
        samples.image(samples.ids.index("a/bad.jpg"))
    assert "\n" not in str(caught.value)


def test_foreign_files_are_no_images_and_the_digest_knows_contents(tmp_path):
    root = tree(tmp_path / "t", ("a",), 2)
    for name in ("README.md", ".DS_Store", "Thumbs.db", "._0.png", "x.txt"):
        (root / "a" / name).write_bytes(b"x")
        (root / name).write_bytes(b"x")
    tree(root / ".hidden", ("c",))
    tree(root / "a" / ".thumbnails", ("c",))
    assert load_data(str(root)).ids == ["a/0.png", "a/1.png"]
    assert image_files(root) == ["a/0.png", "a/1.png"]
    root = tree(tmp_path / "t")
    first = load_data(str(root)).digest()
    assert load_data(str(root)).digest() == first
    assert load_data(str(root), view=View(32)).digest() != first
    (root / "a").rename(root / "c")
    assert load_data(str(root)).digest() != first


def test_what_of_a_folder_is_left_out_is_said(tmp_path):
    root = tree(tmp_path / "t", ("a", "b"), 1)
    (root / "c").mkdir()
    for name in ("a/1.heic", "b/1.HEIC", "a/1.mov", "a/1.txt", "a/1.\udcff"):
        (root / name).write_bytes(b"x")
    data = load_data(str(root))
    left_out = r"4 files of t were left out: 2 .heic, 1 .mov, 1 .\udcff"
    assert data.notes == (left_out, "1 empty class folders of t were left out: c")
    assert data.take([0]).notes == data.notes
    assert how_shown(data, nn.Identity()).endswith("; ".join(data.notes)), "every command shows it"
    (root / "labels.csv").write_text("file,label\n./a/0.png,cat\n")
    data = load_data(str(root))
    assert data.ids == ["a/0.png"]
    assert data.notes == (left_out, "1 pictures of t were left out: b/0.png")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("Train", "Val"), "contains the splits"), (("train", "valid"), "contains the splits"),
        (("1", "2", "10"), "order"), (("a", "B"), "order"), (("class2", "class11"), "order"),
    ],
)  # fmt: skip
def test_parts_and_classes_without_a_certain_order_are_refused(tmp_path, names, message):
    with pytest.raises(BadInputError, match=message):
        load_data(str(tree(tmp_path / "t", names, 1)))


@pytest.mark.parametrize(
    "names", [("0", "1", "2"), ("01", "02", "10"), ("cat", "dog"), ("1", "²", "³"), ("n0144076²",)]
)
def test_classes_with_a_certain_order(tmp_path, names):
    samples = load_data(str(tree(tmp_path / "t", names, 1)))
    assert [(name.partition("/")[0], label) for name, label in zip(samples.ids, samples.labels, strict=True)] == [
        (name, number) for number, name in enumerate(names)
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_closed_folder_is_an_error_not_an_empty_class(tmp_path):
    root = tree(tmp_path / "t")
    (root / "a").chmod(0)
    try:
        with pytest.raises(BadInputError, match="cannot be read"):
            load_data(str(root))
    finally:
        (root / "a").chmod(0o755)
