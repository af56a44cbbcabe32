"""What a Python program may give: names, arrays, torch's and Hugging Face's data sets, several protocols at once."""

import numpy as np
import pytest
import torch
from PIL import Image

from robustbench_kpca import attack, evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.given import as_dataset
from robustbench_kpca.protocols import presets

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
LABELS = [0, 1, 2, 0, 1, 2]


@pytest.fixture
def digits():
    few = load_data("digits", limit=8)
    floats, labels = few.tensors()
    return few, floats, np.stack([few.image(i) for i in range(8)]), labels


@pytest.mark.usefixtures("few_resamples")
def test_a_name_and_several_protocols(digits):
    few, floats, array, labels = digits
    clean, attacked = evaluate("vit_digits", few, protocol=["clean", "fgsm-linf-8_255"], audit=False)
    assert [clean.spec.protocol.name, attacked.spec.protocol.name] == ["clean", "fgsm-linf-8_255"]
    assert clean.spec.model.name == clean.spec.model.source == "vit_digits"
    for images, given in ((floats, labels), (array, labels.numpy()), (floats.numpy(), labels.tolist())):
        record = evaluate("vit_digits", images, given, protocol="clean")
        assert record.outcomes["prediction"].tolist() == clean.outcomes["prediction"].tolist()
        assert record.spec.model.probe_sha256 == clean.spec.model.probe_sha256


def test_a_path_is_a_protocol_in_a_file(digits, tmp_path, capsys):
    few, floats, _, labels = digits
    (tmp_path / "mine.toml").write_bytes(presets.protocols()["fgsm-linf-8_255"].read_bytes())
    (tmp_path / "mine").write_bytes((tmp_path / "mine.toml").read_bytes())
    model, path = load_model("vit_digits"), tmp_path / "mine.toml"
    one = evaluate(model, few, protocol=path, audit=False)
    (other,) = evaluate(model, few, protocol=[tmp_path / "mine"], audit=False)
    assert one.spec.protocol == other.spec.protocol
    assert one.spec.protocol.name == "mine"
    assert attack(model, floats, labels, path).broken.tolist() == (one.outcomes["broken_by"] != "").tolist()
    assert str(path) in one.command[0]
    words = ["-m", "vit_digits", "--limit", "8", "--audit", "none", "-o", str(tmp_path)]
    assert main(["eval", *words, "-p", str(path), "--json"]) == 0
    assert one.spec.protocol.digest in capsys.readouterr().out


@pytest.mark.untyped
@pytest.mark.parametrize("protocol", [5, [5], []])
def test_what_is_no_protocol_is_refused_in_one_line(protocol, digits):
    with pytest.raises(BadInputError, match="protocol") as caught:
        evaluate("vit_digits", digits[0], protocol=protocol)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160


@pytest.mark.usefixtures("fork")
def test_two_precisions_work_or_are_refused_in_our_words(digits):
    _, floats, _, labels = digits
    plain, double = (torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10)).eval() for _ in range(2))
    double.load_state_dict(plain.state_dict())
    double.double()
    array, asked = floats.numpy().astype(np.float64), {"protocol": "fgsm-linf-8_255", "audit": False}
    single = evaluate(plain, floats, labels, **asked)
    for images in (array, floats.double()):
        record = evaluate(double, images, labels, **asked)
        assert record.outcomes["prediction"].tolist() == single.outcomes["prediction"].tolist()
        with pytest.raises(BadInputError, match=r"images of float64 for a model with weights of float32"):
            evaluate(plain, images, labels, **asked)
        with pytest.raises(BadInputError, match="images of float64"):
            attack(plain, torch.as_tensor(images), labels, "fgsm-linf-8_255")
    with pytest.raises(BadInputError, match="images of float32 for a model with weights of float64"):
        evaluate(double, floats, labels, **asked)
    with pytest.raises(BadInputError, match="weights of bfloat16"):
        evaluate(plain.bfloat16(), floats, labels, **asked)


def test_a_named_model_brings_its_data_and_sixteen_bits_are_scaled():
    record = evaluate("vit_digits", protocol="clean")
    assert (record.spec.data.name, record.spec.data.n) == ("digits", 364)
    with pytest.raises(BadInputError, match="without data"):
        evaluate(torch.nn.Identity(), protocol="clean")

    class Deep(Items):
        def __getitem__(self, index):
            return Image.fromarray(np.full((8, 8), 257 * 40 * index, np.uint16)), LABELS[index]

    assert [int(as_dataset(Deep("pillow")).image(index)[0, 0, 0]) for index in (1, 5)] == [40, 200]


class Items(torch.utils.data.Dataset):
    """A map-style data set; `kind` is how it holds an image."""

    classes = ("a", "b", "c")

    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return len(PIXELS)

    def __getitem__(self, index):
        image = PIXELS[index]
        if self.kind == "pillow":
            return Image.fromarray(image), LABELS[index]
        if self.kind == "tensor":
            return torch.from_numpy(image).permute(2, 0, 1).float() / 255, LABELS[index]
        return image, LABELS[index]


@pytest.mark.parametrize("kind", ["pillow", "tensor", "array"])
def test_torchs_data_sets(kind):
    data = as_dataset(Items(kind))
    images, labels = data.tensors()
    assert torch.allclose(images, torch.from_numpy(PIXELS).permute(0, 3, 1, 2).float() / 255)
    assert labels.tolist() == LABELS
    assert data.class_names == ("a", "b", "c")
    assert data.raw == (kind == "pillow")
    assert data.digest() == as_dataset(Items(kind)).digest()


def test_labels_are_those_of_the_items():
    # As torchvision's sets do: `targets` are the labels before, and the names are theirs.
    items = Items("tensor")
    items.targets, items.target_transform = [label + 1 for label in LABELS], lambda label: label - 1
    data = as_dataset(items)
    assert (data.labels, data.class_names) == (LABELS, None)
    items.targets, items.target_transform = LABELS, None
    assert as_dataset(items).class_names == ("a", "b", "c")
    items = Items("tensor")
    items.targets = [*LABELS[:5], 0]
    with pytest.raises(BadInputError, match=r"item 5 .*label 2, its `targets` say 0"):
        as_dataset(items).digest()


class Sums(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x):
        return x.sum((2, 3))


def test_a_collection_that_shows_another_picture_each_time_is_refused():
    class Random(Items):
        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return image * self.generator.random(), label

    items = Random("tensor")
    items.generator = np.random.default_rng(0)
    with pytest.raises(BadInputError, match="another one at every reading"):
        evaluate(Sums(), items, protocol="clean")


def test_classes_can_be_stated_where_they_were_only_counted(tmp_path):
    (tmp_path / "labels.csv").write_text("file,label\n" + "".join(f"{i}.png,{LABELS[i]}\n" for i in range(6)))
    for index in range(6):
        Image.fromarray(PIXELS[index]).save(tmp_path / f"{index}.png")
    counted = as_dataset(str(tmp_path))
    stated = as_dataset(str(tmp_path), classes=10)
    assert (counted.classes, stated.classes, stated.counted) == (3, 10, False)
    assert stated.digest() == counted.digest()
    for data, classes in ((counted, 2), ("digits", 20)):
        with pytest.raises(BadInputError, match=f"classes = {classes}"):
            as_dataset(data, classes=classes)


def test_hugging_faces_data_sets():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    table = datasets.Dataset.from_dict(
        {"image": [Image.fromarray(one) for one in PIXELS], "label": LABELS}, features=features
    )
    data = as_dataset(table)
    assert np.array_equal(data.image(4), PIXELS[4])
    assert (data.labels, data.class_names) == (LABELS, ("a", "b", "c"))
    with pytest.raises(BadInputError, match="one of images and one of labels"):
        as_dataset(table.remove_columns("label"))
    for column in ("image", "label"):  # which of two would be taken in silence
        second = table.select_columns([column]).rename_column(column, "second")
        twice = datasets.concatenate_datasets([table, second], axis=1)
        with pytest.raises(BadInputError, match="one of images and one of labels"):
            as_dataset(twice)
    with pytest.raises(BadInputError, match="one split"):
        as_dataset(datasets.DatasetDict({"test": table}))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (PIXELS.astype(np.int64), LABELS, "int64"),
        (PIXELS.transpose(0, 3, 1, 2), LABELS, "uint8"),
        (PIXELS, LABELS[:2], "one integer label"),
        (object(), None, "object"),
        (PIXELS.astype(np.float32) / 255, LABELS, "move the channels"),
        ([(torch.rand(2, 3, 8, 8), LABELS[:2]), (torch.rand(1, 3, 9, 9), LABELS[2:3])], None, "the loader failed"),
    ],
)
def test_what_cannot_be_used(images, labels, message):
    with pytest.raises(BadInputError, match=message):
        as_dataset(images, labels)


def test_the_command_line_asks_for_data_of_other_families(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from robustbench_kpca import load_model\ndef net(): return load_model('vit_digits')"
    )
    few = ["-p", "clean", "-o", "runs", "--limit", "8"]
    assert main(["eval", "-m", "mine.py:net", *few]) == 2
    assert "add --data" in capsys.readouterr().err
    assert main(["eval", "-m", "mine.py:net", "--data", "digits", *few]) == 0
    assert main(["eval", "-m", "vit_digits_adv", "-m", "symvit_digits", *few]) == 0
    assert main(["eval", "-m", "vit_digits", "-m", "symvit_shapes", *few]) == 2
    assert "several data sets" in capsys.readouterr().err
    names = {path.name.partition("__")[0] for path in (tmp_path / "runs").glob("*.record.json")}
    assert names == {"mine.py-net", "vit_digits_adv", "symvit_digits"}


def test_an_onnx_file_is_attacked_by_queries_only(tmp_path, monkeypatch, capsys):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, weight = onnx.helper, RNG.normal(size=(3 * 32 * 32, 10)).astype(np.float32)
    graph = make.make_graph(
        [make.make_node("Flatten", ["x"], ["f"]), make.make_node("MatMul", ["f", "w"], ["y"])], "g",
        [make.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, 32, 32])],
        [make.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 10])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), "net.onnx")
    asked = ["eval", "-m", "net.onnx", "--data", "digits", "--limit", "8", "-o", "runs"]
    assert main([*asked, "-p", "clean", "-p", "pgd20-linf-8_255"]) == 2
    assert "'pgd' of protocol" in capsys.readouterr().err
    assert not list((tmp_path / "runs").glob("*.record.json"))
    assert main([*asked, "-p", "clean", "-p", "square-linf-8_255", "--set", "queries=3"]) == 2  # clean has no queries
    assert main([*asked, "-p", "clean"]) == 0
    assert main([*asked, "-p", "noise-linf-8_255", "--json"]) == 0
    assert "not audited" in capsys.readouterr().out
    assert main(["audit", "net.onnx", "--data", "digits"]) == 2
    assert "without gradients" in capsys.readouterr().err
