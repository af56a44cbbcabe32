"""Pictures of 8 x 8 pixels that carry what they are, and networks whose answers follow from it in closed form.

A picture of a set says in its first eight bytes which it is: its number in the set (three bytes), its label (two), the
set, the corruption and the severity. A network reads them and is wrong by the rule `wrong`; each expectation counts by
the same rule, in whole numbers, without the package.
"""

import struct

import numpy as np
import torch
from torch import nn

from robustbench_kpca.data.cells import CellSamples
from robustbench_kpca.data.imagenet_classes import imagenet_classes, imagenet_wnids
from robustbench_kpca.data.request import View
from robustbench_kpca.data.samples import ArraySamples, Samples
from robustbench_kpca.data.scenes import IGNORE, ArrayScenes
from robustbench_kpca.data.text import Text
from robustbench_kpca.data.vocabulary import Vocabulary
from robustbench_kpca.protocols.corruption_names import COMMON

SIDE, CLASSES = 8, 1000
SETS = ("imagenet", "imagenet-a", "imagenet-o", "imagenet-r", "imagenet-c")
_REST = bytes(SIDE * SIDE * 3 - 8)
RARE = {name: imagenet_classes(name) for name in ("imagenet-a", "imagenet-o", "imagenet-r")}
"""The 200 classes of a collection."""


class Coded(Samples):
    """Pictures that carry their number, label, set, corruption and severity."""

    def __init__(self, name, split, numbers, labels, *, classes=CLASSES, place=(0, 0), ids=None):
        super().__init__(name, split, ids or [f"{number:07d}" for number in numbers], labels, classes)
        self.numbers, self.place = numbers, place

    def image(self, index):
        number = self.numbers[index]
        head = struct.pack(
            "<BHHBBB", number >> 16, number & 65535, self.strata[index], SETS.index(self.name), *self.place
        )
        return np.frombuffer(bytearray(head + _REST), np.uint8).reshape(SIDE, SIDE, 3)

    def fingerprint(self, index):
        return f"{self.name} {self.numbers[index]} {self.place}"

    def size(self, index):
        return SIDE, SIDE


class CodedCells(CellSamples):
    """ImageNet-C: the same pictures in each of 75 cells."""

    corruptions, severities = COMMON, (1, 2, 3, 4, 5)

    def __init__(self, n):
        self.numbers = list(range(n))
        super().__init__("imagenet-c", "val", [f"{i:07d}" for i in self.numbers], label_of(self.numbers), CLASSES)
        self.expected = 50_000

    def has_clean(self):
        return False

    def _make(self, corruption, severity):
        place = (1 + COMMON.index(corruption), severity)
        return Coded(self.name, self.split, self.numbers, self.strata, place=place, ids=self.ids)


def label_of(numbers):
    """Return the labels of validation images: each class as often as every other."""
    return [number % CLASSES for number in numbers]


def loaders(n):
    """Return name -> function of a `Request`: ImageNet of `n` validation images, and the sets beside it."""

    def imagenet(request):
        numbers, split = list(range(n)), request.split or "val"
        if split in RARE:
            of_split = set(RARE[split])
            numbers = [number for number in numbers if number % CLASSES in of_split]
        samples = Coded("imagenet", split, numbers, label_of(numbers))
        samples.expected = 50_000
        return samples

    def collection(name, size):
        def load(request):
            numbers = list(range(size))
            labels = [RARE[name][number % 200] for number in numbers]
            return Coded(name, "test", numbers, labels, classes=0 if name == "imagenet-o" else CLASSES)

        return load

    sizes = {"imagenet-a": 7_500, "imagenet-o": 2_000, "imagenet-r": 30_000}
    share = n / 50_000
    return {
        "imagenet": imagenet,
        "imagenet-c": lambda request: CodedCells(n),
        **{name: collection(name, max(200, round(share * size))) for name, size in sizes.items()},
    }


def wrong(number, of_set, corruption, severity, *, rate):
    """Whether a network is wrong on a picture: of every thousand numbers in a row, a known share."""
    harder = 30 * of_set + 10 * corruption + 60 * severity
    return (number * 7919 + 613 * corruption + 101 * severity) % 1000 < rate + harder


def _next_in(classes):
    """Return class -> the next of some classes, and of all others the next class."""
    following = (np.arange(CLASSES) + 1) % CLASSES
    following[classes] = np.roll(classes, -1)
    return torch.from_numpy(following)


class Known(nn.Module):
    """A network that is wrong at a known rate, and as sure as the number of a picture says.

    A right answer has a logit of 4, 6 or 8 more than all others. A wrong one is another class of the set; the label is
    the second class on pictures of even numbers, else the last. An image of no known class is taken for the first of
    ImageNet-O's classes, with a logit of 3.5, 5.5 or 7.5. A class that is not of the set has the largest logit on
    pictures of ImageNet-A and -R, whose protocols leave it out.
    """

    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        self.scale = nn.Parameter(torch.ones(()))
        groups = [RARE.get(name, np.arange(CLASSES)) for name in SETS]
        self.register_buffer("following", torch.stack([_next_in(np.asarray(group)) for group in groups]))
        foreign = [min(set(range(CLASSES)) - set(RARE[name])) if name in RARE else 0 for name in SETS]
        self.register_buffer("foreign", torch.tensor(foreign))

    def forward(self, x):
        high, low, label, of_set, corruption, severity = _decoded(x)
        number, rows = (high << 16) + low, torch.arange(len(x))
        missed = wrong(number, of_set, corruption, severity, rate=self.rate)
        margin = 4.0 + 2 * (number % 3)
        logits = torch.zeros(len(x), CLASSES)
        logits[rows, label] = torch.where(missed, torch.where(number % 2 == 0, margin - 1, -5.0), margin)
        other = self.following[of_set, label]
        logits[rows, other] = torch.where(missed, margin, logits[rows, other])
        decoy = (of_set == SETS.index("imagenet-a")) | (of_set == SETS.index("imagenet-r"))
        logits[rows[decoy], self.foreign[of_set][decoy]] = 20.0
        unknown = of_set == SETS.index("imagenet-o")
        logits[unknown] = 0.0
        logits[rows[unknown], RARE["imagenet-o"][0]] = margin[unknown] - 0.5
        return self.scale * logits


def _decoded(x):
    values = (x * 255).round().long().permute(0, 2, 3, 1).flatten(1)[:, :8].unbind(1)
    return values[0], values[1] + (values[2] << 8), values[3] + (values[4] << 8), *values[5:]


def strong():
    return Known(250)


def weak():
    return Known(300)


RATES = {"strong": 250, "weak": 300}


def accuracy(numbers, rate, name="imagenet", top=1):
    numbers = np.asarray(numbers)
    missed = wrong(numbers, SETS.index(name), 0, 0, rate=rate)
    return float(np.mean(~missed | (numbers % 2 == 0 if top > 1 else False)))


def corruption_errors(n, rate):
    numbers, of_set = np.arange(n), SETS.index("imagenet-c")
    return {
        name: float(np.mean([wrong(numbers, of_set, 1 + k, severity, rate=rate).mean() for severity in range(1, 6)]))
        for k, name in enumerate(COMMON)
    }


def average_precision(known, unknown, rate):
    """Return the area under precision and recall of images of no known class, whose scores have a few values.

    A score is minus the largest of 200 probabilities. Of images with one score all come at once: precision counts them.
    """
    rare = set(RARE["imagenet-o"])
    scores = {}

    def add(logits, count, *, outside):
        score = -np.exp(max(0.0, *logits)) / (np.exp(logits).sum() + 200 - len(logits))
        counts = scores.setdefault(round(float(score), 9), [0, 0])
        counts[outside] += count

    known = np.asarray([number for number in known if number % CLASSES in rare])
    missed = wrong(known, 0, 0, 0, rate=rate)
    for rest in range(3):
        margin, of_rest = 4.0 + 2 * rest, known % 3 == rest
        add([margin - 0.5], int((np.arange(unknown) % 3 == rest).sum()), outside=True)
        add([margin], int((of_rest & ~missed).sum()), outside=False)
        for even, second in ((True, margin - 1), (False, -5.0)):
            chosen = known[of_rest & missed & ((known % 2 == 0) == even)]
            inside = sum((number % CLASSES + 1) % CLASSES in rare for number in chosen.tolist())
            add([margin, second], inside, outside=False)
            add([second], len(chosen) - inside, outside=False)
    found = passed = 0
    area = 0.0
    for score in sorted(scores, reverse=True):
        inside, outside = scores[score]
        found, passed = found + outside, passed + inside + outside
        area += outside / unknown * (found / passed if outside else 0.0)
    return area


_FIRST, _STEP = 30, 20
"""Grey level of the digit 0, and from one digit to the next; half of a step is the distance to another class."""


def pooled_images(n, held=None):
    """Return ImageNet-like pictures whose rows of pixels carry the three digits of a class, and their labels.

    A picture lies five to eight levels nearer to the next class than the middle of its own; of every `held` pictures,
    the first lies three. Of ten pictures, one has the label of another class.
    """
    numbers = np.arange(n)
    shown = (numbers * 7919) % CLASSES
    digits = np.stack([shown // 100, shown // 10 % 10, shown % 10], 1)
    nearer = 5 + numbers % 4 if held is None else np.where(numbers % held == 0, 3, 5 + numbers % 4)
    rows = np.full((n, SIDE), 128)
    rows[:, :3] = _FIRST + _STEP * digits
    rows[:, 0] += np.where(digits[:, 0] < 9, nearer, -nearer)
    images = np.broadcast_to(rows[:, :, None, None], (n, SIDE, SIDE, 3)).astype(np.uint8)
    labels = np.where(numbers % 10 == 3, (shown + 1) % CLASSES, shown)
    samples = ArraySamples(
        images, labels.tolist(), name="imagenet", split="val", ids=[f"{i:07d}" for i in numbers], classes=CLASSES
    )
    samples.class_names = imagenet_wnids()
    return samples


def standing(n, eps, held=None):
    """Return the share of these pictures that no attack of `eps` levels breaks: its distance is ten less `nearer`."""
    numbers = np.arange(n)
    nearer = 5 + numbers % 4 if held is None else np.where(numbers % held == 0, 3, 5 + numbers % 4)
    assert not (nearer == 10 - eps).any(), "a picture on the boundary"
    return float(np.mean((numbers % 10 != 3) & (10 - nearer > eps)))


class Pooled(nn.Module):
    """Eight features, each the mean of a row of pixels; a linear layer finds the nearest of a thousand classes.

    Of squared distances to the classes, what all classes share is left out: -|f - c|^2 + |f|^2 = 2 c f - |c|^2.
    """

    def __init__(self, scale=0.02):
        super().__init__()
        self.head = nn.Linear(SIDE, CLASSES)
        number = np.arange(CLASSES)
        centres = np.zeros((CLASSES, SIDE))
        centres[:, :3] = _STEP * (np.stack([number // 100, number // 10 % 10, number % 10], 1) - 4.5)
        shift = np.zeros(SIDE)
        shift[:3] = _FIRST + 4.5 * _STEP
        bias = -(centres**2).sum(1) - 2 * centres @ shift
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(2 * 255 * scale * centres))
            self.head.bias.copy_(torch.from_numpy(scale * bias))

    def forward(self, x):
        return self.head(x.mean((1, 3)))


class Numbered(nn.Module):
    """Takes a picture for the class that its red says: `trees.renumber`."""

    view = View(SIDE)

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        number = (x[:, 0, 0, 0] * 255).round().long()
        return self.scale * 5 * nn.functional.one_hot(number, CLASSES).float()


def coded_scenes(n, classes=150):
    """Return scenes whose red says the class of a pixel (0: none) and whose green says that it is taken for the next.

    Every 150th pixel in a row of pixels is taken for the next class, and of the first seven classes every third.
    """
    at = np.arange(n * SIDE * SIDE).reshape(n, SIDE, SIDE)
    masks = (at * 13) % (classes + 1) - 1
    missed = (at % 150 == 0) | ((masks < 7) & (at % 3 == 0))
    images = np.stack([masks + 1, missed, np.zeros_like(at)], 3).astype(np.uint8)
    names = [f"id {label + 1}" for label in range(classes)]
    masks = np.where(masks < 0, IGNORE, masks)
    return ArrayScenes(list(images), list(masks), names, name="ade20k", split="val", ids=[f"{i:05d}" for i in range(n)])


def scene_scores(n, classes=150):
    """Return mIoU and mean accuracy, by class counts in whole numbers."""
    at = np.arange(n * SIDE * SIDE)
    truth = (at * 13) % (classes + 1) - 1
    missed = ((at % 150 == 0) | ((truth < 7) & (at % 3 == 0)))[truth >= 0]
    truth = truth[truth >= 0]
    answer = np.where(missed, (truth + 1) % classes, truth)
    hit, there, said = (np.bincount(values, minlength=classes) for values in (truth[~missed], truth, answer))
    return float(np.mean(hit / (there + said - hit))), float(np.mean(hit / there))


class Painter(nn.Module):
    """Reads the class of a pixel from its red, and from its green whether it is taken for the next class."""

    window = SIDE

    def __init__(self, classes=150):
        super().__init__()
        self.classes, self.scale = classes, nn.Parameter(torch.ones(()))

    def forward(self, x):
        red, green = ((x[:, k] * 255).round().long() for k in (0, 1))
        answer = (red - 1 + green).clamp_min(0) % self.classes
        return self.scale * 5 * nn.functional.one_hot(answer, self.classes).permute(0, 3, 1, 2).float()


def words(n, vocabulary):
    """Return a text of `n` words; of its vocabulary, each tenth word of the text is one of the first hundred."""
    at = np.arange(n)
    stream = np.where(at % 10 == 0, at % 100, (at * 7919) % vocabulary)
    names = Vocabulary(["<eos>", "<unk>", "AAA", *(f"w{k}" for k in range(vocabulary - 3))])
    return Text("wikitext103", "test", stream, names, articles=at // 4000)


def perplexity(n, vocabulary, gain=3.0):
    at = np.arange(1, n)
    stream = np.where(at % 10 == 0, at % 100, (at * 7919) % vocabulary)
    total = np.log(100 * np.exp(gain) + vocabulary - 100)
    return float(np.exp(np.mean(total - np.where(stream < 100, gain, 0.0))))


class Unigram(nn.Module):
    """A language model that reads nothing: the first hundred words have a logit of 3, all others of 0."""

    def __init__(self, vocabulary, window=4):
        super().__init__()
        self.vocab_size, self.window = vocabulary, window
        logits = torch.zeros(vocabulary)
        logits[:100] = 3.0
        self.logits = nn.Parameter(logits)

    def forward(self, x, *, last=False):
        places = 1 if last else x.shape[-1]
        return (1.0 * self.logits)[None, :, None, None].expand(len(x), -1, 1, places)
