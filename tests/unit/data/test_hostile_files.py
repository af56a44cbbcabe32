"""Files that misbehave: one line and exit code 2, without waiting, decoding or unpacking more than was asked for."""

import io
import json
import lzma
import os
import socket
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import read_file
from robustbench_kpca._core.strict import load_toml, parse_assignments
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.io import reading
from robustbench_kpca.data.io.reading import image_files, is_whole, read_rgb
from robustbench_kpca.data.load import load_data
from robustbench_kpca.records.table import Table
from robustbench_kpca.records.text import most_bytes, unpack

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(1, 256, (20, 30, 3), dtype=np.uint8)
DEEP = 100_000


def encoded(form, pixels=PIXELS, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, **options)
    return file.getvalue()


def folder(root, name="x.png", data=None):
    """A folder of two classes; the first has an image of the given content."""
    for part in "01":
        (root / part).mkdir(parents=True)
        (root / part / "0.png").write_bytes(encoded("PNG"))
    if data is not None:
        (root / "0" / name).write_bytes(data)
    return root


def eval_of(source):
    return ["eval", "-m", "vit_digits", "--data", str(source), "-p", "clean", "--audit", "none", "--quiet"]


def refused(capsys, words):
    assert main([str(word) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


ODD = {
    "a FIFO": make_fifo,
    "a socket": make_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "symbolic links": lambda path: path.symlink_to(path),
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_ordinary_file_is_refused_without_waiting(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    ODD[kind]((tmp_path / "x.png").relative_to(tmp_path))
    for read in (read_file, read_rgb, load_toml, reading.image_size):
        with pytest.raises(BadInputError, match=f"x.png cannot be read .*{kind}"):
            read(tmp_path / "x.png")


def test_commands_name_it_in_one_line(tmp_path, capsys):
    make_fifo(folder(tmp_path / "d") / "0" / "1.png")
    line = refused(capsys, eval_of(tmp_path / "d"))
    assert "1.png" in line
    assert "a FIFO" in line


def test_links_of_folders(tmp_path):
    for name in ("up", "again"):  # two such links: 2^40 paths
        (folder(tmp_path / name) / "0" / name).symlink_to(tmp_path / name)
        (tmp_path / name / "0" / "other").symlink_to(tmp_path / name)
        with pytest.raises(BadInputError, match="is a link to a folder that it lies in"):
            image_files(tmp_path / name)
    (folder(tmp_path / "d") / "c").symlink_to(tmp_path / "d" / "0")
    assert image_files(tmp_path / "d") == ["0/0.png", "1/0.png", "c/0.png"]


@pytest.mark.parametrize("form", ["EPS", "ICO", "TGA", "PCX"])
def test_other_decoders_are_never_asked(form, tmp_path):
    (tmp_path / "x.png").write_bytes(encoded(form))
    with pytest.raises(BadInputError, match=r"x\.png cannot be read \(none of BMP, JPEG, "):
        read_rgb(tmp_path / "x.png")


@pytest.mark.parametrize("form", ["PNG", "BMP", "WEBP"])
def test_the_content_says_the_format_not_the_name(form, tmp_path):
    options = {"lossless": True} if form == "WEBP" else {}
    (tmp_path / "x.jpeg").write_bytes(encoded(form, **options))
    assert np.array_equal(read_rgb(tmp_path / "x.jpeg"), PIXELS)


def test_one_limit_of_pixels_for_every_command_can_be_raised(tmp_path, monkeypatch, capsys):
    source = folder(tmp_path / "d", data=encoded("PNG", np.zeros((60, 60, 3), np.uint8)))
    monkeypatch.setenv("RBK_MAX_PIXELS", "3000")
    assert "x.png has more than 3,000 pixels" in refused(capsys, eval_of(source))
    monkeypatch.delenv("RBK_MAX_PIXELS")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    monkeypatch.setattr(reading, "_OURS", 100)
    (tmp_path / "x.png").write_bytes(encoded("PNG"))
    with pytest.raises(BadInputError, match="more than 100 pixels"):
        read_rgb(tmp_path / "x.png")
    monkeypatch.setenv("RBK_MAX_PIXELS", "600")
    assert np.array_equal(read_rgb(tmp_path / "x.png"), PIXELS)


@pytest.mark.parametrize("side", [9_460, 14_000, 60_000])  # Pillow warns of the first two and refuses the third
def test_the_limit_is_that_of_pillow_unless_set(side, tmp_path):
    (tmp_path / "x.png").write_bytes(closed_after(0, side, side))
    with pytest.raises(BadInputError, match="more than 89,478,485 pixels"):
        read_rgb(tmp_path / "x.png")


@pytest.mark.parametrize("text", ["0", "many", "٣", "9" * 30])
def test_a_limit_that_is_no_number(text, tmp_path, monkeypatch):
    monkeypatch.setenv("RBK_MAX_PIXELS", text)
    with pytest.raises(BadInputError, match="RBK_MAX_PIXELS = "):
        read_rgb(tmp_path / "x.png")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "WEBP", "GIF", "PPM", "TIFF", "JPEG2000", "AVIF"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of metadata
def test_a_cut_image_is_refused_or_has_all_its_pixels(form, tmp_path):
    data, path = encoded(form), tmp_path / "x.png"
    with Image.open(io.BytesIO(data)) as image:
        whole = np.asarray(image.convert("RGB"))
    for length in [*range(0, len(data), 37), *range(len(data) - 24, len(data))]:
        path.write_bytes(data[:length])
        try:
            found = read_rgb(path)
        except BadInputError:
            continue
        assert np.array_equal(found, whole), length


def closed_after(rows, height=20, width=30, depth=8, colour=2, interlaced=0):
    """A PNG whose stream is closed properly after some of its bytes, `rows` times those of a row."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    row = 1 + (width * depth * {0: 1, 2: 3}[colour] + 7) // 8
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    stream = zlib.compress(bytes([0, *[7] * (row - 1)]) * rows)
    pieces = [stream[:20], stream[20:]]
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + b"".join(chunk(b"IDAT", p) for p in pieces)
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("rows", [0, 1, 19])
def test_missing_rows_are_not_black_ones(rows, tmp_path):
    """Pillow returns such a picture without an error; its last rows are zeros."""
    (tmp_path / "x.png").write_bytes(closed_after(rows))
    if rows:
        with Image.open(tmp_path / "x.png") as image:
            assert not np.asarray(image)[-1].any()
    with pytest.raises(BadInputError, match=r"rows are missing|truncated"):
        read_rgb(tmp_path / "x.png")


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1", "RGBA", "LA", "I;16"])
@pytest.mark.parametrize("size", [(1, 1), (30, 20)])
def test_black_pictures_are_whole(mode, size, tmp_path):
    image = Image.new(mode, size)
    image.save(tmp_path / "x.png")
    data = (tmp_path / "x.png").read_bytes()
    assert is_whole(data)
    assert not is_whole(data.replace(b"IDAT", b"tEXt"))
    assert not np.asarray(read_rgb(tmp_path / "x.png")).any()


def adam7(height, width, channels=3):
    """Bytes of the uncompressed stream, from the pattern in the specification: the pass of each pixel of 8 x 8."""
    pattern = [
        "16462646", "77777777", "56565656", "77777777", "36463646", "77777777", "56565656", "77777777",
    ]  # fmt: skip
    passes = np.array([[int(pattern[y % 8][x % 8]) for x in range(width)] for y in range(height)])
    return sum(int((passes == k).any(1).sum()) + channels * int((passes == k).sum()) for k in range(1, 8))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (8, 8), (20, 30), (5, 1), (9, 17)])
def test_interlaced_pictures_are_counted_pass_by_pass(height, width):
    def held(count):
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
        parts = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(count))), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(b)) + n + b + b"crc!" for n, b in parts)

    assert is_whole(held(adam7(height, width)))
    assert not is_whole(held(adam7(height, width) - 1))


TABLE = Table("classification", "clean", {"sample": "str", "label": "int", "prediction": "int", "confidence": "float"})


def test_a_table_is_unpacked_no_further_than_its_rows_need():
    bomb = lzma.compress(b"0,0,0,0\n" * 2**23)  # 64 MiB
    most = most_bytes(TABLE, 10, "t")
    tracemalloc.start()
    with pytest.raises(BadInputError, match=r"t unpacks to more than 77,\d+ bytes"):
        unpack(bomb, most, "t")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22 + 2**23  # xz looks back as far


def test_an_xz_table_that_is_cut_changed_lengthened_or_hungry_is_no_table(monkeypatch):
    whole = lzma.compress(b"sample,label\n0,1\n")
    changed = whole.replace(b"sample", b"simple")
    assert changed != whole
    for data in (whole[:-1], whole[:20], changed, whole + b"more", whole + whole):
        with pytest.raises(BadInputError, match="t is no whole outcomes table"):
            unpack(data, 2**20, "t")
    assert unpack(whole, 2**20, "t").startswith(b"sample")
    monkeypatch.setattr("robustbench_kpca.records.text._XZ_MEMORY", 2**22)
    with pytest.raises(BadInputError, match=r"t is no whole outcomes table \(LZMAError: .*\)"):
        unpack(whole, 2**20, "t")


@pytest.fixture
def record(tmp_path, few_resamples):
    from robustbench_kpca import evaluate, load_model

    data = load_data("digits", limit=4)
    evaluate(load_model("vit_digits"), data, protocol="clean", name="m", out=tmp_path / "o", audit=False)
    (path,) = (tmp_path / "o").glob("*.record.json")
    return path, next((tmp_path / "o").glob("*.outcomes.*"))


def test_records_that_misbehave(record, tmp_path, capsys):
    path, table = record
    text, honest = path.read_text(), table.read_bytes()

    def line():
        return refused(capsys, ["records", "show", path])

    table.write_bytes(lzma.compress(b"0,0,0,0\n" * 2**23))
    assert "unpacks to more than" in line()
    table.write_bytes(lzma.compress(b"not a table, and never parsed"))
    assert "SHA-256" in line()
    table.unlink()
    make_fifo(table)
    assert "it is a FIFO" in line()
    table.unlink()
    table.write_bytes(honest)
    for name in ("../x.gz", "x\0y.gz", "x" * 300, "\u202ex.gz"):
        content = json.loads(text)
        content["outcomes_file"]["file"] = name
        path.write_text(json.dumps(content))
        assert "expected a plain file name" in line()
    path.write_text("[" * DEEP)
    assert "is no record" in line()
    path.write_text('{"schema_version": 4, "spec": ' + "[" * DEEP + "]" * DEEP + "}")
    assert "is no record" in line()
    path.unlink()
    path.symlink_to(path)
    assert path.name in line()
    path.unlink()
    path.write_text(text)
    assert main(["records", "show", str(path)]) == 0


def test_deep_nesting_is_refused_wherever_text_is_parsed(tmp_path, capsys):
    (tmp_path / "deep.toml").write_text("x = " + "[" * DEEP)
    with pytest.raises(BadInputError, match="nested too deeply"):
        load_toml(tmp_path / "deep.toml")
    with pytest.raises(BadInputError, match="nested too deeply"):
        parse_assignments(["eps=" + "[" * DEEP])


@pytest.mark.parametrize("path", ["x" * 5000, "y/" * 3000])
def test_paths_that_are_too_long(path, capsys):
    for words in (eval_of(path), ["records", "show", path], ["train", "vit_digits", "--data", path]):
        assert len(refused(capsys, words)) < 6500


ROWS = {
    "no label": ("file,label\na/0.png\n", "line 2 of .* is not complete"),
    "no file": ("label,file\n3\n", "line 2 of .* is not complete"),
    "an empty cell": ("file,label\n,3\n", "line 2 of .* is not complete"),
    "NUL": ("file,label\na\0b.png,3\n", r"line 2 of .* is 'a\\x00b.png'"),
    "an escape": ("file,label\n\x1b[2Jx.png,3\n", r"line 2 of .* is '\\x1b"),
    "a name too long for a file": (f"file,label\n{'x' * 600},3\n", "which does not exist"),
    "a number too long": (f"file,label\n0/0.png,{'1' * 5000}\n", "at most 1024 bytes"),
    "a cell too long": (f"file,label\n0/0.png,{'1' * 200_000}\n", "it is no table"),
    "nothing": ("", "columns"),
}


@pytest.mark.parametrize("case", ROWS)
def test_tables_of_labels_that_misbehave(case, tmp_path):
    text, reason = ROWS[case]
    (folder(tmp_path / "d") / "labels.csv").write_text(text)
    with pytest.raises(BadInputError, match=reason) as caught:
        load_data(str(tmp_path / "d"))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["digits", "Digits/test", "imagenet", "digits-against-photos"])
def test_a_folder_cannot_take_the_name_of_a_set(name, tmp_path, capsys):
    folder(tmp_path / "own" / name)
    assert f"would be recorded as '{name.partition('/')[0]}'" in refused(capsys, eval_of(tmp_path / "own" / name))
