import pytest
import torch
from stand_ins import few_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import create_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.tasks import task_named
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train
from robustbench_kpca.training.machine import own_generators
from robustbench_kpca.training.objective import Objective, adversarial_images, keys_of
from robustbench_kpca.training.recipe import Adversarial, load_recipe
from robustbench_kpca.training.source import Batch


@pytest.fixture
def batch(fork):
    x, y = torch.rand(6, 3, 32, 32), torch.arange(6)
    return Batch(x, y, [str(i) for i in range(6)], 6)


def objective(model, **overrides):
    training = task_named("classification").compute.training
    return Objective(load_recipe("symvit_digits", overrides)[1], model, training, 10)


def test_clean_and_mixed_losses_are_smoothed_cross_entropy(batch):
    model = create_model("symvit_digits").train()
    losses, logits = objective(model, smoothing=0.1)(model, batch, 0)
    log = logits.log_softmax(1)
    own = log.gather(1, batch.y[:, None])[:, 0]
    assert torch.allclose(losses, -(0.9 * own + 0.1 * log.mean(1)), atol=1e-6)
    model = create_model("primal_vit_digits", layers=[1, 2]).train()
    plain, _ = objective(model, penalties={"ksvd": 0.0})(model, batch, 0)
    weighed, _ = objective(model, penalties={"ksvd": 0.5})(model, batch, 0)
    mean = torch.stack([model.blocks[index].attn.penalties["ksvd"] for index in (1, 2)]).mean()
    assert torch.allclose(weighed, plain + 0.5 * mean, atol=1e-6)
    with pytest.raises(BadInputError, match=r"'ksvd'.*penalties\.ksvd"):
        objective(model)(model, batch, 0)


TRADES = {
    "adversarial": {
        "norm": "linf", "eps": "8/255", "warmup_epochs": 0, "attack": "pgd", "trades_beta": 6.0,
        "options": {"steps": 3, "step_size": "0.3 eps", "random_start": True},
    }
}  # fmt: skip


def test_trades_adds_the_divergence_from_the_clean_answer(batch):
    model = create_model("symvit_digits").train()
    losses, logits = objective(model, **TRADES)(model, batch, 0)
    settings = Adversarial(**TRADES["adversarial"])
    moved = adversarial_images(model, batch.x, batch.y, keys_of(batch.ids, 0, 0), settings, epoch=0)
    assert float((moved - batch.x).abs().max()) == pytest.approx(8 / 255, rel=1e-4)
    clean, attacked = model(batch.x).softmax(1), model(moved).softmax(1)
    divergence = (clean * (clean.log() - attacked.log())).sum(1)
    expected = F.cross_entropy(model(batch.x), batch.y, reduction="none") + 6 * divergence
    assert torch.allclose(losses, expected, atol=1e-5)
    assert logits.shape == (6, 10)


def test_trades_adds_a_divergence_whatever_the_labels(batch):
    model = create_model("symvit_digits")
    moved = [
        adversarial_images(model, batch.x, y, keys_of(batch.ids, 0, 0), Adversarial(**settings), epoch=0)
        for settings in (TRADES["adversarial"], TRADES["adversarial"] | {"trades_beta": None})
        for y in (batch.y, batch.y.flip(0))
    ]
    assert torch.equal(moved[0], moved[1])
    assert not torch.equal(moved[2], moved[3])
    model = create_model("symvit_digits")
    moved = adversarial_images(
        model, batch.x * 4 - 1, batch.y, keys_of(batch.ids, 0, 0), Adversarial(**ONE_STEP), epoch=0
    )
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    assert float((moved - (batch.x * 4 - 1).clamp(0, 1)).abs().max()) <= 8 / 255 + 1e-6


MIX = {"mixup": {"mixup": 0.8, "cutmix": 0.0, "prob": 1.0, "switch_prob": 0.0}, "smoothing": 0.1}
ONE_STEP = {"norm": "linf", "eps": "8/255", "warmup_epochs": 0, "attack": "fgsm", "options": {}}


def test_the_attack_on_mixed_images_ascends_the_loss_of_their_mixed_targets(batch):
    """A linear model: the gradient of CE(Wx, t) by x is W' (softmax(Wx) - t)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    weight, bias = model[1].weight.detach(), model[1].bias.detach()
    seen = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    with own_generators():
        losses, logits = objective(model, adversarial=ONE_STEP, **MIX)(model, batch, 0)
    mixed = seen[0].flatten(1)  # before its only step
    own, other = batch.x.flatten(1), batch.x.flip(0).flatten(1)
    share = ((mixed - other) / (own - other)).median()
    hard = share * F.one_hot(batch.y, 10) + (1 - share) * F.one_hot(batch.y.flip(0), 10)
    soft = 0.9 * hard + 0.1 / 10
    gradient = ((mixed @ weight.T + bias).softmax(1) - soft) @ weight
    expected = (mixed + 8 / 255 * gradient.sign()).clamp(0, 1)
    assert torch.allclose(seen[-1].flatten(1), expected, atol=1e-5)
    assert torch.allclose(logits, expected @ weight.T + bias, atol=1e-4)
    assert torch.allclose(losses, -(soft * logits.log_softmax(1)).sum(1), atol=1e-3)


ADVERSARIAL = {
    "norm": "linf", "eps": "4/255", "warmup_epochs": 0, "attack": "pgd",
    "options": {"steps": 2, "step_size": "1/255", "random_start": True},
}  # fmt: skip
SQUARE = {"attack": "square", "options": {"queries": 5, "p_init": 0.8}}
MIXED = {"mixup": 0.8, "cutmix": 0.0, "prob": 1.0, "switch_prob": 0.5}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mixup": {"mixup": 0.0, "cutmix": 0.0, "prob": 1.0, "switch_prob": 0.5}}, "mixup or cutmix is above 0"),
        ({"adversarial": ADVERSARIAL | {"attack": "pgdd"}}, "'pgdd'"),
        ({"adversarial": ADVERSARIAL | {"attack": "segpgd"}}, "images of one label"),
        ({"adversarial": ADVERSARIAL | SQUARE | {"trades_beta": 6.0}}, "'square' with trades_beta"),
        ({"adversarial": ADVERSARIAL | SQUARE, "mixup": MIXED}, r"'square' with \[mixup\]"),
    ],
)
def test_what_cannot_be_trained_destroys_nothing(tmp_path, changed, message):
    left = tmp_path / "vit_digits.resume.pt"
    left.touch()
    with few_digits(64), pytest.raises(BadInputError, match=message):
        train(*load_recipe("vit_digits", changed), tmp_path, Options(fresh=True))
    assert left.is_file()
