"""Models of every source: they answer as their own library does, and their pictures are those of its own transforms."""

import enum
import importlib
import json
import pickle
import shutil
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from PIL import Image
from stand_ins import posing_as
from torch import nn

from robustbench_kpca import load_model
from robustbench_kpca._core.errors import BadInputError, UnknownNameError
from robustbench_kpca.models import hub
from robustbench_kpca.models.source import class_names_of, stated_view

NAMES = ["plane", "car", "bird"]


@pytest.fixture
def images():
    return torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def picture():
    rows, columns = np.mgrid[0:70, 0:90]
    planes = [np.sin(rows / 9 + columns / 17), np.cos(columns / 11), np.sin(rows * columns / 700)]
    return Image.fromarray(np.rint(127.5 + 127.5 * np.stack(planes, -1)).astype(np.uint8))


@pytest.fixture(scope="module")
def hf(tmp_path_factory):
    """A tiny ViT of transformers, saved as its users save it."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("owner") / "tiny"
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=16,
        id2label=dict(enumerate(NAMES)), label2id={name: i for i, name in enumerate(NAMES)},
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.ViTForImageClassification(config).half().save_pretrained(folder)
    transformers.ViTImageProcessor(
        size={"height": 32, "width": 32}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.25, 0.3]
    ).save_pretrained(folder)
    return folder


def test_a_model_of_timm_takes_another_attention(fork):
    plain = load_model("timm:vit_tiny_patch16_224", untrained=True, img_size=32, num_classes=4)
    other = {"attention": "pro", "loss": "l1", "layers": "last"}
    model = load_model("timm:vit_tiny_patch16_224", untrained=True, img_size=32, num_classes=4, **other)
    assert (type(model.blocks[-1].attn).__name__, model.blocks[-1].attn.loss) == ("ProAttention", "l1")
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 4)
    with pytest.raises(BadInputError, match="cannot be built"):
        load_model("timm:vit_tiny_patch16_224", untrained=True, attention="pro", lam=2)


def test_a_transformers_model_answers_as_in_its_library(hf, images):
    transformers = pytest.importorskip("transformers")
    model, theirs = load_model(f"hf:{hf}"), transformers.AutoModelForImageClassification.from_pretrained(hf).float()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ([0.4, 0.5, 0.6], [0.2, 0.25, 0.3]))
    with torch.no_grad():
        expected = theirs.eval()(pixel_values=(images - mean) / std).logits
        assert torch.allclose(model(images), expected, atol=1e-6)
    assert next(model.parameters()).dtype == torch.float32, "a file in half precision is computed in single precision"
    assert class_names_of(model) == tuple(NAMES)
    assert not model.training


def test_pictures_are_those_of_the_image_processor(picture):
    transformers = pytest.importorskip("transformers")
    squashed = transformers.ViTImageProcessor(size={"height": 24, "width": 24}, resample=3)
    _agree(squashed, picture, "bicubic 24, squashed")
    crop = {"height": 32, "width": 32}
    clip = transformers.CLIPImageProcessor(size={"shortest_edge": 37}, crop_size=crop, resample=3)
    _agree(clip, picture, "bicubic 32 of 37, as transformers")
    convnext = transformers.ConvNextImageProcessor(size={"shortest_edge": 28}, crop_pct=0.875, resample=3)
    _agree(convnext, picture, "bicubic 28 of 32, as transformers")


def _agree(processor, picture, how):
    from robustbench_kpca.models.sources.hf import normalisation_of, view_of

    view = view_of(processor, "x")
    assert view.how == how
    mean, std = (np.reshape(values, (3, 1, 1)) for values in normalisation_of(processor, "x"))
    theirs = np.asarray(processor(picture, return_tensors="np")["pixel_values"][0])
    ours = np.asarray(view.apply(picture)).transpose(2, 0, 1) / 255
    assert np.abs(theirs * std + mean - ours).max() < 0.01


def test_a_processor_that_does_something_else_is_refused():
    transformers = pytest.importorskip("transformers")
    from robustbench_kpca.models.sources.hf import view_of

    class Odd(transformers.ViTImageProcessor):
        def __call__(self, picture, **how):
            return super().__call__(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT), **how)

    with pytest.raises(BadInputError, match=r"Odd.*not supported"):
        view_of(Odd(size={"height": 32, "width": 32}), "x")
    with pytest.raises(BadInputError, match="not supported"):
        view_of(transformers.ViTImageProcessor(size={"height": 32, "width": 24}), "x")


def without_weights(hf, folder):
    return shutil.copytree(hf, folder, ignore=shutil.ignore_patterns("*.safetensors"))


def test_transformers_code_is_never_run_and_weights_must_be_whole(hf, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    folder = without_weights(hf, tmp_path / "m")
    state = safetensors.load_file(hf / "model.safetensors")
    safetensors.save_file({k: v for k, v in state.items() if "classifier" not in k}, folder / "model.safetensors")
    with pytest.raises(BadInputError, match="lack 2 tensors"):
        load_model(f"hf:{folder}")
    config = json.loads((hf / "config.json").read_text())
    code = {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForImageClassification": "evil.M"},
    }
    (folder / "config.json").write_text(json.dumps(config | code))
    (folder / "evil.py").write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()")
    with pytest.raises(BadInputError, match="not run"):
        load_model(f"hf:{folder}")
    assert not (folder / "ran").exists()
    with pytest.raises(BadInputError, match="trust_remote_code"):
        load_model(f"hf:{folder}", trust_remote_code=True)


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_pickles_among_weights_are_not_run(hf, tmp_path):
    folder = without_weights(hf, tmp_path / "m")
    torch.save({"bomb": Bomb(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(BadInputError, match="cannot be loaded"):
        load_model(f"hf:{folder}")
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Bomb(tmp_path / "ran"))).close()
    assert (tmp_path / "ran").exists()


def test_a_model_from_the_cache_of_the_hub(hf, tmp_path, monkeypatch, images):
    """`hf:OWNER/NAME` where the hub's client has only its cache."""
    hub = pytest.importorskip("transformers").utils.hub
    for module in (hub.constants, pytest.importorskip("huggingface_hub").constants):
        monkeypatch.setattr(module, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", True)
    snapshot = tmp_path / "models--someone--mine" / "snapshots" / ("0" * 40)
    shutil.copytree(hf, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    with torch.no_grad():
        assert torch.equal(load_model("hf:someone/mine")(images), load_model(f"hf:{hf}")(images))
    with pytest.raises(BadInputError, match="hf:someone/else"):
        load_model("hf:someone/else")


def test_a_checkpoint_for_a_transformers_model(hf, images, tmp_path):
    state = {name: value + 0.01 for name, value in load_model(f"hf:{hf}").net.state_dict().items()}
    torch.save(state, tmp_path / "w.pt")
    model = load_model(f"hf:{hf}", tmp_path / "w.pt")
    assert torch.equal(model.net.classifier.bias, state["classifier.bias"])
    assert load_model(f"hf:{hf}", untrained=True)(images).shape == (3, 3)


@pytest.fixture
def torchvision_cache(monkeypatch, tmp_path):
    """Weights of ShuffleNet in the folder where torchvision keeps what it downloads."""
    import torchvision

    weights = torchvision.models.ShuffleNet_V2_X0_5_Weights.DEFAULT
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = tmp_path / "hub" / "checkpoints" / weights.url.rpartition("/")[2]
    file.parent.mkdir(parents=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torchvision.models.shufflenet_v2_x0_5().eval()
    torch.save(net.state_dict(), file)
    return weights, net, file


def test_a_torchvision_model_with_its_own_transforms(torchvision_cache, picture):
    weights, net, file = torchvision_cache
    model, transform = load_model("torchvision:shufflenet_v2_x0_5"), weights.transforms()
    x = torch.from_numpy(np.array(stated_view(model).apply(picture))).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        assert torch.allclose(model(x), net(transform(picture)[None]), atol=1e-4)
    assert class_names_of(model) == tuple(weights.meta["categories"])
    torch.save({"bomb": Bomb(file.with_name("ran"))}, file)
    with pytest.raises(BadInputError, match="could not be built"):
        load_model("torchvision:shufflenet_v2_x0_5")
    assert not file.with_name("ran").exists()


@pytest.mark.parametrize("name", ["resnet50", "efficientnet_b0"])
def test_views_of_torchvision_weights_are_their_transforms(name, picture):
    import torchvision

    from robustbench_kpca.data.request import View

    shown = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    view = View.between(shown.crop_size[0], shown.resize_size[0], shown.interpolation.value)
    assert (view.size, view.short_side) == (shown.crop_size[0], shown.resize_size[0])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (shown.mean, shown.std))
    theirs = shown(picture) * std + mean
    ours = torch.from_numpy(np.array(view.apply(picture))).permute(2, 0, 1) / 255
    assert torch.allclose(theirs, ours, atol=1e-6)


@pytest.mark.parametrize(("mode", "crop"), [("center", 0.9), ("squash", 1.0), ("squash", 0.9)])
def test_views_of_timms_configurations_are_their_transforms(mode, crop, picture):
    from timm.data import create_transform

    settings = {"input_size": (3, 64, 64), "crop_pct": crop, "crop_mode": mode, "interpolation": "bicubic"}
    view = stated_view(posing_as(nn.Module, pretrained_cfg=settings))
    theirs = create_transform(**settings, mean=(0, 0, 0), std=(1, 1, 1))(picture)
    assert torch.allclose(theirs, torch.from_numpy(np.array(view.apply(picture))).permute(2, 0, 1) / 255, atol=1e-6)


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))

    def forward(self, x):
        return self.net(x)


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory):
    """A linear map as an ONNX file for batches of two, and the same map in torch."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Scores().eval()
    weight, bias = (value.detach().numpy() for value in (net.net[1].weight, net.net[1].bias))
    make = onnx.helper
    graph = make.make_graph(
        [make.make_node("Flatten", ["x"], ["f"]), make.make_node("Gemm", ["f", "w", "b"], ["y"], transB=1)], "g",
        [make.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3, 8, 8])],
        [make.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 4])],
        [onnx.numpy_helper.from_array(weight, "w"), onnx.numpy_helper.from_array(bias, "b")],
    )  # fmt: skip
    path = tmp_path_factory.mktemp("onnx") / "scores.onnx"
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), path)
    return path, net


def test_an_onnx_file_answers_as_the_network(onnx_file):
    path, net = onnx_file
    x = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model = load_model(str(path))
    with torch.no_grad():
        assert torch.allclose(model(x), net(x), atol=1e-5)
        scaled = load_model(f"onnx:{path}", mean=0.5, std=[0.2, 0.3, 0.4])
        shown = (x - 0.5) / torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
        assert torch.allclose(scaled(x), net(shown), atol=1e-5)
    assert stated_view(model).size == 8


def test_onnx_files_that_cannot_be_used(onnx_file, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no network")
    for name, message, options in [
        (tmp_path / "none.onnx", "cannot read", {}),
        (tmp_path / "bad.onnx", "onnxruntime", {}),
        (onnx_file[0], "'depth'", {"depth": 2}),
        (onnx_file[0], "model.mean", {"mean": "grey"}),
    ]:
        with pytest.raises(BadInputError, match=message):
            load_model(f"onnx:{name}", **options)


FACTORY = """
import torch
from helper_of_mine import CLASSES

def make(classes=CLASSES):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, classes)).eval()
"""


@pytest.mark.parametrize("name", ["sub/mine_too.py:make", "mine:make"])
def test_a_factory_in_a_file_or_in_the_current_folder(fork, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for folder, file in ((tmp_path, "mine.py"), (tmp_path / "sub", "mine_too.py")):
        (folder / file).write_text(FACTORY)
        (folder / "helper_of_mine.py").write_text("CLASSES = 5")
    before = list(sys.path)
    assert load_model(name, classes=7)(torch.zeros(1, 3, 2, 2)).shape == (1, 7)
    assert load_model(name)(torch.zeros(1, 3, 2, 2)).shape == (1, 5)
    assert sys.path == before
    for loaded in ("mine", "helper_of_mine"):
        sys.modules.pop(loaded, None)


NEIGHBOUR = """
import importlib
from dataclasses import dataclass
import torch
import helpers
from parts.sizes import WIDTH

class Net(torch.nn.Module):
    def forward(self, x):
        import late
        return torch.full((len(x), WIDTH), float(helpers.VALUE + late.VALUE))

def make():
    assert importlib.import_module("by_name").VALUE == helpers.VALUE
    return Net()
"""


def test_each_file_has_the_helpers_of_its_own_folder(tmp_path, images, monkeypatch):
    known = dict(sys.modules)
    (tmp_path / "helpers.py").write_text("raise AssertionError('another one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m` does
    for value, folder in ((1, tmp_path / "a"), (2, tmp_path / "b")):
        (folder / "parts").mkdir(parents=True)
        (folder / "model.py").write_text(NEIGHBOUR)
        (folder / "parts" / "sizes.py").write_text("from . import width\nWIDTH = width.WIDTH")
        (folder / "parts" / "width.py").write_text("import helpers\nWIDTH = 3 + helpers.VALUE")
        for name, number in (("helpers", value), ("by_name", value), ("late", 10 * value)):
            (folder / f"{name}.py").write_text(f"VALUE = {number}")
    first, second, again = (load_model(f"{name}/model.py:make") for name in "aba")
    assert [model(images).shape[1] for model in (first, second, again)] == [4, 5, 4]
    assert [float(model(images)[0, 0]) for model in (first, second, again)] == [11, 22, 11]
    left = {name for name in sys.modules.keys() - known.keys() if "_folder_" not in name}
    assert not left & {"model", "helpers", "parts", "parts.sizes", "late", "by_name"}


def test_a_helper_that_changes_is_loaded_again(tmp_path, images, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "import torch, helpers\ndef make():\n    return helpers.Net()"
    (tmp_path / "model.py").write_text(text)
    found = []
    for number in (1, 2):  # a file of the same size, in the same second
        net = f"def forward(self, x):\n        return x.flatten(1)[:, :2] * {number}"
        (tmp_path / "helpers.py").write_text(f"import torch\nclass Net(torch.nn.Module):\n    {net}")
        found.append(load_model("model.py:make")(images))
    assert torch.equal(2 * found[0], found[1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18", "timm:resnet18 or torchvision:resnet18"),
        ("google/vit-base-patch16-224", "hf:google/vit-base-patch16-224"),
        ("mine.py", "mine.py:FACTORY"),
        ("torchvision:resnet181", "'resnet18'"),
        ("torchvision:fasterrcnn_resnet50_fpn", "torchvision classifier"),
        ("hf:nowhere", "OWNER/NAME"),
        ("none.py:make", "no file"),
    ],
)
def test_a_name_of_another_source_is_suggested_with_its_prefix(name, message):
    with pytest.raises((UnknownNameError, BadInputError), match=message):
        load_model(name)


def test_a_library_that_is_missing_is_one_line(monkeypatch):
    for prefix, missing, extra in (("hf", "transformers", "transformers"), ("onnx", "onnxruntime", "onnx")):
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(BadInputError, match=rf"{missing}.*pip install '.\[{extra}\]'"):
            load_model(f"{prefix}:owner/name")


def test_no_dead_network_is_waited_for(monkeypatch):
    """The hub's client would retry for a minute; a proxy is not asked, since it may know the way."""

    def refused(*where, **how):
        raise OSError

    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(hub.socket, "create_connection", refused)
    with pytest.raises(BadInputError, match=r"it is not here, and the hub cannot be reached.*--checkpoint FILE"):
        load_model("timm:vit_tiny_patch16_224")
    assert not constants.HF_HUB_OFFLINE
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "proxy"})
    assert hub._reachable("https://nowhere.invalid")


class Labelled(enum.Enum):
    CIFAR10, IMAGENET, LINF, L2 = "cifar10", "imagenet", "Linf", "L2"


@pytest.fixture
def zoo(monkeypatch):
    """Stands in for RobustBench, which needs packages that are not on PyPI; yields what was asked of it."""
    asked = []

    def made():
        return nn.Sequential(nn.Flatten(1), nn.Linear(3 * 32 * 32, 10))

    def load(name, folder, dataset, threat):
        print("Downloading")
        asked.append((name, folder.name, dataset, threat))
        if name == "Lost":
            raise OSError("no network")
        return made()

    resized = {"model": made, "preprocessing": "BicubicRes256Crop224"}
    dicts = {
        Labelled.CIFAR10: {
            Labelled.LINF: {"Wong2020Fast": {"model": made}, "Lost": {"model": made}},
            Labelled.L2: {"Rice2020Overfitting": {"model": made}},
        },
        Labelled.IMAGENET: {Labelled.LINF: {"Wong2020Fast": resized, "Salman2020Do_R18": resized}},
    }
    monkeypatch.setitem(sys.modules, "robustbench", ModuleType("robustbench"))
    monkeypatch.setitem(sys.modules, "robustbench.model_zoo", SimpleNamespace(model_dicts=dicts))
    monkeypatch.setitem(sys.modules, "robustbench.utils", SimpleNamespace(load_model=load))
    return asked


def test_a_model_of_robustbench_is_the_one_of_its_list(zoo, images, capsys):
    assert load_model("robustbench:Rice2020Overfitting")(images).shape == (3, 10)
    load_model("robustbench:cifar10/Wong2020Fast")
    imagenet = load_model("robustbench:Salman2020Do_R18")
    assert zoo == [
        ("Rice2020Overfitting", "robustbench", "cifar10", "L2"),
        ("Wong2020Fast", "robustbench", "cifar10", "Linf"),
        ("Salman2020Do_R18", "robustbench", "imagenet", "Linf"),
    ]
    assert stated_view(imagenet).how == "bicubic 224 of 256, as torchvision"
    assert class_names_of(imagenet)[0] == "n01440764"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("missing", ["pkg_resources", "autoattack"])
def test_what_robustbench_itself_needs_is_named(monkeypatch, missing):
    """Its release 1.1.1 imports pkg_resources, then autoattack."""

    whole = importlib.import_module

    def without(name, *rest):
        if name == "robustbench":
            raise ModuleNotFoundError(f"No module named '{missing}'", name=missing)
        return whole(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(
        BadInputError, match=rf"no module {missing}\).*setuptools<82.*fra31/auto-attack.*--no-deps robustbench"
    ):
        load_model("robustbench:Carmon2019Unlabeled")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Linf/Rice2020Overfitting", {}, "did you mean 'Rice2020Overfitting'"),
        ("Wong2020Fast", {}, "several.*cifar10/Linf/Wong2020Fast or robustbench:imagenet/Linf/Wong2020Fast"),
        ("Lost", {"depth": 3}, "'model.depth' of robustbench:Lost cannot be set"),
        ("Lost", {}, r"could not be built .*--checkpoint FILE"),
    ],
)
def test_what_robustbench_has_not_is_one_line(zoo, name, options, message):
    with pytest.raises((UnknownNameError, BadInputError), match=message):
        load_model(f"robustbench:{name}", **options)
