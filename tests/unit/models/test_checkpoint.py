"""Every layout of checkpoint loads to the same tensors, nothing else in one runs, and what does not fit says why."""

import argparse
import copy
import functools
import os
import pathlib
import pickle
from collections import OrderedDict

import pytest
import torch
from full_disk import LIMIT, full_disk
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from robustbench_kpca import create_model, load_model
from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._core.files import write_atomic
from robustbench_kpca.cli.main import main
from robustbench_kpca.models.bundle import WEIGHTS, read_header
from robustbench_kpca.models.checkpoint import load_strictly, parameters_sha256, save_checkpoint
from robustbench_kpca.models.weights_file import read_state
from robustbench_kpca.records.record import find_records, load_record

pytestmark = pytest.mark.usefixtures("few_resamples")
NAME = "symvit_digits"
FILE = WEIGHTS / f"{NAME}.safetensors"


@pytest.fixture
def state():
    return load_file(FILE)


def random_like(state, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(value.shape, generator=generator) for name, value in state.items()}


def assert_equal(model, state):
    own = model.state_dict()
    assert own.keys() == state.keys()
    for name, value in state.items():
        assert torch.equal(own[name], value.to(own[name].dtype)), name


def authors(state, averaged):
    """The file DeiT's main.py, and so the scripts of SymViT and RPC-SymViT, writes."""
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    return {
        "model": OrderedDict(state),
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": {"base_values": [5e-4], "updates": None},
        "epoch": 299,
        "model_ema": OrderedDict(averaged),
        "scaler": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 0},
        "args": argparse.Namespace(model="deit_tiny_patch16_224", lr=5e-4, nested=argparse.Namespace(world=[1, 2])),
    }


def timm_training(state, averaged):
    """The file timm's CheckpointSaver writes."""
    return {
        "epoch": 12,
        "arch": "vit_tiny",
        "state_dict": state,
        "optimizer": {},
        "version": 2,
        "args": argparse.Namespace(lr=1.0),
        "state_dict_ema": averaged,
        "metric": 72.2,
    }


LAYOUTS = {
    "flat": lambda state: state,
    "model": lambda state: {"model": state, "epoch": 3},
    "state_dict": lambda state: {"state_dict": state},
    "net": lambda state: {"net": state, "acc": 93.1, "epoch": 3},
    "teacher": lambda state: {"teacher": state, "dino_loss": {}},
    "Lightning": lambda state: {"state_dict": {f"model.{name}": value for name, value in state.items()}},
    "adapters": lambda state: {f"base_model.model.{name}": value for name, value in state.items()},
    "without EMA": lambda state: authors(state, {}) | {"model_ema": None},
    "DistributedDataParallel": lambda state: {"model": {f"module.{name}": value for name, value in state.items()}},
    "torch.compile": lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
    "distributed, then compiled": lambda state: {f"_orig_mod.module.{n}": value for n, value in state.items()},
    "float64": lambda state: {name: value.double() for name, value in state.items()},
    "parameters": lambda state: {name: torch.nn.Parameter(value) for name, value in state.items()},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_a_torch_file_gives_the_same_tensors(layout, tmp_path, state):
    for zipped in (True, False):
        torch.save(LAYOUTS[layout](state), tmp_path / "c.pth", _use_new_zipfile_serialization=zipped)
        model = load_model(NAME, tmp_path / "c.pth")
        assert_equal(model, state)
    assert parameters_sha256(model) == parameters_sha256(load_model(NAME))
    assert argparse.Namespace not in torch.serialization.get_safe_globals(), "it is let in for one file only"


def test_real_wrappers_write_those_prefixes(tmp_path, state):
    model = load_model(NAME)
    torch.save(torch.nn.DataParallel(model).state_dict(), tmp_path / "parallel.pth")
    torch.save(torch.compile(model).state_dict(), tmp_path / "compiled.pth")
    for name in ("parallel.pth", "compiled.pth"):
        assert not set(read_state(tmp_path / name).state) & set(state)
        assert_equal(load_model(NAME, tmp_path / name), state)


def test_prefixes_are_taken_off_where_all_keys_carry_them(tmp_path, state, fork):
    mixed = {name if name == "cls_token" else f"module.{name}": value for name, value in state.items()}
    torch.save(mixed, tmp_path / "c.pth")
    with pytest.raises(BadInputError, match="module"):
        load_model(NAME, tmp_path / "c.pth")
    inner = torch.nn.Linear(2, 3, bias=False)
    inner.weight.data.zero_()
    load_strictly(torch.nn.DataParallel(inner), {"module.weight": torch.ones(3, 2)}, "it")
    assert torch.equal(inner.weight, torch.ones(3, 2))
    save_file({f"module.{name}": value for name, value in state.items()}, tmp_path / "c.safetensors")
    assert_equal(load_model(NAME, str(tmp_path / "c.safetensors")), state)


@pytest.mark.parametrize(
    ("layout", "plain", "averaged"), [(authors, "model", "model_ema"), (timm_training, "state_dict", "state_dict_ema")]
)
def test_of_two_sets_of_weights_one_is_named(layout, plain, averaged, tmp_path, state):
    other = random_like(state)
    prefixed = {f"module.{name}": value for name, value in other.items()}  # as timm's ModelEmaV2 has them
    torch.save(layout(state, other), tmp_path / "c.pth")
    torch.save(layout(state, prefixed), tmp_path / "v2.pth")
    with pytest.raises(BadInputError, match=rf"2 state dicts: {plain}, {averaged}; .*c\.pth::{plain}$"):
        load_model(NAME, tmp_path / "c.pth")
    assert_equal(load_model(NAME, f"{tmp_path}/c.pth::{plain}"), state)
    assert_equal(load_model(NAME, f"{tmp_path}/c.pth::{averaged}"), other)
    assert_equal(load_model(NAME, f"{tmp_path}/v2.pth::{averaged}"), other)


@pytest.mark.parametrize(
    ("content", "key", "message"),
    [
        (lambda state: {"model": state, "epoch": 3}, "::ema", r"no 'ema', but 'model' \(dict\), 'epoch' \(int\)"),
        (lambda state: {"model": state, "epoch": 3}, "::epoch", r"no state dict, but nothing"),
        (lambda state: {"epoch": 3, "net": [state]}, "", r"no state dict, but 'epoch' \(int\), 'net' \(list\).*::KEY"),
        (lambda state: state, "::model", r"no 'model', but 'blocks\.0\.attn.*' \(Tensor\), .*…$"),
    ],
)
def test_weights_that_are_not_there(content, key, message, tmp_path, state):
    torch.save(content(state), tmp_path / "c.pth")
    with pytest.raises(BadInputError, match=message):
        load_model(NAME, f"{tmp_path}/c.pth{key}")


class Evil:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (os.system, (f"touch {self.target}",))


class ByPython(Evil):
    def __reduce__(self):
        return (eval, (f"__import__('pathlib').Path({str(self.target)!r}).touch()",))


class Space(argparse.Namespace):
    pass


@pytest.mark.parametrize("bomb", [Evil, ByPython], ids=["os.system", "eval"])
@pytest.mark.parametrize(
    "write",
    [
        lambda evil, state, path: torch.save({"model": state, "x": evil}, path),
        lambda evil, state, path: torch.save(authors(state, state) | {"args": argparse.Namespace(x=evil)}, path),
        lambda evil, state, path: torch.save({"x": evil}, path, _use_new_zipfile_serialization=False),
        *(
            lambda evil, state, path, p=protocol: path.write_bytes(pickle.dumps({"x": evil}, protocol=p))
            for protocol in (0, 2, 4)
        ),
    ],
    ids=["zip", "in the arguments", "legacy", "pickle 0", "pickle 2", "pickle 4"],
)
def test_no_code_of_a_checkpoint_runs(bomb, write, tmp_path, state):
    write(bomb(tmp_path / "it_ran"), state, tmp_path / "evil.pth")
    with pytest.raises(BadInputError, match=r"evil\.pth.*safetensors") as caught:
        load_model(NAME, tmp_path / "evil.pth")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "it_ran").exists()


def test_the_bomb_is_live(tmp_path):
    for number, bomb in enumerate([Evil, ByPython]):
        pickle.loads(pickle.dumps(bomb(tmp_path / f"{number}")))
        assert (tmp_path / f"{number}").exists()


@pytest.mark.parametrize(
    ("thing", "named"),
    [
        (pathlib.PurePosixPath("runs"), "pathlib"),
        (Space(lr=1), "Space"),
        (functools.partial(len, "x"), "functools.partial"),
        (torch.nn.Linear(1, 1, bias=False, device="meta"), "torch.nn.modules.linear.Linear"),
    ],
    ids=["path", "subclass of Namespace", "partial", "whole module"],
)
def test_other_classes_are_refused_by_name(thing, named, tmp_path, state):
    torch.save({"model": state, "args": argparse.Namespace(it=thing)}, tmp_path / "c.pth")
    with pytest.raises(BadInputError, match=named):
        load_model(NAME, tmp_path / "c.pth")


def test_bad_checkpoints(tmp_path, state):
    good = FILE.read_bytes()
    (tmp_path / "short.safetensors").write_bytes(good[:-100])
    (tmp_path / "empty.safetensors").write_bytes(b"")
    (tmp_path / "pickle.safetensors").write_bytes(pickle.dumps(Evil(tmp_path / "it_ran")))
    (tmp_path / "short.pth").write_bytes(b"PK\x03\x04 not a zip")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"model": []}, tmp_path / "hollow.pth")
    torch.save({"model": {}}, tmp_path / "nothing.pth")
    torch.save({name: value.to("meta") for name, value in state.items()}, tmp_path / "meta.pth")
    torch.save({name: value.to(torch.int8) for name, value in state.items()}, tmp_path / "int8.pth")
    save_file({"head.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    for file, message in {
        "short.safetensors": "truncated or damaged",
        "empty.safetensors": "truncated or damaged",
        "pickle.safetensors": "truncated or damaged",
        "short.pth": "truncated or damaged|no plain state dict",
        "list.pth": "holds no state dict",
        "hollow.pth": "holds no state dict",
        "nothing.pth": "holds no state dict",
        "meta.pth": "holds no state dict",
        "int8.pth": r"mis-typed \(cls_token torch.int8 for torch.float32",
        "other.safetensors": r"missing \(cls_token.*mis-shaped \(head.weight \(3,\) for \(10, 48\)\)",
        "gone.pth": "no checkpoint at",
        ".": "no checkpoint at",
    }.items():
        with pytest.raises(BadInputError, match=message) as caught:
            load_model(NAME, tmp_path / file)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "it_ran").exists()


def test_what_does_not_fit_is_reported_whole_and_leaves_the_model_as_it_was(fork, state):
    model = create_model(NAME)
    before = copy.deepcopy(model.state_dict())
    del state["cls_token"]
    state |= {"extra": torch.zeros(1), "blocks.0.attn.proj.weight": torch.zeros(2, 2)}
    reported = r"1 missing \(cls_token\), 1 unexpected \(extra\), 1 mis-shaped \(\S+ \(2, 2\) for \(48, 48\)\)"
    with pytest.raises(BadInputError, match=reported):
        load_strictly(model, state, "it")
    assert_equal(model, before)


def official_layout(classes=1000, width=192, depth=12, tokens=197):
    """The keys and shapes of the released SymViT-Tiny, written out (RPC adds none)."""
    layers = {"norm": (width,), "head": (classes, width), "patch_embed.proj": (width, 3, 16, 16)}
    for i in range(depth):
        layers |= {
            f"blocks.{i}.norm1": (width,),
            f"blocks.{i}.attn.qkv": (2 * width, width),
            f"blocks.{i}.attn.proj": (width, width),
            f"blocks.{i}.norm2": (width,),
            f"blocks.{i}.mlp.fc1": (4 * width, width),
            f"blocks.{i}.mlp.fc2": (width, 4 * width),
        }
    shapes = {"cls_token": (1, 1, width), "pos_embed": (1, tokens, width)}
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in shapes.items()}


def test_the_released_layout_loads_strictly_and_rpc_shares_it(tmp_path):
    state = official_layout()
    assert sum(value.numel() for value in state.values()) == 5_272_744
    torch.save(authors(state, random_like(state)), tmp_path / "checkpoint.pth")
    names = ("symvit_tiny_patch16_224", "rpc_symvit_tiny_patch16_224", "rpc_symvit_all_tiny_patch16_224")
    models = [load_model(name, f"{tmp_path}/checkpoint.pth::model") for name in names]
    for model in models:
        assert_equal(model, state)
        assert sum(parameter.numel() for parameter in model.parameters()) == 5_272_744
    assert len({parameters_sha256(model) for model in models}) == 1
    save_checkpoint(tmp_path / "rpc.safetensors", models[1], {})
    assert_equal(load_model(names[0], tmp_path / "rpc.safetensors"), state)
    with pytest.raises(BadInputError, match=r"attn.qkv.weight \(384, 192\) for \(576, 192\)"):
        load_model("vit_tiny_patch16_224", f"{tmp_path}/checkpoint.pth::model")


def by_hand(positions, side):
    """Bicubic with antialiasing on the grid of patches; the class token stays."""
    old = round((positions.shape[1] - 1) ** 0.5)
    grid = positions[:, 1:].reshape(1, old, old, -1).permute(0, 3, 1, 2)
    new = functional.interpolate(grid, (side, side), mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([positions[:, :1], new.permute(0, 2, 3, 1).flatten(1, 2)], 1)


@pytest.mark.parametrize("size", [24, 64])
def test_positions_are_resized_when_asked_for(size, tmp_path, state):
    torch.save(state, tmp_path / "c.pth")
    with pytest.raises(BadInputError, match=r"1 mis-shaped \(pos_embed .*model.resize_positions=true$"):
        load_model(NAME, tmp_path / "c.pth", img_size=size)
    expected = state | {"pos_embed": by_hand(state["pos_embed"], size // 8)}
    for checkpoint in (tmp_path / "c.pth", None):  # the bundled weights, too
        model = load_model(NAME, checkpoint, resize_positions=True, img_size=size)
        assert_equal(model, expected)
    assert model(torch.zeros(1, 3, size, size)).shape == (1, 10)


def test_positions_that_fit_stay_and_those_of_another_width_are_refused(fork, tmp_path, state):
    assert_equal(load_model(NAME, resize_positions=True), state)
    for positions in (torch.zeros(1, 5, 40), torch.zeros(1, 6, 48), torch.zeros(5, 48), torch.zeros(1, 1, 48)):
        torch.save(state | {"pos_embed": positions}, tmp_path / "c.pth")
        for resize in (False, True):
            with pytest.raises(BadInputError, match=r"1 mis-shaped .*the architecture"):
                load_model(NAME, tmp_path / "c.pth", resize_positions=resize)


def test_models_without_a_position_of_the_class_token_are_resized_whole(tmp_path):
    name, options = "timm:vit_tiny_patch16_224", {"no_embed_class": True, "depth": 1, "num_classes": 3}
    state = load_model(name, untrained=True, **options).state_dict()
    torch.save(state, tmp_path / "c.pth")
    model = load_model(name, tmp_path / "c.pth", resize_positions=True, img_size=32, **options)
    token = torch.zeros(1, 1, 192)
    expected = by_hand(torch.cat([token, state["pos_embed"]], 1), 2)[:, 1:]
    assert torch.equal(model.state_dict()["pos_embed"], expected)


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"num_classes": 7}, r"num_classes=10 \(--set model.num_classes=10\)$"),
        ({"num_classes": 7, "img_size": 64}, r"num_classes=10 \(.*model.resize_positions=true$"),
        ({"num_classes": 7, "depth": 3}, r"num_classes=10 .*the architecture"),
        ({"num_classes": 7, "embed_dim": 24}, "the architecture"),
    ],
    ids=["head", "head and positions", "head and depth", "head and width"],
)
def test_a_head_of_another_number_of_classes_says_which(options, fix):
    with pytest.raises(BadInputError, match=fix):
        load_model(NAME, FILE, **options)


def test_a_hub_checkpoint_goes_through_timm(monkeypatch, state):
    import timm.models

    averaged, asked = random_like(state), []

    def fetch(model_id, weights_only):
        assert weights_only
        asked.append(model_id)
        return timm_training(state, averaged)

    monkeypatch.setattr(timm.models, "load_state_dict_from_hf", fetch)
    assert_equal(load_model(NAME, "hf-hub:someone/mine@v1::state_dict"), state)
    assert_equal(load_model(NAME, "hf-hub:someone/mine@v1::state_dict_ema"), averaged)
    assert asked == ["someone/mine@v1"] * 2


@pytest.mark.parametrize("name", ["", "a/b/c", "a@b@c", "../x"])
def test_a_hub_name_that_cannot_be(name):
    with pytest.raises(BadInputError, match=f"hf-hub:{name} .*hf-hub:OWNER/NAM"):
        load_model(NAME, f"hf-hub:{name}")


@pytest.fixture
def rbk_offline(tmp_path, monkeypatch):
    """Run where the hub's client has only its cache."""
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    snapshot = tmp_path / "hub" / "models--someone--mine" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True, exist_ok=True)
    (snapshot / "model.safetensors").write_bytes(FILE.read_bytes())
    (snapshot.parents[1] / "refs").mkdir(exist_ok=True)
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    return lambda *arguments: main(["eval", "-p", "clean", "-o", "runs", "--limit", "8", *arguments])


def test_a_hub_checkpoint_from_the_real_clients_cache(tmp_path, rbk_offline):
    assert rbk_offline("-m", "rpc_symvit_digits", "--checkpoint", "hf-hub:someone/mine", "-q") == 0
    model = load_record(find_records(tmp_path / "runs")[0]).spec.model
    assert (model.name, model.source) == (
        "rpc_symvit_digits@someone-mine",
        "rpc_symvit_digits with hf-hub:someone/mine",
    )
    assert model.parameters_sha256 == parameters_sha256(load_model(NAME))


def rbk(*arguments):
    return main(["eval", "-m", NAME, "-p", "clean", "-o", "runs", "--limit", "8", "-q", *arguments])


def test_the_record_says_how_the_weights_were_loaded(tmp_path, monkeypatch, state, capsys):
    monkeypatch.chdir(tmp_path)
    averaged = random_like(state)
    torch.save(authors(state, averaged), "c.pth")
    torch.save({"net": {f"module.{name}": value for name, value in state.items()}}, "d.pth")
    assert rbk("--checkpoint", "c.pth::model_ema") == 0
    capsys.readouterr()
    assert main(["eval", "-m", NAME, "-p", "clean", "-o", "runs", "--limit", "8", "--checkpoint", "d.pth"]) == 0
    assert f"{NAME}@d: of the checkpoint: entry net, names without module.\n" in capsys.readouterr().err
    models = {load_record(path).spec.model.name: load_record(path).spec.model for path in find_records("runs")}
    assert {name: model.source for name, model in models.items()} == {
        f"{NAME}@c+model_ema": f"{NAME} with c.pth::model_ema",
        f"{NAME}@d": f"{NAME} with d.pth, entry net, names without module.",
    }
    assert main(["records", "verify", "runs", "--run-code"]) == 0
    for name, weights in ((f"{NAME}@d", state), (f"{NAME}@c+model_ema", averaged)):
        torch.save(weights, "alone.pth")
        assert models[name].parameters_sha256 == parameters_sha256(load_model(NAME, "alone.pth"))
    capsys.readouterr()


def test_a_full_disk_leaves_what_was_there(tmp_path, state):
    path, model = tmp_path / "c.safetensors", load_model(NAME)
    save_checkpoint(path, model, {"epoch": "1"})
    before = path.read_bytes()
    with pytest.raises(EvaluationError, match=r"c.safetensors .*intact") as caught, full_disk():
        save_checkpoint(path, model, {"epoch": "2"})
    assert caught.value.exit_code == 3
    assert [path.read_bytes()] == [before]
    assert list(tmp_path.iterdir()) == [path]
    assert_equal(load_model(NAME, path), state)
    with full_disk():
        write_atomic(tmp_path / "fits", b"x" * LIMIT)
    with pytest.raises(EvaluationError, match="cannot write"), full_disk():
        write_atomic(tmp_path / "new", b"x" * (LIMIT + 1))
    assert {path.name for path in tmp_path.iterdir()} == {"c.safetensors", "fits"}


@pytest.fixture
def deit(real_data):
    return real_data("models/deit_tiny_patch16_224_fp16.safetensors")


@pytest.mark.parametrize("size", [224, 160])
def test_real_deit_weights_load_as_timms_own_loader_does(deit, size):
    import timm
    from timm.models.vision_transformer import checkpoint_filter_fn

    with torch.random.fork_rng():
        oracle = timm.create_model("deit_tiny_patch16_224", img_size=size).eval()
    timm.models.load_checkpoint(oracle, str(deit), filter_fn=checkpoint_filter_fn)
    model = load_model("timm:deit_tiny_patch16_224", deit, img_size=size, resize_positions=size != 224)
    assert_equal(model, oracle.state_dict())
    x = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        torch.testing.assert_close(model(x), oracle((x - mean.view(3, 1, 1)) / std.view(3, 1, 1)))


def test_real_deit_weights_are_our_vits_too_and_no_symvits(deit):
    assert_equal(load_model("vit_tiny_patch16_224", deit), load_file(deit))
    with pytest.raises(BadInputError, match=r"ViT.*attn\.qkv"):
        load_model("symvit_tiny_patch16_224", deit)


def test_equal_weights_and_provenance_are_equal_files(tmp_path, fork):
    """The library writes its metadata in an order that varies from call to call."""
    names = [f"name{number}" for number in range(20)]
    for number in range(4):
        save_checkpoint(tmp_path / f"{number}.safetensors", nn.Linear(2, 1), dict.fromkeys(names[::-1] + names, "x"))
    files = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    heads = [one[: 8 + int.from_bytes(one[:8], "little")] for one in files]
    assert len(set(heads)) == 1
    assert read_header(tmp_path / "0.safetensors") == dict.fromkeys(sorted(names), "x")
    assert load_file(tmp_path / "0.safetensors")["weight"].shape == (1, 2)
