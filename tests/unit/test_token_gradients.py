"""PNA, TGR and means over iterates: which gradient that is, against hooks on an unfused model, and what is refused."""

import numpy as np
import pytest
import torch
from attack_checks import rand, scenario
from test_backward import RPCAttentionNet
from torch import nn

from robustbench_kpca import attack, load_data, load_model, place
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.backward import backward_of
from robustbench_kpca._engine.attack_loop.cost import most_passes
from robustbench_kpca._engine.attack_loop.engine import Engine
from robustbench_kpca._engine.attack_loop.token_gradients import without_extremes
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.models.altered import altered
from robustbench_kpca.tasks import task_named

CPU = torch.device("cpu")


def loss(logits):
    return nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long), reduction="none")


def gradient(model, x, setting):
    shown = Runner(model.eval(), len(x), CPU)
    with backward_of(setting, shown):
        return shown.gradient(x, loss)


@pytest.fixture
def vit(fork):
    timm = pytest.importorskip("timm")
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, depth=3, num_classes=4, embed_dim=24, num_heads=3
    )
    for block in model.blocks:
        nn.init.normal_(block.attn.qkv.weight, std=0.3)
    return model.eval()


def test_pna_is_the_gradient_without_the_maps(vit):
    """Without timm's fused path, a hook on `attn_drop` takes the map out of the graph."""
    x = rand(0, 3, 3, 16, 16, dtype=torch.float32)
    plain = gradient(vit, x, None)
    ours = gradient(vit, x, "pna")
    for block in vit.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, __, out: out.detach())
    at = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(vit(at)).sum(), at)
    assert torch.allclose(ours[1], expected, atol=1e-6)
    assert torch.equal(ours[2], plain[2]), "answers stay those of the model"
    assert not torch.allclose(ours[1], plain[1], atol=1e-3 * float(plain[1].abs().max()))


def of_the_program(model, image):
    """The authors' hooks (methods.py), for a batch of one image."""

    def on_map(module, given, _):
        grad = 0.25 * given[0].clone()
        _, heads, height, width = grad.shape
        flat = grad.numpy()[0].reshape(heads, height * width)
        for at in (np.argmax(flat, 1), np.argmin(flat, 1)):
            row, column = at // height, at % height
            grad[:, range(heads), row, :] = 0.0
            grad[:, range(heads), :, column] = 0.0
        return (grad,)

    def on_tokens(factor):
        def hook(module, given, _):
            grad = factor * given[0].clone()
            channels = range(grad.shape[2])
            largest, smallest = np.argmax(grad.numpy()[0], 0), np.argmin(grad.numpy()[0], 0)
            grad[:, largest, channels] = 0.0
            grad[:, smallest, channels] = 0.0
            return (grad,)

        return hook

    hooks = []
    for block in model.blocks:
        block.attn.fused_attn = False
        hooks.append(block.attn.attn_drop.register_full_backward_hook(on_map))
        hooks.append(block.attn.qkv.register_full_backward_hook(on_tokens(0.75)))
        hooks.append(block.mlp.register_full_backward_hook(on_tokens(0.5)))
    at = image[None].clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(model(at)).sum(), at)
    for hook in hooks:
        hook.remove()
    return found[0]


@pytest.mark.parametrize("package", [False, True])
def test_tgr_is_the_authors_program_image_by_image(vit, package):
    x = rand(1, 3, 3, 16, 16, dtype=torch.float32)
    plain = gradient(vit, x, None)
    expected = torch.stack([of_the_program(vit, image) for image in x])
    for block in vit.blocks:
        block.attn.fused_attn = True
    ours = gradient(place(vit, "softmax", layers="all") if package else vit, x, "tgr")
    assert torch.allclose(ours[1], expected, atol=1e-5 * float(expected.abs().max()))
    assert torch.allclose(ours[2], plain[2], atol=1e-5)
    assert not torch.allclose(ours[1], plain[1], atol=1e-2 * float(plain[1].abs().max()))


def test_extremes_by_hand():
    given = torch.tensor([[3.0, -1.0], [1.0, 5.0], [-2.0, 0.0], [0.5, 2.0]])[None]
    assert without_extremes(given)[0].tolist() == [[0, 0], [1, 0], [0, 0], [0.5, 2]]


@pytest.mark.parametrize("rule", ["pna", "tgr"])
def test_the_gradient_of_bundled_models_changes(rule):
    images, _ = load_data("digits", limit=2).tensors()
    for name in ("vit_digits", "rpc_symvit_digits"):
        model = load_model(name)
        shown = [gradient(model, images, setting)[1] for setting in (None, rule, None)]
        assert torch.equal(shown[0], shown[2]), "the model is as it was"
        assert nn.functional.cosine_similarity(shown[0].flatten(), shown[1].flatten(), dim=0) < 0.99


def test_what_would_leave_the_gradient_as_it_was_is_refused(fork):
    x = rand(2, 2, 3, 32, 32, dtype=torch.float32)
    unmixed = place(load_model("vit_digits"), "temperature", layers="all", mixing="identity")
    with pytest.raises(BadInputError, match="changes nothing"):
        gradient(unmixed, x, "pna")


@pytest.mark.parametrize("rule", ["pna", "tgr"])
def test_models_without_maps_are_refused(rule, fork):
    with pytest.raises(BadInputError, match="attention maps of"):
        gradient(nn.Sequential(nn.Flatten(), nn.Linear(3072, 3)), rand(2, 2, 3, 32, 32, dtype=torch.float32), rule)


def test_tgr_needs_perceptrons():
    with pytest.raises(BadInputError, match="perceptrons"):
        gradient(RPCAttentionNet(), rand(0, 2, 3, 6, 6, dtype=torch.float32), "tgr")


def test_images_transfer():
    """Made on one network, they break another more than the clean images do; all lie in the ball."""
    images, labels = load_data("digits", limit=24).tensors()
    target = load_model("symvit_digits")
    before = (target(images).argmax(1) == labels).double().mean()
    for protocol in ("pna-linf-16_255", "tgr-linf-16_255"):
        made = attack(load_model("vit_digits"), images, labels, protocol, batch_size=24)
        assert (made.images - images).abs().max() <= 16 / 255 + 1e-6
        assert (target(made.images).argmax(1) == labels).double().mean() < before - 0.2


def test_the_mean_over_iterates_is_that_of_their_gradients():
    model, x = RPCAttentionNet(), rand(0, 4, 3, 6, 6, dtype=torch.float32)
    plain = gradient(model, x, None)
    mean = gradient(model, x, "iterations=1,2,3,4")
    each = [gradient(model, x, f"iterations={number}")[1] for number in (1, 2, 3, 4)]
    assert torch.equal(mean[2], plain[2])
    assert torch.allclose(mean[1], torch.stack(each).mean(0), atol=1e-7)
    assert not torch.allclose(mean[1], plain[1], atol=1e-4)
    at = x.clone().requires_grad_()
    answers = []
    for number in (1, 2, 3, 4):
        with altered(model, f"iterations={number}") as fewer:
            answers.append(fewer(at))
    weights = torch.autograd.functional.jacobian(lambda logits: loss(logits).sum(), plain[2])
    (expected,) = torch.autograd.grad((torch.stack(answers).mean(0) * weights).sum(), at)
    assert torch.allclose(mean[1], expected, atol=1e-6)


STAGE = {"attack": "pgd", "restarts": 1, "steps": 3, "step_size": "0.25 eps", "random_start": False}


@pytest.mark.parametrize(("setting", "twins"), [("iterations=1,2,3,4", 4), ("iterations=2", 1), ("pna", 1)])
def test_passes_of_a_mean_are_counted(setting, twins):
    protocol, made = scenario([STAGE | {"backward_of": setting}], eps=1e-4, policy="last"), []
    model, (images, labels) = load_model("rpc_symvit_digits"), load_data("digits", limit=2).tensors()
    success = task_named("classification").compute.success
    Engine(Runner(model, 2, CPU), protocol, success, ["0", "1"], 0, made.append).run(iter([([0, 1], images, labels)]))
    counted = {(sample.forwards, sample.backwards) for sample in made}
    assert counted == {(4 + 3 * twins, 3 * twins)}
    assert most_passes(protocol, 10).forwards == 1 + 4 + 3 * twins


@pytest.mark.parametrize(
    ("setting", "said"), [("iterations=1,1", "every value once"), ("iterations=1,", "OPTION=VALUE")]
)
def test_lists_that_mean_nothing_are_refused(setting, said):
    with pytest.raises(BadInputError, match=said):
        gradient(RPCAttentionNet(), rand(0, 2, 3, 6, 6, dtype=torch.float32), setting)
