"""Fine-tuning begins with the weights that the recipe names: against loading them and training by hand."""

import json

import pytest
import torch
from made_trainings import StoppedError, stop_after_an_epoch
from stand_ins import few_digits
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import create_model, load_data, load_model, place
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.models.checkpoint import save_checkpoint, state_sha256
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train
from robustbench_kpca.training.recipe import load_recipe
from robustbench_kpca.training.start import start

FEW = 64
SETTINGS = {
    "init_checkpoint": "symvit_digits", "epochs": 2, "batch_size": 32, "optimizer": "momentum", "lr": 0.05,
    "weight_decay": 0.0, "warmup_epochs": 0, "smoothing": 0.0, "max_shift": 0, "min_lr": 0.05,
}  # fmt: skip


def recipe(**more):
    return load_recipe("symvit_digits", SETTINGS | more)


def trained_by_hand(epochs):
    model = load_model("symvit_digits").train()
    with few_digits(FEW):
        images, labels = load_data("digits", "train").tensors()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        order = torch.randperm(FEW, generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    return model.state_dict()


def test_it_equals_loading_the_weights_and_training_by_hand(tmp_path):
    with few_digits(FEW):
        path = train(*recipe(), tmp_path)
    found, expected = load_model("symvit_digits", path).state_dict(), trained_by_hand(2)
    begun = load_model("symvit_digits").state_dict()
    assert all(torch.allclose(found[name], expected[name], atol=1e-6) for name in expected)
    assert not torch.equal(found["head.weight"], begun["head.weight"])
    header = read_header(path)
    assert header["init_sha256"] == header["initial_sha256"] == state_sha256(begun)
    assert "init_adapted" not in header


def test_a_head_for_other_classes_begins_anew(tmp_path, fork):
    notes = []
    loaded = recipe(**{"model_options.num_classes": 12, "epochs": 1})
    with few_digits(FEW):
        path = train(*loaded, tmp_path, Options(on_note=notes.append))
    assert notes == ["head.weight, head.bias begin anew: symvit_digits has another number of classes"]
    header = read_header(path)
    assert header["init_adapted"] == notes[0]
    assert header["init_sha256"] == state_sha256(load_model("symvit_digits").state_dict()) != header["initial_sha256"]
    model = create_model("symvit_digits", num_classes=12)
    drawn = {name: value.clone() for name, value in model.state_dict().items()}
    start(model, loaded[1])
    own, given = model.state_dict(), load_model("symvit_digits").state_dict()
    assert all(torch.equal(own[name], (drawn if name.startswith("head.") else given)[name]) for name in own)


def test_a_file_is_looked_for_beside_the_recipe(tmp_path, fork, monkeypatch):
    model = create_model("symvit_digits")
    save_checkpoint(tmp_path / "mine.safetensors", model, {})
    (tmp_path / "mine.toml").write_text(recipe()[2] + 'init_checkpoint = "mine.safetensors"\n')
    monkeypatch.chdir("/")
    other = create_model("symvit_digits")
    _, parsed, _ = load_recipe(str(tmp_path / "mine.toml"))
    assert start(other, parsed).initial_sha256 == state_sha256(model.state_dict())


RPC = {"attention": "rpc", "layers": "all", "iterations": 2, "lam": 3.0}
"""RPC at fine-tuning as in tables 11 and 12 of Teo & Nguyen (2024): two iterations in all layers."""


def tuned(name, **options):
    """A recipe that goes on with a bundled model under other options, and its model as it begins."""
    settings = {f"model_options.{key}": value for key, value in options.items()}
    _, parsed, _ = load_recipe(name, {"init_checkpoint": name} | settings)
    model = create_model(parsed.model, **parsed.model_options)
    return model, start(model, parsed)


@pytest.mark.parametrize("name", ["vit_digits", "softmax_lm_tiny"])
def test_rpc_takes_the_place_of_a_trained_attention(name, fork):
    model, begun = tuned(name, **RPC)
    options = {key: value for key, value in RPC.items() if key not in ("attention", "layers")}
    placed = place(load_model(name), "rpc", **options)
    assert state_sha256(model.state_dict()) == state_sha256(placed.state_dict()) == begun.initial_sha256
    layers = ", ".join(f"blocks.{index}.attn" for index in range(len(model.blocks)))
    assert begun.notes == (f"{layers} take from {name} what fits attention rpc",)
    trained = load_model(name).state_dict()["blocks.0.attn.qkv.weight"]
    assert torch.equal(model.blocks[0].attn.qkv.weight, trained[len(trained) // 3 :]), "K and V; queries are gone"


def test_other_layers_keep_their_attention_and_equal_parameters_are_no_adaptation(fork):
    model, begun = tuned("vit_digits", **RPC | {"layers": "last"})
    trained = load_model("vit_digits").state_dict()
    assert begun.notes == ("blocks.3.attn take from vit_digits what fits attention rpc",)
    assert all(
        torch.equal(value, trained[name]) for name, value in model.state_dict().items() if "blocks.3" not in name
    )
    model, begun = tuned("symvit_digits", **RPC)
    assert (begun.notes, begun.initial_sha256) == ((), begun.origin["init_sha256"])
    assert [block.attn.pursuit.iterations for block in model.blocks] == [2] * 4


def test_what_no_weights_fit_begins_anew_and_positions_are_resampled(fork):
    model, begun = tuned("vit_digits", attention="primal", layers="last", rank=4, rank_multi=2)
    fitted, new = begun.notes
    assert fitted == "blocks.3.attn take from vit_digits what fits attention primal"
    assert new.startswith("blocks.3.attn.lam, ")
    assert new.endswith("begin anew")
    assert "proj" not in new
    assert torch.equal(model.blocks[3].attn.proj.weight, load_model("vit_digits").blocks[3].attn.proj.weight)
    model = create_model("symvit_digits", img_size=48)
    assert start(model, recipe()[1]).notes == ("the position embedding of 17 tokens was resampled to 37",)
    given = load_model("symvit_digits").pos_embed
    grid = given[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    wider = F.interpolate(grid, (6, 6), mode="bicubic", antialias=True).permute(0, 2, 3, 1).flatten(1, 2)
    assert torch.allclose(model.pos_embed, torch.cat([given[:, :1], wider], 1), atol=1e-6)


def test_weights_of_this_attention_are_taken_whole(tmp_path, fork):
    model = create_model("vit_digits", **RPC)
    save_checkpoint(tmp_path / "rpc.safetensors", model, {"config": json.dumps(model.config)})
    asked = {"init_checkpoint": str(tmp_path / "rpc.safetensors"), "model_options": RPC}
    _, parsed, _ = load_recipe("vit_digits", asked)
    assert start(create_model("vit_digits", **RPC), parsed).initial_sha256 == state_sha256(model.state_dict())
    model.blocks[0].attn.qkv = torch.nn.Linear(48, 3 * 48)
    save_checkpoint(tmp_path / "rpc.safetensors", model, {"config": json.dumps(model.config)})
    with pytest.raises(BadInputError, match="mis-shaped"):
        start(create_model("vit_digits", **RPC), parsed)


@pytest.fixture
def table(tmp_path):
    folder = tmp_path / "SST-2"
    folder.mkdir()
    rows = ["a good film\t1", "a bad film\t0", "good , not bad\t1", "bad , not good\t0"] * 4
    for part in ("train", "val"):
        (folder / f"{part}.tsv").write_text("\n".join(["sentence\tlabel", *rows, ""]))
    (folder / "test.tsv").write_text("index\tsentence\n0\tof GLUE, without labels\n")
    return folder


TEXTS = {"model_options.embed_dim": 8, "model_options.vocabulary": 20, "epochs": 1, "batch_size": 8}


def test_a_text_classifier_gets_rpc_and_goes_on_training(tmp_path, table):
    words = Options(data=table)
    path = train(*load_recipe("softmax_texts", TEXTS | {"epochs": 2, "warmup_epochs": 0}), tmp_path, words)
    more = {f"model_options.{key}": value for key, value in RPC.items()} | {"init_checkpoint": str(path)}
    _, parsed, text = load_recipe("softmax_texts", TEXTS | more)
    tuned_path = train("tuned", parsed, text, tmp_path, words)
    header = read_header(tuned_path)
    assert "val_accuracy" in header
    assert "test_accuracy" not in header
    assert header["init_adapted"] == f"blocks.0.attn, blocks.1.attn take from {path} what fits attention rpc"
    model = load_model("softmax_seq_texts", tuned_path, embed_dim=8, vocabulary=20, **RPC)
    before = load_model("softmax_seq_texts", path, embed_dim=8, vocabulary=20)
    assert [block.attn.pursuit.lam for block in model.blocks] == [3.0, 3.0]
    assert not torch.equal(model.head.weight, before.head.weight)
    (table / "train.tsv").write_text("sentence\tlabel\nother words here\t1\nand more\t0\n")
    with pytest.raises(BadInputError, match="another vocabulary than data 'texts'"):
        train("again", parsed, text, tmp_path, words)


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [("vit_digits", r"init_checkpoint vit_digits does not fit ViT: .*mis-shaped"), ("nowhere.pt", "nowhere.pt")],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(tmp_path, checkpoint, message):
    with pytest.raises(BadInputError, match=message) as refused, few_digits(FEW):
        train(*recipe(init_checkpoint=checkpoint), tmp_path / "runs")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_one_kind_of_initial_weights_which_resuming_keeps(tmp_path, fork):
    save_checkpoint(tmp_path / "mine.safetensors", create_model("symvit_digits"), {})
    loaded = recipe(init_checkpoint=str(tmp_path / "mine.safetensors"))
    with few_digits(FEW), pytest.raises(StoppedError):
        train(*loaded, tmp_path, Options(on_epoch=stop_after_an_epoch))
    save_checkpoint(tmp_path / "mine.safetensors", create_model("symvit_digits"), {})
    with few_digits(FEW), pytest.raises(BadInputError, match=r"other weights.*--fresh"):
        train(*loaded, tmp_path, Options(resume=True))
    with pytest.raises(BadInputError, match="encoder_checkpoint"):
        recipe(encoder_checkpoint="vit_digits")


def test_the_number_of_threads_is_set_recorded_and_remarked_upon(tmp_path):
    notes, seen = [], []

    def on_epoch(*_):
        seen.append(torch.get_num_threads())
        raise StoppedError

    with few_digits(16):
        with pytest.raises(StoppedError):
            train(*recipe(threads=2), tmp_path, Options(on_epoch=on_epoch, on_note=notes.append))
        assert (seen, torch.get_num_threads(), notes) == ([2], 1, [])
        name, parsed, text = recipe(threads=2)
        other = parsed.model_copy(update={"threads": 1})  # as if torch had chosen another number
        path = train(name, other, text, tmp_path, Options(resume=True, on_note=notes.append))
        assert [machine["threads"] for machine in json.loads(read_header(path)["machines"])] == [2, 1]
        train(name, parsed, text, tmp_path, Options(fresh=True, on_note=notes.append))
    assert ["began on another machine (threads 2, now 1)" in notes[0], "before on another" in notes[1]] == [True, True]
    assert len(notes) == 2
