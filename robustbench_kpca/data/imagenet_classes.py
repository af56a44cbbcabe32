"""The classes of ImageNet-1K, of the collections with 200 of them, and of ImageNet-100. Does not import torch.

The WordNet ids of ImageNet-1K, ImageNet-A and ImageNet-R come from timm. Those of ImageNet-O (Hendrycks et
al. 2021, "Natural Adversarial Examples", arXiv:1907.07174) are in `lists/`, from hendrycks/natural-adv-examples (MIT).
`lists/` also has ImageNet-100, a random subset that Tian, Krishnan & Isola (2019, "Contrastive Multiview Coding",
arXiv:1906.05849) published with their code (HobbitLong/CMC, imagenet100.txt). Other subsets have the same name.
"""

import gzip
import importlib.util
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.registry import unknown_name

COLLECTIONS = ("all", "imagenet-a", "imagenet-r", "imagenet-o", "imagenet-100")
_SHIPPED = ("imagenet-o", "imagenet-100")


@cache
def imagenet_wnids() -> tuple[str, ...]:
    """Return the 1,000 WordNet ids in the order of their indices, which is sorted."""
    return _from_timm("imagenet_synsets.txt")


@cache
def imagenet_words() -> dict[str, tuple[str, ...]]:
    """Return WordNet id -> its words, such as `tench` and `Tinca tinca`, for the classes of ImageNet-1K."""
    wanted = set(imagenet_wnids())
    rows = (line.split("\t") for line in _text_of_timm("imagenet_synset_to_lemma.txt").splitlines())
    return {wnid: tuple(words.split(", ")) for wnid, words in rows if wnid in wanted}


def is_imagenet(names: Sequence[str]) -> bool:
    """Tell whether these are names of the 1,000 classes in their order: WordNet ids, or (most of) them words of each.

    Lists differ in the spelling of a few; the same words at 950 of the 1,000 places are the same list.
    """
    wnids = imagenet_wnids()
    if len(names) != len(wnids) or tuple(names) == wnids:
        return len(names) == len(wnids)
    words = imagenet_words()
    return sum(_share(name, words[wnid]) for name, wnid in zip(names, wnids, strict=True)) >= 0.95 * len(wnids)


def _share(name: str, words: Sequence[str]) -> bool:
    return bool({part.strip().lower() for part in name.split(",")} & {word.lower() for word in words})


def imagenet_classes(name: str) -> list[int]:
    """Return the ImageNet-1K indices, ascending, of `all` classes or of those of a collection."""
    if name not in COLLECTIONS:
        raise unknown_name("collection of ImageNet classes", name, COLLECTIONS)
    if name == "all":
        return list(range(len(imagenet_wnids())))
    indices = imagenet_indices(_shipped(f"{name}.txt") if name in _SHIPPED else _from_timm(f"{_file(name)}.txt"))
    assert indices is not None
    return sorted(indices.values())


def imagenet_indices(wnids: Iterable[str]) -> dict[str, int] | None:
    """Map WordNet ids to ImageNet-1K indices; return None if the list is empty or one is not an ImageNet-1K id."""
    numbers = {wnid: number for number, wnid in enumerate(imagenet_wnids())}
    names = list(wnids)
    return {name: numbers[name] for name in names} if names and all(name in numbers for name in names) else None


@cache
def robustbench_validation() -> dict[str, str]:
    """Map the names (without suffix) of RobustBench's 5,000 ImageNet validation images to WordNet ids.

    Source: RobustBench/robustbench (MIT). They are a simple random sample, not a stratified one: 997 classes occur,
    with 1 to 12 images each.
    """
    rows = [row.split("/") for row in _shipped("imagenet-val-5000.txt.gz")]
    return {Path(name).stem: wnid for wnid, name in rows}


def _file(name: str) -> str:
    return f"{name.replace('-', '_')}_synsets"


def _shipped(name: str) -> tuple[str, ...]:
    data = resources.files("robustbench_kpca.data").joinpath("lists", name).read_bytes()
    return tuple((gzip.decompress(data) if name.endswith(".gz") else data).decode().split())


def _from_timm(name: str) -> tuple[str, ...]:
    return tuple(_text_of_timm(name).split())


def _text_of_timm(name: str) -> str:
    spec = importlib.util.find_spec("timm")  # importing it would import torch
    folders = (spec and spec.submodule_search_locations) or []
    for folder in folders:
        path = Path(folder) / "data" / "_info" / name
        if path.is_file():
            return path.read_text("utf-8")
    raise BadInputError(f"the list {name} is missing in timm", fix="pip install 'timm>=1.0.23'")
