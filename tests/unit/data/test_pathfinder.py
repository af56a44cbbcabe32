"""Pathfinder: labels against an independent search, curves apart from each other, published files, refusals."""

import numpy as np
import pytest
from PIL import Image

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.forms import TOKENS
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.sets.pathfinder import LEVELS, Size, draw

SMALL = Size(side=16, contour=4, distractors=2)


def dashes_reached(dashes, first):
    """Return the dashes that are reached from one over gaps of 1 pixel, by a search that knows of no curves."""
    reached, waiting = {first}, [first]
    while waiting:
        here = dashes[waiting.pop()]
        for number, there in enumerate(dashes):
            gaps = abs(here[[0, -1], None] - there[None, [0, -1]])
            if number not in reached and gaps.min() < 1.01:
                reached.add(number)
                waiting.append(number)
    return reached


@pytest.mark.parametrize("size", [Size(), SMALL])
@pytest.mark.parametrize("index", range(6))
def test_the_discs_are_on_one_curve_where_the_label_says_so(size, index):
    picture, curves = draw(size, "test", index)
    assert [len(curve) for curve in curves[:2]] == [size.contour] * 2
    assert {len(curve) for curve in curves[2:]} <= {max(1, size.contour // 3)}
    dashes = np.concatenate(curves)
    ends = {(number, end): dashes[number][end] for number in range(len(dashes)) for end in (0, -1)}
    lit = [(number, end) for (number, end), place in ends.items() if is_disc(picture, place)]
    begin, last = (0, 0), ((size.contour if index % 2 else 2 * size.contour) - 1, -1)
    assert {begin, last} <= {*lit}
    assert (last[0] in dashes_reached(dashes, 0)) == bool(index % 2)


@pytest.mark.parametrize("size", [Size(), SMALL, Size(side=10, contour=2, distractors=0)])
def test_the_distance_of_the_discs_says_nothing(size):
    for index in range(8):
        _, (first, second, *_) = draw(size, "train", index)
        distances = [abs(curve[-1, -1] - first[0, 0]) for curve in (first, second)]
        assert distances[0] == pytest.approx(distances[1])
        assert abs(second[0, 0] - first[0, 0]) == pytest.approx(7 * size.side / 32)


def is_disc(picture, place):
    rows, columns = np.mgrid[: len(picture), : len(picture)] + 0.5
    inside = abs(columns + 1j * rows - place) < 0.75
    return bool(picture[inside].min() == 255)


@pytest.mark.parametrize("size", [Size(), SMALL])
def test_curves_keep_apart_and_inside(size):
    for index in range(4):
        _, curves = draw(size, "val", index)
        for number, curve in enumerate(curves):
            assert min(curve.real.min(), curve.imag.min()) >= 1
            assert max(curve.real.max(), curve.imag.max()) <= size.side - 1
            others = np.concatenate([other.ravel() for other in curves[:number] + curves[number + 1 :]])
            assert abs(curve.ravel()[:, None] - others).min() >= 2
            assert np.allclose(abs(curve[:, -1] - curve[:, 0]), 2)
            assert np.allclose(abs(curve[1:, 0] - curve[:-1, -1]), 1)


def test_pictures_are_tokens_and_depend_on_part_and_seed_only():
    source = "pathfinder:side=16,contour=4,distractors=2,test=6,val=4,train=4"
    data = load_data(source)
    assert data.images.shape == (6, 1, 1, 256)
    assert data.labels == [0, 1, 0, 1, 0, 1]
    assert data.name == "pathfinder-side16-contour4-distractors2-test6-val4-train4"
    for index in range(6):
        drawn = draw(SMALL, "test", index)[0]
        assert (TOKENS.array(data.image(index)) == drawn.ravel().astype(int) + LEVELS).all()
    first = {
        load_data(source + more, part).image(0).numpy().tobytes()
        for more in ("", ",seed=1")
        for part in ("test", "val")
    }
    assert len(first) == 4


@pytest.fixture
def published(tmp_path):
    """Return a folder as the release has it: text in files called .npy, and one picture without content."""
    (tmp_path / "metadata").mkdir()
    for batch in (2, 10):
        (tmp_path / "imgs" / str(batch)).mkdir(parents=True)
        rows = []
        for number in range(10):
            file = tmp_path / "imgs" / str(batch) / f"sample_{number}.png"
            Image.fromarray(np.full((32, 32), batch * 10 + number, np.uint8)).save(file)
            rows.append(f"imgs/{batch} sample_{number}.png {number} {number % 2} 1.0 14 4 2 0.5 1 1\n")
        (tmp_path / "metadata" / f"{batch}.npy").write_text("".join(rows))
    (tmp_path / "imgs" / "10" / "sample_7.png").write_bytes(b"")
    return tmp_path


def test_published_files_are_read_in_their_order_and_have_one_size(published):
    parts = {part: load_data(f"pathfinder:{published}", part) for part in ("train", "val", "test")}
    assert [len(data) for data in parts.values()] == [16, 1, 2]
    assert parts["val"].notes[0].endswith("were left out: 1")
    assert parts["test"].ids == ["imgs/10/sample_8.png", "imgs/10/sample_9.png"]
    assert parts["test"].labels == [0, 1]
    assert parts["train"].images[:, 0, 0, 5].tolist() == [LEVELS + grey for grey in [*range(20, 30), *range(100, 106)]]
    Image.fromarray(np.zeros((16, 16), np.uint8)).save(published / "imgs/2/sample_3.png")
    with pytest.raises(BadInputError, match="another size"):
        load_data(f"pathfinder:{published}", "train")
    (published / "metadata/2.npy").unlink()
    (published / "metadata/10.npy").write_text("imgs/10 sample_7.png 7 1\n")
    with pytest.raises(BadInputError, match="no pictures of test"):
        load_data(f"pathfinder:{published}", "test")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("imgs/2 sample_0.png 0\n", "line 1"),
        ("imgs/2 sample_0.png 0 2\n", "line 1"),
        ("../2 sample_0.png 0 1\n", "line 1"),
        ("/imgs sample_0.png 0 1\n", "line 1"),
        ("imgs/2 no.png 0 1\n" * 20, "no.png"),
    ],
)
def test_bad_lists_are_refused(published, line, message):
    (published / "metadata" / "2.npy").write_text(line)
    with pytest.raises(BadInputError, match=message) as caught:
        load_data(f"pathfinder:{published}", "train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("pathfinder:side=8", "side = 8"),
        ("pathfinder:sides=16", "NAME=NUMBER"),
        ("pathfinder:side=12,contour=40", "no room"),
        ("pathfinder:seed=1:imgs", "generated pictures only"),
        ("pathfinder:nowhere", "no folder nowhere"),
    ],
)
def test_what_cannot_be_made_is_refused(source, message):
    with pytest.raises(BadInputError, match=message) as caught:
        load_data(source)
    assert "\n" not in str(caught.value)
