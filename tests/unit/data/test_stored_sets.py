"""Sets on disk are taken for what they are: every image gets its own class, and anything else is refused by name."""

import gzip
import io
import pickle
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image
from timm.data import ImageNetInfo

from robustbench_kpca._core.errors import BadInputError, UnknownNameError
from robustbench_kpca.data.cells import CellSamples
from robustbench_kpca.data.imagenet_classes import (
    imagenet_classes,
    imagenet_indices,
    imagenet_wnids,
    robustbench_validation,
)
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.pair import Pair
from robustbench_kpca.data.request import View
from robustbench_kpca.data.shifted_imagenet import SHIFTED
from robustbench_kpca.data.subset import published_subset
from robustbench_kpca.evaluation.requests import DataRequest
from robustbench_kpca.protocols.loading import load_scenario

VIEW = View(8)
RNG = np.random.default_rng(0)
WNIDS = ImageNetInfo().label_names()  # another reading of the same list
CLASSES = {
    "imagenet-a": 200,
    "imagenet-r": 200,
    "imagenet-o": 200,
    "imagenet-v2": 1000,
    "imagenet-sketch": 1000,
}


def jpeg(size=(8, 8)) -> bytes:
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(file, "JPEG")
    return file.getvalue()


PICTURE = jpeg()


def put(root: Path, files, data: bytes = PICTURE) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(data)
    return root


def folders_of(name: str) -> list[str]:
    if name == "imagenet-v2":
        return [str(number) for number in range(1000)]
    return [WNIDS[index] for index in imagenet_classes(name if CLASSES[name] < 1000 else "all")]


@pytest.fixture(scope="module")
def collections(tmp_path_factory):
    top = tmp_path_factory.mktemp("collections")
    for name in CLASSES:
        put(top / name, [f"{folder}/{name}_0.jpg" for folder in folders_of(name)])
    return top


@pytest.fixture(scope="module")
def validation(tmp_path_factory):
    files = [f"{wnid}/{stem}.JPEG" for stem, wnid in robustbench_validation().items()]
    return put(tmp_path_factory.mktemp("imagenet") / "val", files)


def test_the_class_lists():
    assert list(imagenet_wnids()) == WNIDS == sorted(WNIDS)
    assert imagenet_classes("all") == list(range(1000))
    sets = {name: imagenet_classes(name) for name in ("imagenet-a", "imagenet-r", "imagenet-o")}
    for indices in sets.values():
        assert len(set(indices)) == 200
        assert indices == sorted(indices)
    a, r, o = (set(indices) for indices in sets.values())
    assert (len(a & r), len(a & o), len(o & r)) == (86, 59, 36)  # as the published lists overlap
    with pytest.raises(UnknownNameError, match="did you mean 'imagenet-a'"):
        imagenet_classes("imagenet_a")
    assert imagenet_indices(["n01440764", "n15075141"]) == {"n01440764": 0, "n15075141": 999}
    assert imagenet_indices(["n01440764", "x"]) is imagenet_indices([]) is None


@pytest.mark.parametrize("name", CLASSES)
def test_every_image_gets_the_class_of_its_folder(collections, name):
    samples = load_data(f"{name}:{collections / name}", view=VIEW)
    assert (samples.name, samples.split, len(samples)) == (name, "test", CLASSES[name])
    published = {"imagenet-a": 7500, "imagenet-r": 30000, "imagenet-o": 2000, "imagenet-v2": 10000}
    assert samples.expected == published.get(name, 50889)
    if name != "imagenet-o":
        assert samples.classes == 1000
        named = [file.partition("/")[0] for file in samples.ids]
        assert samples.labels == [int(f) if name == "imagenet-v2" else WNIDS.index(f) for f in named]
    assert samples.image(0).shape == (8, 8, 3)
    assert samples.take([0]).expected is None


@pytest.mark.parametrize("name", CLASSES)
def test_a_set_is_not_taken_for_another(collections, name):
    for claimed in {*CLASSES, "imagenet", "imagenet-c", "imagenet-c-bar", "imagenet-3dcc", "cifar10-c"} - {name}:
        with pytest.raises(BadInputError, match=f"not {claimed}") as caught:
            load_data(f"{claimed}:{collections / name}", view=VIEW)
        assert len(str(caught.value)) < 500


def test_classes_of_folders(collections, tmp_path):
    root = shutil.copytree(collections / "imagenet-a", tmp_path / "a")
    shutil.rmtree(root / "n01498041")
    (root / "n01531178" / "imagenet-a_0.jpg").unlink()
    (root / "n01440764").mkdir()
    with pytest.raises(BadInputError, match=r"2 classes .*n01498041, n01531178.* 1 folders .*n01440764"):
        load_data(f"imagenet-a:{root}", view=VIEW)
    samples = load_data(f"imagenet-o:{collections / 'imagenet-o'}", limit=50, view=VIEW)
    assert (len(samples), samples.classes) == (50, 0)
    assert len({file.partition("/")[0] for file in samples.ids}) == 50, "a limit is spread over the folders"
    for ask in (samples.tensors, lambda: samples.take([0]).labels):
        with pytest.raises(BadInputError, match="imagenet-o'"):
            ask()


def test_names_alone_are_looked_up(collections, monkeypatch):
    monkeypatch.setenv("RBK_DATA", str(collections))
    assert len(load_data("imagenet-a", view=VIEW)) == 200
    with pytest.raises(BadInputError, match="imagenet-c"):
        load_data("imagenet-c")
    monkeypatch.delenv("RBK_DATA")
    with pytest.raises(BadInputError, match=r"imagenet-a:FOLDER.*RBK_DATA"):
        load_data("imagenet-a")
    with pytest.raises(UnknownNameError, match="did you mean 'imagenet-v2'"):
        load_data("imagenetv2")
    with pytest.raises(UnknownNameError):
        load_data("imagenet-a:")
    with pytest.raises(BadInputError, match="'train'"):
        load_data(f"imagenet-a:{collections / 'imagenet-a'}", "train")


LARGE = ("imagenet-r", "imagenet-v2", "imagenet-sketch")


@pytest.mark.parametrize("name", ["imagenet-a", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_the_real_file_names(real_data, name, tmp_path):
    listed = real_data(f"imagenet_meta/{name.replace('-v2', 'v2')}_file_names.txt.gz")
    files = gzip.decompress(listed.read_bytes()).decode().split("\n")
    samples = load_data(f"{name}:{put(tmp_path / name, filter(None, files))}", view=VIEW)
    assert len(samples) == samples.expected
    assert set(samples.ids) == set(filter(None, files))


def test_validation_images_in_folders_keep_their_crop(validation):
    samples = load_data(f"imagenet:{validation.parent}", view=VIEW)
    assert (samples.name, samples.split, samples.classes, len(samples), samples.expected) == (
        "imagenet", "val", 1000, 5000, 50_000,
    )  # fmt: skip
    assert samples.ids == load_data(f"imagenet:{validation}", "val", view=VIEW).ids
    assert samples.labels == [WNIDS.index(name.partition("/")[0]) for name in samples.ids]
    asked = [({}, "224 of 256"), ({"size": 16}, "16 of 18"), ({"size": 16, "crop": 0.5}, "16 of 32")]
    for how, resized in asked:
        data = DataRequest(f"imagenet:{validation}", limit=2, **how).load(None)
        assert data.resized == f"bicubic {resized}, as torchvision"
    stated = DataRequest(f"imagenet:{validation}", limit=2).load(View(8, 0.5))
    assert stated.resized == "bicubic 8 of 16, as torchvision"


def test_a_hundred_classes_are_numbered_in_sorted_order(validation, tmp_path):
    """From the whole validation set, or from a folder with these classes only."""
    wanted = [WNIDS[index] for index in imagenet_classes("imagenet-100")]
    assert len(set(wanted)) == 100
    assert {"n01558993", "n02869837", "n13040303", "n04435653"} < set(wanted)  # in the list that its authors published
    files = [f"{wnid}/{stem}.JPEG" for stem, wnid in robustbench_validation().items() if wnid in wanted]
    own = put(tmp_path / "val", files)
    for folder in (validation, own):
        samples = load_data(f"imagenet-100:{folder}", view=VIEW)
        assert (samples.name, samples.split, samples.classes, samples.expected) == ("imagenet-100", "val", 100, 5000)
        assert sorted(samples.ids) == sorted(files)
        assert samples.labels == [sorted(wanted).index(name.partition("/")[0]) for name in samples.ids]
    with pytest.raises(BadInputError, match="'train'"):
        load_data(f"imagenet-100:{own}", "train", view=VIEW)


def test_validation_images_of_two_hundred_classes(validation):
    split = "imagenet-r"
    samples = load_data(f"imagenet:{validation}", split, view=VIEW)
    assert set(samples.labels) <= set(imagenet_classes(split))
    wanted = [wnid for wnid in robustbench_validation().values() if WNIDS.index(wnid) in imagenet_classes(split)]
    assert (len(samples), samples.expected, samples.split) == (len(wanted), 10_000, split)


@pytest.mark.parametrize("form", ["{stem}.JPEG {label}", "{stem},{wnid} 1 2 3 4", "val/{stem}.JPEG,{label}"])
def test_a_flat_folder_with_its_labels(validation, tmp_path, form):
    known = dict(list(robustbench_validation().items())[:40])
    root = put(tmp_path / "val", [f"{stem}.JPEG" for stem in known])
    rows = [form.format(stem=stem, label=WNIDS.index(wnid), wnid=wnid) for stem, wnid in known.items()]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows, ""]))
    samples = load_data(f"imagenet:{tmp_path}", view=VIEW)
    assert dict(zip(samples.ids, samples.labels, strict=True)) == {
        f"{wnid}/{stem}.JPEG": WNIDS.index(wnid) for stem, wnid in known.items()
    }
    nested = load_data(f"imagenet:{validation}", view=VIEW)
    assert set(samples.ids) <= set(nested.ids), "an image has one id whatever the layout"
    (root / "ILSVRC2012_val_00049999.JPEG").write_bytes(PICTURE)
    with pytest.raises(BadInputError, match=r"'ILSVRC2012_val_00049999\.JPEG'"):
        load_data(f"imagenet:{tmp_path}", view=VIEW)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("{stem}.JPEG {wrong}", "its class is"),
        ("{stem}.JPEG 1000", "label 1000"),
        ("{stem}.JPEG n00000001", "label n00000001"),
        ("first\nsecond", "line 2"),
        (None, "no file of their labels"),
    ],
)
def test_flat_folders_with_wrong_labels(tmp_path, rows, message):
    stem, wnid = next(iter(robustbench_validation().items()))
    put(tmp_path / "val", [f"{stem}.JPEG"])
    if rows:
        (tmp_path / "val.txt").write_text(rows.format(stem=stem, wrong=WNIDS.index(wnid) + 1))
    with pytest.raises(BadInputError, match=message):
        load_data(f"imagenet:{tmp_path}", view=VIEW)


def test_training_images_and_misplaced_images_are_refused(tmp_path):
    with pytest.raises(BadInputError, match=r"n01440764_10026\.JPEG'"):
        load_data(f"imagenet:{put(tmp_path / 'a', ['n01440764/n01440764_10026.JPEG'])}", view=VIEW)
    stem, wnid = next(iter(robustbench_validation().items()))
    other = next(name for name in WNIDS if name != wnid)
    with pytest.raises(BadInputError, match=f"{other}.*{wnid}"):
        load_data(f"imagenet:{put(tmp_path / 'b', [f'{other}/{stem}.JPEG'])}", view=VIEW)


def test_training_images_are_a_split_of_their_own(validation, tmp_path):
    files = [f"{wnid}/{wnid}_{number}.JPEG" for wnid in sorted(WNIDS)[:2] for number in (10, 18)]
    put(tmp_path / "train", files)
    samples = load_data(f"imagenet:{tmp_path}", "train", view=VIEW)
    assert (samples.ids, samples.labels, samples.split) == (files, [0, 0, 1, 1], "train")
    assert (samples.classes, samples.expected) == (1000, 1_281_167)
    assert load_data(f"imagenet:{tmp_path / 'train'}", "train", view=VIEW).ids == files
    with pytest.raises(BadInputError, match=r"ILSVRC2012_val_\d+\.JPEG' is not a training image"):
        load_data(f"imagenet:{validation}", "train", view=VIEW)
    put(tmp_path / "train", [f"{WNIDS[0]}/{WNIDS[1]}_7.JPEG"])
    with pytest.raises(BadInputError, match=f"{WNIDS[0]}/{WNIDS[1]}_7"):
        load_data(f"imagenet:{tmp_path}", "train", view=VIEW)


def test_the_published_subset(validation, tmp_path):
    samples = load_data(f"imagenet:{validation}", view=VIEW)
    assert sorted(published_subset(samples.in_order()).ids) == sorted(samples.ids)
    with pytest.raises(BadInputError, match="2 of the 5,000"):
        published_subset(samples.take(range(4998)))
    with pytest.raises(BadInputError, match=r"\(imagenet-a\)"):
        published_subset(load_data(f"imagenet:{validation}", "imagenet-a", view=VIEW))
    with pytest.raises(BadInputError, match="'digits'"):
        published_subset(load_data("digits"))


def grid(root: Path, corruptions=("fog", "gaussian_noise"), severities=(1, 3), images=6, group="") -> Path:
    known = list(robustbench_validation().items())[:images]
    for corruption in corruptions:
        for severity in severities:
            for stem, wnid in known:
                place = root / group.format(corruption) / corruption / str(severity)
                put(place, [f"{wnid}/{stem}.JPEG"], jpeg())
    return root


@pytest.mark.parametrize("group", ["", "noise"])
def test_cells_as_published(tmp_path, group):
    samples = load_data(f"imagenet-c:{grid(tmp_path / 'c', group=group)}", view=VIEW)
    assert isinstance(samples, CellSamples)
    assert (samples.corruptions, samples.severities) == (("gaussian_noise", "fog"), (1, 3))
    assert (samples.name, samples.classes, samples.expected, len(samples)) == ("imagenet-c", 1000, 50_000, 6)
    for corruption, severity in samples.places:
        cell = samples.cell(corruption, severity)
        assert (cell.ids, cell.labels) == (samples.ids, samples.labels)
        path = tmp_path / "c" / group / corruption / str(severity) / samples.ids[2]
        with Image.open(path) as image:
            assert np.array_equal(cell.image(2), image)
    part = samples.take([4, 2])
    assert isinstance(part, CellSamples)
    assert np.array_equal(part.cell("fog", 3).image(1), samples.cell("fog", 3).image(2))
    assert np.array_equal(pickle.loads(pickle.dumps(part)).cell("fog", 3).image(1), part.cell("fog", 3).image(1))


def test_the_corruptions_of_3dcc_are_those_of_robustbench():
    """`unaggregated_results_3d.csv` of its zoo has these twelve, each at five severities."""
    theirs = "bit_error color_quant near_focus far_focus flash fog_3d h265_abr h265_crf iso_noise low_light"
    wanted = {*theirs.split(), "xy_motion_blur", "z_motion_blur"}
    assert {*SHIFTED["imagenet-3dcc"].corruptions} == wanted
    protocol = load_scenario("imagenet-3dcc")[1]
    assert (protocol.names, len(protocol.cells)) == (SHIFTED["imagenet-3dcc"].corruptions, 60)


def test_the_digest_covers_every_cell(tmp_path):
    root = grid(tmp_path / "c")
    before = load_data(f"imagenet-c:{root}", view=VIEW)
    digest, part = before.digest(), before.take([0]).digest()
    file = root / "fog" / "3" / before.ids[5]
    file.write_bytes(jpeg())
    after = load_data(f"imagenet-c:{root}", view=VIEW)
    assert after.digest() != digest
    assert after.take([0]).digest() == part
    assert after.take(range(5, -1, -1)).digest() == after.digest()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "frog").mkdir(), "'frog'"),
        (lambda root: (root / "fog" / "6").mkdir(), "fog .*'6'"),
        (lambda root: shutil.rmtree(root / "fog" / "3"), "fog .*1, gaussian_noise .*1, 3"),
        (lambda root: next((root / "fog" / "3").rglob("*.JPEG")).unlink(), r"'n\d+/ILSVRC\w+\.JPEG' .*1 only"),
        (lambda root: put(root / "fog" / "3", ["n01440764/ILSVRC2012_val_00000293.JPEG"]), "is in .*fog/3 only"),
        (lambda root: (root / "fog" / "1" / "cat").mkdir(), r"1 folders .*cat"),
    ],
    ids=["corruption", "severity", "severities", "missing", "extra", "class"],
)  # fmt: skip
def test_grids_that_do_not_fit(tmp_path, spoil, message):
    root = grid(tmp_path / "c")
    spoil(root)
    with pytest.raises(BadInputError, match=message):
        load_data(f"imagenet-c:{root}", view=VIEW)


def test_cells_are_whole_and_never_resized(tmp_path):
    samples = load_data(f"imagenet-c:{grid(tmp_path / 'c')}", view=VIEW)
    for place in [("snow", 1), ("fog", 2), ("none", 0)]:
        with pytest.raises(BadInputError, match=f"{place[0]} .*severity {place[1]}"):
            samples.cell(*place)
    with pytest.raises(BadInputError, match="clean images"):
        samples.image(0)
    root = grid(tmp_path / "c")
    with pytest.raises(BadInputError, match=r"8 x 8 .*224 x 224"):
        load_data(f"imagenet-c:{root}")
    samples = load_data(f"imagenet-c:{root}", view=VIEW)
    (root / "fog" / "1" / samples.ids[3]).write_bytes(jpeg((9, 8)))
    with pytest.raises(BadInputError, match="9 x 8"):
        samples.cell("fog", 1).image(3)


def test_the_unchanged_images_are_resized(tmp_path):
    root = grid(tmp_path / "c")
    ids = load_data(f"imagenet-c:{root}", view=VIEW).ids
    png = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (30, 20, 3), dtype=np.uint8)).save(png, "PNG")
    put(root / "clean", [name.replace(".JPEG", ".png") for name in ids], png.getvalue())
    samples = load_data(f"imagenet-c:{root}", view=VIEW)
    clean = samples.cell("none", 0)
    assert (clean.ids, clean.labels) == (samples.ids, samples.labels)
    assert clean.image(1).shape == samples.image(1).shape == (8, 8, 3)
    digest = samples.digest()
    assert digest != load_data(f"imagenet-c:{root}", view=View(8, interpolation="bilinear")).digest()
    next((root / "clean").rglob("*.png")).unlink()
    with pytest.raises(BadInputError, match="other images"):
        load_data(f"imagenet-c:{root}", view=VIEW)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """Sparse arrays of the published shape: only the first images of each severity are not black."""
    root = tmp_path_factory.mktemp("cifar10-c")
    for number, name in enumerate(("fog", "shot_noise")):
        array = np.lib.format.open_memmap(root / f"{name}.npy", "w+", np.uint8, (50_000, 32, 32, 3))
        for severity in range(1, 6):
            array[10_000 * (severity - 1) : 10_000 * (severity - 1) + 3] = 10 * severity + number
        del array
    np.save(root / "labels.npy", np.tile(np.arange(10_000) % 10, 5).astype(np.uint8))
    return root


def test_cifar10_c(cifar):
    samples = load_data(f"cifar10-c:{cifar}")
    assert (samples.corruptions, samples.severities) == (("shot_noise", "fog"), (1, 2, 3, 4, 5))
    assert (len(samples), samples.expected, samples.classes) == (10_000, 10_000, 10)
    assert samples.ids[9] == "test/00009"
    assert samples.labels[:12] == [*range(10), 0, 1]
    for severity in range(1, 6):
        assert (samples.cell("fog", severity).image(2) == 10 * severity).all()
        assert (samples.cell("shot_noise", severity).image(2) == 10 * severity + 1).all()
        assert not samples.cell("fog", severity).image(3).any()
    few = load_data(f"cifar10-c:{cifar}", limit=20)
    assert np.unique(few.labels, return_counts=True)[1].tolist() == [2] * 10
    assert len(few.digest()) == 64
    cell = samples.cell("fog", 5)
    cell.image(0)
    assert len(pickle.dumps(cell)) < 1_000_000, "the map is not pickled"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: np.save(root / "frog.npy", np.zeros(3)), r"'frog\.npy'"),
        (lambda root: np.save(root / "snow.npy", np.zeros((10, 32, 32, 3), np.uint8)), r"shape \(10, 32, 32, 3\)"),
        (lambda root: np.save(root / "snow.npy", np.zeros((5, 5))), "float64"),
        (lambda root: (root / "snow.npy").write_bytes(b"x"), r"snow\.npy"),
        (lambda root: np.save(root / "snow.npy", np.array([{}]), allow_pickle=True), r"snow\.npy"),
        (lambda root: np.save(root / "labels.npy", np.arange(50_000) % 7), "repeat"),
        (lambda root: np.save(root / "labels.npy", np.zeros(10_000, int)), r"labels\.npy .*int64"),
        (lambda root: (root / "labels.npy").unlink(), r"labels\.npy"),
    ],
)
def test_arrays_that_do_not_fit(cifar, tmp_path, spoil, message):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "fog.npy").symlink_to(cifar / "fog.npy")
    shutil.copy(cifar / "labels.npy", tmp_path / "c")
    spoil(tmp_path / "c")
    with pytest.raises(BadInputError, match=message):
        load_data(f"cifar10-c:{tmp_path / 'c'}")


def test_photographs():
    samples = load_data("photos")
    assert (len(samples), samples.classes, len(set(samples.ids))) == (320, 0, 320)
    with pytest.raises(BadInputError, match="'photos'"):
        _ = samples.labels
    assert samples.image(0).shape == (32, 32, 3)
    patch = load_sample_image("flower.jpg")[40:80, 600:640]
    shrunk = np.rint(cv2.resize(patch.astype(np.float64), (32, 32), interpolation=cv2.INTER_AREA))
    assert np.array_equal(samples.image(samples.ids.index("photos/flower/01-15")), shrunk)
    with pytest.raises(BadInputError, match="'train'"):
        load_data("photos", "train")


def test_a_pair():
    known, unknown = load_data("digits", limit=30), load_data("photos", limit=20)
    pair = Pair(known, unknown)
    assert (pair.name, pair.split, pair.classes, len(pair)) == ("digits-against-photos", "test", 2, 50)
    assert pair.labels == [0] * 30 + [1] * 20
    assert pair.ids[0] == f"in/{known.ids[0]}"
    assert pair.ids[-1] == f"out/{unknown.ids[-1]}"
    assert np.array_equal(pair.image(0), known.image(0))
    assert np.array_equal(pair.image(49), pair.image(-1))
    assert np.array_equal(pair.image(30), unknown.image(0))
    assert pair.known_part is known is pair.take([0]).known_part
    assert (pair.known, pair.take([40, 0]).known, known.known) == (30, 1, None)
    assert pair.digest() not in (known.digest(), unknown.digest())
    ordered = pair.in_order()
    assert ordered.digest() == pair.digest()
    assert all(
        (name.startswith("out/")) == bool(label) for name, label in zip(ordered.ids, ordered.labels, strict=True)
    )


def test_a_pair_with_images_of_no_class(collections):
    unknown = load_data(f"imagenet-o:{collections / 'imagenet-o'}", view=VIEW)
    known = load_data(f"imagenet-a:{collections / 'imagenet-a'}", view=VIEW)
    pair = Pair(known, unknown)
    assert (sum(pair.labels), pair.expected) == (200, 9_500)
    with pytest.raises(BadInputError, match=r"32 x 32.*'imagenet-o'.*8 x 8"):
        Pair(load_data("digits"), unknown)


def test_labels_are_whole_numbers_and_one_an_image(validation, tmp_path):
    stem = next(iter(robustbench_validation()))
    put(tmp_path / "val", [f"{stem}.JPEG"])
    huge = f"a b\n{stem} {'9' * 5000}"
    for rows, message in (
        (f"a b\n{stem} 0.9", "line 2"), (f"{stem} 0\n{stem} 5", "another label"), (huge, "line 2"),
    ):  # fmt: skip
        (tmp_path / "labels.csv").write_text(rows + "\n")
        with pytest.raises(BadInputError, match=message):
            load_data(f"imagenet:{tmp_path}", view=VIEW)
