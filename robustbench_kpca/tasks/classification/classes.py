"""Match the classes of data with those of a model: by name, by WordNet id, or by number; or refuse the pair.

A number is compared with a label only if both count the same classes. Names are compared without regard to case and
underscores; a name such as "tench, Tinca tinca" is any of its parts, and a WordNet id any of its words in ImageNet.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.cells import CellSamples
from robustbench_kpca.data.imagenet_classes import imagenet_wnids, imagenet_words, is_imagenet
from robustbench_kpca.data.samples import Relabelled, Samples

UNLIKELY = 1e-9
"""Least probability that all labels lie this low, where labels alone tell the number of classes."""
_SHOWN = 3
Names = dict[int, set[str]]


def match_classes(data: Samples, classes: int, names: Sequence[str] | None) -> tuple[Samples, str]:
    """Return the samples with the model's numbers as labels, and in words how the classes were matched.

    Raises:
        BadInputError: the classes do not match, or a class of the data is none of the model's, or several.
    """
    if data.known_part is not None:
        return data, match_classes(data.known_part, classes, names)[1]
    if data.counted:
        return data, _by_counted_number(data, classes)
    if not data.classes:
        return data, ""
    names_of_data = _names_of(data)
    if data.subset is not None and names is None and classes == len(data.subset) != data.classes:
        order = {label: place for place, label in enumerate(data.subset)}
        return Relabelled(data, order, classes, None), f"{classes} classes, by the order of their WordNet ids"
    imagenet = classes == data.classes == len(imagenet_wnids()) and data.class_names is None
    if imagenet and (names is None or is_imagenet(names)):
        return data, f"{classes} classes, by number: both are taken as ImageNet-1K's"
    if names_of_data is not None and names is not None:
        return _by_name(data, names_of_data, names)
    if classes != data.classes:
        raise BadInputError(
            f"the model has {classes} classes, but data '{data.name}' has {data.classes}",
            expected="equally many, or names of both",
            fix="choose another model or other --data; class folders are matched by name where the model states names",
        )
    if data.numbered_by_name and [_number(name) for name in data.class_names or ()] != [*range(classes)]:
        examples = [f"{name} is {number}" for number, name in enumerate((data.class_names or ())[:_SHOWN])]
        more = ", ..." if classes > _SHOWN else ""
        return data, f"{classes} classes, in the order of their names ({', '.join(examples)}{more})"
    return data, f"{classes} classes, by number"


def _number(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdecimal() else None


def _by_counted_number(data: Samples, classes: int) -> str:
    """Check labels of data that do not say how many classes there are."""
    highest = max(data.labels)
    if highest >= classes:
        raise BadInputError(
            f"data '{data.name}' has the label {highest}, but the model has {classes} classes",
            expected=f"labels from 0 to {classes - 1}",
        )
    if probability_of_lower(data.labels, classes) < UNLIKELY:
        raise BadInputError(
            f"the {len(data)} labels of data '{data.name}' go up to {highest}, but the model has {classes} classes",
            expected="labels of all its classes",
            fix=f"choose another model or, if these are some of its classes, say so: --classes {classes} of rbk eval "
            f"and rbk audit, classes={classes} in Python",
        )
    return f"labels up to {highest} of {classes} classes, by number"


def probability_of_lower(labels: Sequence[int], classes: int) -> float:
    """Return the probability that labels of this many classes all lie this low.

    Data of all classes leave the last ones out by chance only: n labels with probability ((highest + 1) / classes)^n.
    Data of some classes leave out others, too, however large n is: then the d classes that occur are the draw, without
    replacement. The larger probability counts.
    """
    count, different = max(labels) + 1, len(set(labels))
    by_label: float = (count / classes) ** len(labels)
    if different == count:
        return by_label
    return max(by_label, math.prod((count - i) / (classes - i) for i in range(different)))


def _by_name(data: Samples, names_of_data: Names, names: Sequence[str]) -> tuple[Samples, str]:
    owners: dict[str, set[int]] = {}
    for number, name in enumerate(names):
        for word in _words(name):
            owners.setdefault(word, set()).add(number)
    if is_imagenet(names):
        owners |= {wnid: {number} for number, wnid in enumerate(imagenet_wnids())}
    number_of = {label: _only(words, owners) for label, words in names_of_data.items()}
    unmatched = [label for label, number in number_of.items() if number is None]
    numbers = {label: number for label, number in number_of.items() if number is not None}
    if unmatched or len(set(numbers.values())) != len(numbers):
        owned = Counter(numbers.values())
        several = [label for label in numbers if owned[numbers[label]] > 1]
        odd = [_title(data, label) for label in (unmatched or several)[:_SHOWN]]
        raise BadInputError(
            f"{len(unmatched) or 'two'} classes of data '{data.name}' ({', '.join(odd)}) are not one class each of the "
            f"model's {len(names)} ({', '.join(names[:_SHOWN])}, ...)",
            expected="equal names, or WordNet ids",
            fix="rename the folders, or write a labels.csv (file, label) with the model's own numbers",
        )
    examples = ", ".join(f"{_title(data, label)} is {number}" for label, number in list(numbers.items())[:_SHOWN])
    more = ", ..." if len(numbers) > _SHOWN else ""
    how = f"{len(numbers)} of {len(names)} classes, by name ({examples}{more})"
    if all(label == number for label, number in numbers.items()) and data.classes == len(names):
        return data, how
    if isinstance(data, CellSamples):
        raise BadInputError(f"stored data '{data.name}' number their classes in another order than the model")
    return Relabelled(data, numbers, len(names), names), how


def _only(words: set[str], owners: Mapping[str, set[int]]) -> int | None:
    """Return the one class that has one of the words; a WordNet id decides alone."""
    exact = [word for word in words if word in owners and _is_wnid(word)]
    classes = set().union(*(owners.get(word, set()) for word in exact or words))
    return next(iter(classes)) if len(classes) == 1 else None


def _names_of(data: Samples) -> Names | None:
    """Return label -> words for it, None if the data state no names."""
    wnids = imagenet_wnids() if data.subset is not None or data.class_names is None else ()
    if data.subset is not None:
        return {label: _words(wnids[label]) for label in data.subset}
    if data.class_names is not None:
        return {label: _words(name) for label, name in enumerate(data.class_names)}
    return {label: _words(wnid) for label, wnid in enumerate(wnids)} if data.classes == len(wnids) else None


def _title(data: Samples, label: int) -> str:
    return imagenet_wnids()[label] if data.class_names is None else data.class_names[label]


def _words(name: str) -> set[str]:
    whole = _plain(name)
    spellings = {whole, *(_plain(part) for part in name.split(","))}
    return spellings | {_plain(word) for word in imagenet_words().get(whole, ())} if _is_wnid(whole) else spellings


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())


def _is_wnid(word: str) -> bool:
    return len(word) == 9 and word[0] == "n" and word[1:].isdigit()
