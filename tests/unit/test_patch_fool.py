"""Patch-Fool and the attention maps that it reads: transcriptions, surgery by hand, models whose maps are not read."""

from functools import partial

import pytest
import torch
from attack_checks import USUAL, drive, passes, rand
from torch import nn

from robustbench_kpca import evaluate, load_data, load_model, place
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.attention_maps import mapped
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca._engine.attack_loop.query import CountingQuery, Worst
from robustbench_kpca._engine.attack_loop.sets import set_of
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attacks.patch_fool import PatchFool, operated, taken
from robustbench_kpca.attacks.shared.draws import uniforms
from robustbench_kpca.protocols.scenario import Stage
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.tasks import task_named
from robustbench_kpca.verification.conformance.attack import (
    Case,
    costs,
    is_independent,
    is_seeded,
    keeps_ball_and_state,
    resumes,
)
from robustbench_kpca.verification.conformance.plain_query import Attentive, Wavy

OPTIONS = {
    "steps": 4, "step_size": 0.22, "decay": 0.5, "every": 2, "weight": 0.002, "layers": 5, "rank": "attention",
    "rank_layer": 4, "surgery": "textbook",
}  # fmt: skip
STAGE = {"attack": "patch_fool", "restarts": 1, **OPTIONS}
TOKEN = Threat("patches", 1, patch=8, corners="grid")


@pytest.mark.parametrize("side", ["package", "timm", "fused timm"])
def test_maps_are_those_of_an_unfused_pass(side, fork):
    """Timm's own layers without their fused path hand A to `attn_drop`, where a hook reads it."""
    timm = pytest.importorskip("timm")
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, num_classes=4, embed_dim=24, num_heads=3
    ).eval()
    x, seen = rand(1, 2, 3, 32, 32, dtype=torch.float32), []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    logits = model(x)
    expected, shown = seen[:], model
    for block in model.blocks:
        block.attn.fused_attn = side == "fused timm"
    if side == "package":
        shown = place(model, "softmax", layers="all")
    with mapped(shown) as maps:
        again = shown(x)
    assert torch.allclose(again, logits, atol=1e-5)
    assert len(maps) == 3
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(maps, expected, strict=True))
    assert all("attend" not in vars(module) for module in shown.modules())
    assert not any(module._forward_pre_hooks for module in shown.modules())


@pytest.mark.parametrize("name", ["rpc_symvit_digits", "symvit_digits"])
def test_maps_of_the_package_mix_the_values(name):
    model, (images, _) = load_model(name), load_data("digits", limit=2).tensors()
    plain = model(images)
    with mapped(model, lambda a: a) as maps:
        assert torch.allclose(model(images), plain, atol=1e-4)
    with mapped(model, torch.zeros_like):
        assert not torch.allclose(model(images), plain, atol=0.1)
    assert all(torch.allclose(a.sum(-1), torch.ones(()), atol=1e-5) for a in maps)
    assert {a.shape[2:] for a in maps} == {(17, 17)}


def test_the_map_of_rpc_is_that_of_its_last_iteration():
    model, (images, _) = load_model("rpc_symvit_digits"), load_data("digits", limit=2).tensors()
    kept = []
    model.blocks[0].attn.observer = kept.append
    model(images)
    model.blocks[0].attn.observer = None
    with mapped(model) as maps:
        model(images)
    last = kept[-1]
    expected = (last.inner @ last.inner.transpose(-2, -1) / last.inner.shape[-1] ** 0.5).softmax(-1)
    assert len(kept) > 1
    assert torch.allclose(maps[0], expected, atol=1e-6)


@pytest.mark.parametrize("attention", ["pro", "neutreno"])
def test_attention_that_is_no_matrix_times_values_is_refused(attention, fork):
    model = place(load_model("vit_digits"), attention, layers="all")
    with pytest.raises(BadInputError, match="something else of V"), mapped(model):
        model(rand(0, 1, 3, 32, 32, dtype=torch.float32))


def test_layers_that_are_not_seen_to_run_are_refused():
    model = load_model("vit_digits")
    with pytest.raises(BadInputError, match="seen to run"), mapped(model):
        pass
    assert "attend" not in vars(model.blocks[0].attn)


@pytest.mark.parametrize("model", [Wavy((3, 8, 8)), nn.Identity(), lambda x: x])
def test_models_without_maps_are_refused(model):
    with pytest.raises(BadInputError, match="attention maps of no attention"), mapped(model):
        pass


def test_surgery_by_hand():
    """The case of c = (2, 0), g = (-1, 1): g . c = -2, and |c| = 2."""
    g, c = torch.tensor([-1.0, 1.0]).view(1, 1, 1, 2), torch.tensor([2.0, 0.0]).view(1, 1, 1, 2)
    assert operated(g, c, "textbook").flatten().tolist() == [0, 1]
    assert operated(g, c, "released").flatten().tolist() == [1, 1]
    assert torch.equal(operated(-g, c, "released"), -g)


def test_layers_of_the_loss():
    assert taken(12, 5) == [1, 2, 3, 4, 5]
    assert (taken(12, 2), taken(4, 5), taken(2, 5), taken(1, 5)) == ([1, 2], [1], [1], [0])


def hooked(model, x):
    """Return logits and maps of a model of the package, from queries and keys as they leave the linear layer."""
    maps, hooks = [], []

    def read(module, _, out):
        q, k, _ = out.view(len(out), out.shape[1], 3, 3, -1).permute(2, 0, 3, 1, 4)
        maps.append((q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1))

    for block in model.blocks:
        assert block.attn.num_heads == 3
        hooks.append(block.attn.qkv.register_forward_hook(read))
    logits = model(x)
    for hook in hooks:
        hook.remove()
    return logits, maps


def transcribed(model, image, label, key, options):
    """Patch-Fool on one image as the authors' program has it, with our draws and with the first layer given."""
    _, maps = hooked(model, image[None])
    scores = maps[options["rank_layer"]].mean(1).mean(1)[0, 1:]
    patch = int(scores.argmax())
    row, column = divmod(patch, 4)
    mask = torch.zeros_like(image)
    mask[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 1
    delta = uniforms(torch.tensor([key]), torch.tensor([0]), image.numel()).view(image.shape).float()
    delta.requires_grad_()
    optimizer = torch.optim.Adam([delta], lr=options["step_size"])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, options["every"], options["decay"])
    for _ in range(options["steps"]):
        logits, maps = hooked(model, (image * (1 - mask) + delta * mask)[None])
        loss = nn.functional.cross_entropy(logits, label[None])
        (grad,) = torch.autograd.grad(loss, delta, retain_graph=True)
        own, total = grad.flatten(), grad.flatten().clone()
        for layer in range(1, len(maps) // 2):
            attention = maps[layer].mean(1)[0, :, 1 + patch].log().mean()
            g = torch.autograd.grad(attention, delta, retain_graph=True)[0].flatten()
            if nn.functional.cosine_similarity(g, own, dim=0) < 0:
                scale = own.norm() if options["surgery"] == "released" else own.norm() ** 2
                g = g - (g @ own) / scale * own
            total += options["weight"] * g
        optimizer.zero_grad()
        delta.grad = -total.view(delta.shape)
        optimizer.step()
        schedule.step()
        delta.data.clamp_(0, 1)
    return (image * (1 - mask) + delta * mask).detach()


@pytest.mark.parametrize("surgery", ["textbook", "released"])
def test_it_equals_a_transcription(surgery):
    model, (images, labels) = load_model("vit_digits"), load_data("digits", limit=3).tensors()
    options = OPTIONS | {"rank_layer": 2, "weight": 0.5, "surgery": surgery}
    state = drive(PatchFool(**options), model, images, labels, TOKEN, None, keys=torch.arange(3) + 7)
    for row in range(3):
        expected = transcribed(model, images[row], labels[row], row + 7, options)
        assert torch.allclose(state["x"][row], expected, atol=2e-4)
    assert bool(state["finished"].all())


def test_the_attention_term_and_its_surgery_matter():
    model, (images, labels) = load_model("vit_digits"), load_data("digits", limit=3).tensors()
    ends = [
        drive(PatchFool(**OPTIONS | given), model, images, labels, TOKEN, None)["x"]
        for given in ({"weight": 0.0}, {"weight": 0.5}, {"weight": 0.5, "surgery": "released"})
    ]
    assert all((ends[0] - other).abs().max() > 0.01 for other in ends[1:])
    assert (ends[1] - ends[2]).abs().max() > 1e-4


@pytest.mark.parametrize("corners", ["grid", "anywhere"])
@pytest.mark.parametrize("rank", ["attention", "gradient"])
def test_promises(corners, rank):
    threat = Threat("patches", 2, patch=2, corners=corners)
    stage = Stage.model_validate(STAGE | {"rank": rank})
    for promise in (keeps_ball_and_state, is_independent, resumes, is_seeded):
        promise(partial(build_attack, stage), Case.usual(threat, tokens=True))
    costs(stage, threat)


@pytest.mark.parametrize("rank", ["attention", "gradient"])
def test_what_a_sample_that_stands_costs(rank):
    x = rand(3, 5, 2, 6, 6, dtype=torch.float32)
    model = Attentive((2, 6, 6), dtype=torch.float32)
    model.last.bias.data += torch.tensor([100.0, 0, 0])
    counts, broken = passes(
        STAGE | {"rank": rank}, "patches", 1, model, x, torch.zeros(5, dtype=torch.int64), patch=2, corners="grid"
    )
    assert not any(broken)  # two layers: the loss is on one of them
    extra = rank == "gradient"
    assert set(counts) == {(1 + 4 * 2 + 1, 4 * 2 + extra)}


def asked(images, labels, batch_size, stage=None):
    model, threat = load_model("vit_digits"), Threat("linf", 0.1)
    worst = Worst(images.clone(), torch.zeros(len(labels)).double(), labels.clone(), labels.clone())
    return CountingQuery(
        Runner(model, batch_size, torch.device("cpu")),
        InputSpace.of(model, "pixel"),
        task_named("classification").compute.success,
        "a",
        set_of(threat),
        clean=images - 0.01 * (images > 0.5),
        labels=labels,
        truth=labels,
        worst=worst,
        stops=False,
        stage=None if stage is None else Stage.model_validate(stage),
    )


def of_logits(logits):
    return logits.logsumexp(1)


def of_maps(layer, logits, maps):
    return maps[layer].clamp_min(1e-9).log().mean((1, 2, 3)) + 0 * logits[:, 0]


def test_losses_that_share_a_batch_see_their_own_rows():
    """With batches of 2 the losses take turns, with batches of 8 they lie side by side."""
    images, labels = load_data("digits", limit=2).tensors()
    losses = [partial(of_maps, layer) for layer in (1, 2, 3)]
    ways = [[*asked(images, labels, size).gradients_on_attention(images, losses)] for size in (2, 8)]
    alone = [next(iter(asked(images, labels, 2).gradients_on_attention(images, [loss]))) for loss in losses]
    for found in ways:
        for one, other in zip(found, alone, strict=True):
            assert torch.allclose(one[0], other[0], atol=1e-4)
            assert torch.allclose(one[1], other[1], atol=1e-4)
    assert (alone[0][1] - alone[1][1]).abs().max() > 0.01


def test_the_loss_on_attention_goes_to_the_rows_of_its_images():
    images, labels = load_data("digits", limit=2).tensors()
    stage = {"attack": "mim", "restarts": 1, "attention_loss": 10.0}
    alone, together = (
        [*asked(images, labels, size, stage).gradient_of_each(images, [of_logits, of_logits])] for size in (2, 8)
    )
    for one, other in zip(alone, together, strict=True):
        assert torch.allclose(one[1], other[1], atol=1e-3)


def test_balls_and_models_without_attention_are_refused(tmp_path, few_resamples, fork):
    x, y = torch.zeros(1, 3, 4, 4), torch.zeros(1, dtype=torch.long)
    for threat in (Threat("linf", 0.1), Threat("l0", 3)):
        with pytest.raises(BadInputError, match="norm = "):
            PatchFool(**OPTIONS).start(x, y, threat, y)
    lines = [f"{key} = {value!r}" for key, value in STAGE.items()]
    usual = USUAL.replace('"linf"', '"patches"').replace('"8/255"', "1") + 'patch = 2\ncorners = "grid"\n'
    (tmp_path / "p.toml").write_text(usual + "\n[[stage]]\n" + "\n".join(lines) + "\n")
    images = rand(3, 4, 3, 4, 4, dtype=torch.float32)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval()
    with pytest.raises(BadInputError, match="attention maps of no attention"):
        evaluate(model, images, model(images).argmax(1), protocol=tmp_path / "p.toml", audit=False, name="plain")
