"""Segmentation is trained on what its recipe says: windows, losses, rates and scores against hand-made cases."""

import csv
import math

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from made_trainings import recipe_text, whole_and_resumed
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import create_model, load_model
from robustbench_kpca._core.errors import BadInputError, UnknownNameError
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.scenes import ArrayScenes
from robustbench_kpca.metrics.shared.pixels import miou
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.models.checkpoint import save_checkpoint
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.segmentation.counts import pixel_counts
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train
from robustbench_kpca.training.machine import own_generators
from robustbench_kpca.training.objective import Objective
from robustbench_kpca.training.recipe import Recipe, SceneWindows, load_recipe
from robustbench_kpca.training.run import schedule
from robustbench_kpca.training.scene_files import BRIGHTNESS, SceneSource, Window, crop, distort, resize, tiles
from robustbench_kpca.training.source import Batch
from robustbench_kpca.types import IGNORE

TRAINING = task_named("segmentation").compute.training
PLAIN = {
    "crop": 16, "resize": [], "scale": [1.0, 1.0], "most_of_one": 1.0, "hflip": 0.0, "photometric": False, "workers": 0,
}  # fmt: skip
OPTIONS = "{ img_size = 16, patch_size = 4, embed_dim = 8, depth = 2, num_classes = 3, decoder_dropout = 0.1 }"
TEXT = recipe_text("rpc_symvit_shapes", "shapes", OPTIONS, seed=3, epochs=3, lr=0.1, min_lr=0.01, schedule="polynomial")
TEXT += """
[scenes]
crop = 16
resize = []
scale = [0.5, 2.0]
most_of_one = 0.75
hflip = 0.5
photometric = true
workers = 0
"""


def rng(seed=0):
    return np.random.default_rng(seed)


def scene(height, width, classes=3, seed=0):
    draws = rng(seed)
    mask = draws.integers(IGNORE, classes, (height, width)).astype(np.int16)
    return draws.integers(0, 256, (height, width, 3), dtype=np.uint8), mask


def stand_in(source, split):
    """Ten scenes of odd sizes: the class of a pixel is its brightest channel."""
    images = [scene(18 + i, 40 - i, seed=i)[0] for i in range(10 if split == "train" else 3)]
    masks = [image.argmax(2).astype(np.int16) for image in images]
    for mask in masks:
        mask[0] = IGNORE
    return ArrayScenes(images, masks, ("red", "green", "blue"), name=source, split=split)


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setattr("robustbench_kpca.training.source.load_data", stand_in)
    (tmp_path / "small.toml").write_text(TEXT)
    return load_recipe(str(tmp_path / "small.toml"))


def test_losses_are_the_mean_over_pixels_that_count(fork):
    logits, labels = torch.randn(3, 5, 4, 6), torch.randint(0, 5, (3, 4, 6))
    labels[0, :2], labels[1] = IGNORE, IGNORE
    kept = labels != IGNORE
    by_hand = -logits.log_softmax(1).gather(1, labels.clamp_min(0)[:, None])[:, 0][kept].mean()
    losses = TRAINING.losses(logits, labels, 0.0) * (3 / kept.sum())
    assert losses.shape == (3,)
    assert losses[1] == 0
    assert torch.allclose(losses.mean(), by_hand, atol=1e-6)
    assert torch.allclose(losses.mean(), F.cross_entropy(logits, labels, ignore_index=IGNORE), atol=1e-6)
    none = Batch(logits, torch.full_like(labels, IGNORE), "abc", 3, torch.tensor(3.0))
    recipe = load_recipe("symvit_shapes")[1]
    assert Objective(recipe, nn.Identity(), TRAINING, 5)(nn.Identity(), none, 0)[0].tolist() == [0, 0, 0]


class OneOf(Accelerator):
    """One process of several, for a source that asks who it is and reduces sums; `given` is what each has reduced."""

    num_processes = process_index = 0
    device = torch.device("cpu")

    def __init__(self, process_index, given):
        self.num_processes, self.process_index, self.given = len(given), process_index, given
        self.reductions = 0

    def reduce(self, value):
        self.given[self.process_index].append(value)
        self.reductions += 1
        return sum(values[self.reductions - 1] for values in self.given if len(values) >= self.reductions)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_loss_does_not_depend_on_how_many_processes_share_a_batch(small, fork, processes):
    """Its average over them, as of their gradients, is the mean over all pixels of the batch that count."""
    recipe = small[1].model_copy(update={"scenes": SceneWindows(**PLAIN | {"scale": [0.2, 0.6]})})
    head = torch.nn.Conv2d(3, 3, 1)
    whole = next(SceneSource(recipe, None, Accelerator(cpu=True)).epoch(0))
    expected = F.cross_entropy(head(whole.x), whole.y, ignore_index=IGNORE)
    assert len({int((labels != IGNORE).sum()) for labels in whole.y}) > 2, "the images weigh differently"
    given = [[] for _ in range(processes)]
    for index in range(processes):  # what each would send to the others
        next(SceneSource(recipe, None, OneOf(index, given)).epoch(0))
    shares = []
    for index in range(processes):
        batch = next(SceneSource(recipe, None, OneOf(index, given)).epoch(0))
        assert len(batch.y) == 4 // processes
        losses, _ = Objective(recipe, head, TRAINING, 3)(head, batch, 0)
        shares.append(losses.sum() * (processes / batch.count))  # as in the loop
    assert torch.allclose(sum(shares) / processes, expected, rtol=1e-5)


def test_one_miou_by_hand():
    truth = torch.tensor([[[0, 0, 1, 1], [2, 2, IGNORE, IGNORE]]])
    guess = torch.tensor([[[0, 1, 1, 1], [0, 2, 3, 0]]])
    logits = F.one_hot(guess, 5).permute(0, 3, 1, 2).float()
    found = TRAINING.counts(logits, truth)
    assert found.tolist() == [[1, 2, 1, 0, 0], [2, 2, 2, 0, 0], [2, 3, 1, 0, 0]]
    reached = TRAINING.score(found, 1.0)
    assert reached["accuracy"] == pytest.approx(4 / 6)
    assert reached["miou"] == pytest.approx((1 / 3 + 2 / 3 + 1 / 2) / 3)  # classes 3 and 4 do not occur
    assert TRAINING.score(torch.zeros(3, 5, dtype=torch.float64), 1.0) == {}
    classifier = task_named("classification").compute.training
    found = classifier.counts(torch.eye(4)[[0, 1, 1]], torch.tensor([0, 1, 2]))
    assert classifier.score(found, 1.0) == {"accuracy": pytest.approx(2 / 3)}
    # A class that is only predicted counts 0, so mIoU is (3/4 + 3/4 + 0) / 3, not the mean over two classes.
    truth = torch.tensor([[[0] * 4, [1] * 4]])
    predicted = torch.tensor([[[0, 0, 0, 2], [1, 1, 1, 2]]])
    found = TRAINING.counts(F.one_hot(predicted, 4).permute(0, 3, 1, 2).float(), truth)
    assert TRAINING.score(found, 1.0)["miou"] == pytest.approx(0.5)
    rows = pixel_counts(truth[0].short().numpy(), predicted[0].short().numpy())
    assert float(miou(*rows[:, 1:].T)) == pytest.approx(0.5)


@pytest.mark.parametrize("size", [(10, 40), (37, 33), (32, 48)])
def test_tiles_show_every_pixel_once(size):
    image, _ = scene(*size)
    mask = np.arange(size[0] * size[1]).reshape(size).astype(np.int16)
    seen = []
    for pixels, classes in tiles(image, mask, 16):
        assert pixels.shape[:2] == classes.shape
        assert classes.shape == (min(16, size[0]), min(16, size[1]))
        kept = classes != IGNORE
        assert np.array_equal(pixels[kept], image.reshape(-1, 3)[classes[kept]]), "image and mask were cut apart"
        seen += classes[kept].tolist()
    assert sorted(seen) == list(range(mask.size))


def test_image_and_mask_stay_together():
    """The class of a pixel is its brightest channel, before and after."""
    image = np.zeros((40, 50, 3), np.uint8)
    mask = rng().integers(0, 3, (5, 5)).repeat(8, 0).repeat(10, 1).astype(np.int16)
    image[np.arange(40)[:, None], np.arange(50), mask] = 200
    window = Window(SceneWindows(**PLAIN | {"scale": [0.5, 2.0], "hflip": 0.5}), (0.1, 0.2, 0.3))
    for seed in range(20):
        pixels, classes = window(image, mask, rng(seed))
        assert (pixels.dtype, pixels.shape) == (np.float32, (3, 16, 16))
        assert (classes.dtype, classes.shape) == (np.int64, (16, 16))
        inner = np.ones_like(classes, bool)  # off the borders of classes, which interpolation mixes
        for axis in (0, 1):
            for step in (-2, -1, 1, 2):
                inner &= np.roll(classes, step, axis) == classes
        assert inner.any()
        assert np.array_equal(pixels.argmax(0)[inner], classes[inner])


def test_windows_are_filled_up_flipped_and_ignored_outside(small):
    recipe = small[1].model_copy(update={"scenes": SceneWindows(**PLAIN | {"scale": [0.25, 0.25]})})
    batch = next(SceneSource(recipe, None, Accelerator(cpu=True)).epoch(0))
    with own_generators():
        model = create_model(recipe.model, **recipe.model_options)
    seen = batch.x - model.pixel_mean
    assert (batch.y[:, 15] == IGNORE).all(), "the images reach to row 7 at most"
    assert seen[:, :, 15].abs().max() < 1e-6
    assert seen[:, :, 0, 0].abs().max() > 0.1
    image, mask = scene(16, 16)
    settings = SceneWindows(**PLAIN | {"hflip": 0.25})
    flipped = sum(not np.array_equal(Window(settings, (0, 0, 0))(image, mask, rng(i))[1], mask) for i in range(400))
    assert 60 <= flipped <= 140  # 100 expected, standard deviation 8.7
    image, mask = scene(10, 12)
    pixels, classes = Window(SceneWindows(**PLAIN), (0.1, 0.2, 0.3))(image, mask, rng())
    assert np.array_equal(classes[:10, :12], mask)
    assert (classes[10:] == IGNORE).all()
    assert (classes[:, 12:] == IGNORE).all()
    assert np.allclose(pixels[:, 10:, 12:], np.array([0.1, 0.2, 0.3])[:, None, None])
    assert np.allclose(pixels[:, :10, :12].transpose(1, 2, 0) * 255, image, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "sides", "expected"),
    [
        ((360, 480), [512, 2048], (512, 683)),
        ((512, 683), [512, 2048], (512, 683)),
        ((100, 900), [512, 2048], (228, 2048)),
        ((900, 100), [512, 2048], (2048, 228)),
        ((30, 40), [], (30, 40)),
    ],
)
def test_sizes_are_the_references(size, sides, expected):
    """Fitted into 2048 x 512, the aspect kept, as in mmcv: 2048 / 900 * 100 = 227.6."""
    image, mask = resize(*scene(*size), sides)
    assert image.shape == (*expected, 3)
    assert mask.shape == expected
    assert set(np.unique(mask)) <= {-1, 0, 1, 2}


def test_windows_of_one_class_are_drawn_again():
    mask = np.zeros((64, 64), np.int16)
    mask[:12] = 1
    mask[:, :4] = IGNORE
    image = np.zeros((64, 64, 3), np.uint8)
    shares = {}
    for most in (1.0, 0.75):
        cuts = [crop(image, mask, 16, most, rng(seed))[1] for seed in range(200)]
        assert all(cut.shape == (16, 16) for cut in cuts)
        shares[most] = np.mean([np.bincount(cut[cut >= 0]).max() / (cut >= 0).sum() > 0.75 for cut in cuts])
    assert shares[1.0] > 0.7
    assert shares[0.75] < 0.3, "ten tries find a mixed window more often than not"


def test_distortion_stays_within_its_ranges():
    """On grey, hue and saturation do nothing: what is left is level * contrast + brightness, in either order."""
    grey = np.full((4, 4, 3), 100, np.uint8)
    found = np.array([distort(grey, rng(seed))[0, 0] for seed in range(400)]).astype(int)
    assert (found.max(1) == found.min(1)).all()
    low, high = (100 - BRIGHTNESS) * 0.5, (100 + BRIGHTNESS) * 1.5
    assert low - 1 <= found.min() < 60
    assert 160 < found.max() <= high
    assert 0.2 < (found[:, 0] == 100).mean() < 0.32, "a quarter is left as it was"
    red = np.full((4, 4, 3), (200, 60, 60), np.uint8)
    hues = [distort(red, rng(seed))[0, 0].astype(int) for seed in range(200)]
    assert any(colour[1] > colour[2] + 20 for colour in hues)
    assert any(colour[2] > colour[1] + 20 for colour in hues)


def test_polynomial_and_cosine_schedules_are_their_formulas(small):
    recipe = small[1]
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=recipe.lr)
    rates = schedule(recipe, optimizer, 5)
    for step in range(15):
        rates.step(step // 5)
        rates.step_update(step)
        expected = 0.01 + 0.09 * (1 - step / 15) ** 0.9
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
    with pytest.raises(BadInputError, match="polynomial"):
        schedule(recipe, optimizer, 0)
    recipe = small[1].model_copy(update={"schedule": "cosine", "epochs": 10, "warmup_epochs": 4, "min_lr": 0.01})
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    rates, seen = schedule(recipe, optimizer, 5), []
    for epoch in range(10):
        rates.step(epoch)
        seen.append(optimizer.param_groups[0]["lr"])
    low = recipe.warmup_lr or recipe.lr / 100
    assert seen[:4] == pytest.approx([low + (recipe.lr - low) * epoch / 4 for epoch in range(4)])
    decay = [0.01 + (recipe.lr - 0.01) * (1 + math.cos(math.pi * epoch / 10)) / 2 for epoch in range(4, 10)]
    assert seen[4:] == pytest.approx(decay)
    assert max(seen) < recipe.lr, "never reached, as the recipe says"


def test_the_inverse_square_root_is_its_formula():
    """fairseq's inverse_sqrt: linear to lr over the warm-up, then lr sqrt(warm-up / step)."""
    recipe = load_recipe("primal_lm_fairseq")[1]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    rates, found = schedule(recipe, optimizer, 3_000), []
    for step in (0, 3_000, 6_000, 24_000, 144_000):
        rates.step(step // 3_000)
        rates.step_update(step)
        found.append(optimizer.param_groups[0]["lr"])
    assert found == pytest.approx([1e-7, (1e-3 + 1e-7) / 2, 1e-3, 1e-3 / 2, 1e-3 / 24**0.5])
    with pytest.raises(BadInputError, match="inverse_sqrt"):
        schedule(recipe, optimizer, 0)
    for change in ({"warmup_epochs": 0}, {"min_lr": 1e-5}):
        with pytest.raises(BadInputError, match="warmup_epochs >= 1, no min_lr"):
            load_recipe("primal_lm_fairseq", change)


@pytest.mark.parametrize("workers", [0, 2])
def test_windows_do_not_depend_on_workers_or_order(small, workers):
    recipe = small[1].model_copy(update={"scenes": SceneWindows(**PLAIN | {"photometric": True, "workers": workers})})
    with own_generators():
        batches = list(SceneSource(recipe, None, Accelerator(cpu=True)).epoch(1))
        again = list(SceneSource(recipe.model_copy(update={"batch_size": 2}), None, Accelerator(cpu=True)).epoch(1))
    assert [len(batch.y) for batch in batches] == [4, 4], "a short batch is dropped"
    images = {name: x for batch in again for name, x in zip(batch.ids, batch.x, strict=True)}
    for batch in batches:
        assert batch.x.shape == (4, 3, 16, 16)
        assert all(torch.equal(images[name], x) for name, x in zip(batch.ids, batch.x, strict=True))


def test_a_killed_training_goes_on_bit_identically(tmp_path, small):
    whole, _ = whole_and_resumed(small, tmp_path)
    rows = list(csv.DictReader(whole.with_suffix(".csv").read_text().splitlines()))
    assert [float(row["lr"]) for row in rows] == pytest.approx(
        [0.01 + 0.09 * (1 - step / 6) ** 0.9 for step in (1, 3, 5)]
    )
    header = read_header(whole)
    assert header["val_miou"] == f"{float(rows[-1]['val_miou']):.4f}"
    assert len(header["density_of_S"].split(",")) == 2


def test_scores_are_those_of_the_weights_as_stored(tmp_path, small):
    name, recipe, text = small
    half = load_file(train(name, recipe.model_copy(update={"storage": "fp16"}), text, tmp_path / "half"))
    assert {value.dtype for value in half.values()} == {torch.float16}
    model = load_model(recipe.model, tmp_path / "half" / "small.safetensors", **recipe.model_options)
    val = stand_in("shapes", "val")
    found = sum(
        TRAINING.counts(
            model(torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255), torch.from_numpy(classes)[None].long()
        )
        for i in range(len(val))
        for pixels, classes in tiles(val.image(i), val.mask(i), 16)
    )
    header = read_header(tmp_path / "half" / "small.safetensors")
    assert header["val_accuracy"] == f"{TRAINING.score(found, 1.0)['accuracy']:.4f}"
    assert header["val_miou"] == f"{TRAINING.score(found, 1.0)['miou']:.4f}"


def test_an_encoder_starts_from_a_classifier(tmp_path, small):
    name, recipe, text = small
    with own_generators():
        classifier = create_model("symvit_digits", img_size=32, patch_size=4, embed_dim=8, depth=2, num_heads=2)
        for parameter in classifier.parameters():
            torch.nn.init.normal_(parameter)
    save_checkpoint(tmp_path / "c.safetensors", classifier, {})
    frozen = {"encoder_checkpoint": str(tmp_path / "c.safetensors"), "lr": 1e-12, "min_lr": 1e-12, "epochs": 1}
    options = recipe.model_options | {"mlp_ratio": 3.0}
    trained = train(name, recipe.model_copy(update=frozen | {"model_options": options}), text, tmp_path / "runs")
    state, start = load_file(trained), classifier.state_dict()
    for key, value in start.items():
        if key not in ("head.weight", "head.bias", "pos_embed"):
            assert torch.allclose(state[f"encoder.{key}"], value, atol=1e-6), key
    grid = start["pos_embed"][:, 1:].reshape(1, 8, 8, 8).permute(0, 3, 1, 2)
    halved = F.interpolate(grid, (4, 4), mode="bilinear").flatten(2).transpose(1, 2)
    assert torch.allclose(state["encoder.pos_embed"][:, 1:], halved, atol=1e-6)
    assert len(read_header(trained)["encoder_sha256"]) == 64
    with pytest.raises(BadInputError, match=r"missing\.pth"):
        train(name, recipe.model_copy(update={"encoder_checkpoint": "missing.pth"}), text, tmp_path / "other")


def test_what_does_not_belong_together_is_refused(tmp_path, small):
    name, recipe, text = small
    classifier = {"model": "symvit_digits", "model_options": {"img_size": 16}}
    with pytest.raises(BadInputError, match="segmenter"):
        train(name, recipe.model_copy(update=classifier), text, tmp_path)
    few = recipe.model_options | {"num_classes": 2}
    with pytest.raises(BadInputError, match=r"2 classes.* 3"):
        train(name, recipe.model_copy(update={"model_options": few}), text, tmp_path)
    with pytest.raises(UnknownNameError, match=r"\[scenes\]"):
        train(name, recipe.model_copy(update={"scenes": None}), text, tmp_path)
    with pytest.raises(BadInputError, match=r"10 training scenes.* 16"):
        train(name, recipe.model_copy(update={"batch_size": 16}), text, tmp_path)
    start = {"model": "symvit_digits", "model_options": {}, "encoder_checkpoint": "c.pth"}
    with pytest.raises(BadInputError, match="'symvit_digits'"):
        train(name, recipe.model_copy(update=start), text, tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scenes.resize", [512], r"resize .*\[short, long\]"),
        ("scenes.scale", [2.0, 0.5], "least, greatest"),
        ("hflip", 0.5, r"\[scenes\]"),
        ("scenes.cropp", 4, "'scenes.cropp'"),
    ],
)
def test_recipes_are_strict(tmp_path, key, value, message):
    (tmp_path / "small.toml").write_text(TEXT)
    with pytest.raises(BadInputError, match=message):
        load_recipe(str(tmp_path / "small.toml"), {key: value})


def test_the_ade20k_recipes_are_the_authors():
    for model in ("vit", "symvit", "rpc_symvit"):
        recipe: Recipe = load_recipe(f"{model}_segmenter_tiny")[1]
        assert (recipe.epochs, recipe.batch_size, recipe.optimizer) == (64, 8, "sgd")
        assert (recipe.lr, recipe.min_lr) == (1e-3, 1e-5)
        assert (recipe.schedule, recipe.power, recipe.weight_decay, recipe.warmup_epochs) == ("polynomial", 0.9, 0, 0)
        assert (recipe.scenes.crop, recipe.scenes.resize, recipe.scenes.scale) == (512, [512, 2048], [0.5, 2.0])
        assert recipe.model_options["drop_path_rate"] == 0.1
        assert recipe.model_options.get("iterations", 6) == 6


def test_a_folder_of_ones_own_is_trained_on(tmp_path, small, monkeypatch):
    """What masks declare counts, and nothing else: id 9 is ignored, ids 3 and 7 are classes 0 and 1."""
    monkeypatch.setattr("robustbench_kpca.training.source.load_data", load_data)
    name, recipe, text = small
    rng = np.random.default_rng(0)
    for part, number in (("train", 4), ("val", 2)):
        for index in range(number):
            labels = np.kron(rng.integers(0, 2, (2, 3)), np.ones((8, 8), int))
            mask = np.array([3, 7], np.uint8)[labels]
            mask[:2] = 9
            image = (180 * labels[..., None] + rng.integers(0, 60, (*labels.shape, 3))).astype(np.uint8)
            for kind, pixels in (("images", image), ("masks", mask)):
                (tmp_path / "town" / kind / part).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(tmp_path / "town" / kind / part / f"{index}.png")
    (tmp_path / "town" / "classes.csv").write_text("id,name\n3,low\n7,high\n9,ignore\n")
    own = recipe.model_copy(
        update={"data": "masks", "epochs": 40, "model_options": recipe.model_options | {"num_classes": 2}}
    )
    trained = train(name, own, text, tmp_path / "runs", Options(data=tmp_path / "town"))
    assert float(read_header(trained)["val_miou"]) > 0.8
    with pytest.raises(BadInputError, match="masks:FOLDER"):
        train(name, own, text, tmp_path / "none")
    assert train(name, own, text, tmp_path / "runs", Options(data=tmp_path / "town", resume=True)) == trained
    Image.fromarray(image[::-1].copy()).save(tmp_path / "town" / "images" / "val" / "1.png")  # another of this name
    with pytest.raises(BadInputError, match="was trained on other data"):
        train(name, own, text, tmp_path / "runs", Options(data=tmp_path / "town", resume=True))
