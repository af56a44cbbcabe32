"""A family is a folder, and what programs add to it."""

from dataclasses import replace

import numpy as np
import pytest

from robustbench_kpca._core.errors import BadInputError, UnknownNameError
from robustbench_kpca._core.registry import MOST, close_names, did_you_mean, unknown_name
from robustbench_kpca.data import DATASETS
from robustbench_kpca.data.load import kind_of, load_data
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.samples import ArraySamples, Samples
from robustbench_kpca.data.scenes import ArrayScenes, Scenes


@pytest.fixture
def family():
    return replace(DATASETS)


def load(request: Request) -> ArraySamples:
    """Four black images."""
    split = request.split_of("black", ("test", "val"))
    return ArraySamples(
        np.zeros((4, 2, 2, 3), np.uint8), [0, 1, 0, 1], name="black", split=split, ids="abcd", classes=2
    )


def test_a_member_from_outside_is_found_like_the_others(family):
    family.add("black", load)
    assert family.names() == sorted({*DATASETS.names(), "black"})
    assert family.get("black") is load
    assert family.summary("black") == "Four black images."
    family.add("black", load)
    with pytest.raises(UnknownNameError, match="did you mean 'black'"):
        family.get("blakc")
    assert "black" not in DATASETS.names()


def test_names_of_a_family(family):
    with pytest.raises(BadInputError, match="data set named 'digits'"):
        family.add("digits", load)
    family.add("black", load)
    with pytest.raises(BadInputError, match="data set named 'black'"):
        family.add("black", lambda _: None)
    assert "imagenet-c-bar" in family.names()
    assert "imagenet_c_bar" not in family.names()
    assert family.summary("imagenet-100").startswith("ImageNet-100: ")
    with pytest.raises(UnknownNameError, match="did you mean 'imagenet-c-bar'"):
        family.get("imagenet_c_bar")


def test_data_sets_are_found_by_name_and_kind(monkeypatch):
    monkeypatch.setitem(DATASETS.added, "black", load)
    assert load_data("black", limit=2).ids == ["c", "d"], "one of each label"
    assert kind_of("black") is ArraySamples
    assert load_data("black", "val").split == "val"
    with pytest.raises(BadInputError, match="black has no split 'train'; known: test, val"):
        load_data("black", "train")
    assert issubclass(kind_of("ade20k:/no/such"), Scenes)
    assert issubclass(kind_of("imagenet-c"), Samples)
    assert issubclass(kind_of("/no/such/folder"), Samples)
    with pytest.raises(BadInputError, match="data 'shapes' is for segmentation; expected data for classification"):
        Samples.require(ArrayScenes([np.zeros((2, 2, 3), np.uint8)], [np.zeros((2, 2), int)], "a", name="shapes"))
    with pytest.raises(BadInputError, match="data 'digits' is for classification; expected data for segmentation"):
        Scenes.require(load_data("digits", limit=1))


NAMES = ["clean", "pgd20-linf-8_255", "pgd20-l2-1", "apgd-linf-8_255", "segpgd20", "eps", "steps", "fgsm"]


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("pgd", ["pgd20-linf-8_255", "pgd20-l2-1", "apgd-linf-8_255", "segpgd20"]),  # the beginning, then the inside
        ("PGD20_LINF", ["pgd20-linf-8_255"]),
        ("epsilon", ["eps"]),
        ("stpes", ["steps"]),
        ("zzz", []),
        ("", []),
    ],
)
def test_names_that_may_be_meant(name, close):
    assert close_names(name, NAMES, usual="-linf-8_255") == close


def test_a_suggestion_has_at_most_eight_names_and_ends_with_the_list():
    many = [f"vit_{number}" for number in range(100)]
    said = str(unknown_name("model", "vit", many))
    assert said.count("'vit_") == MOST
    assert said.endswith("or 'vit_7'? see: rbk list models")
    assert str(unknown_name("model", "x", many)) == "there is no model named 'x'; see: rbk list models"
    assert str(unknown_name("item", "x", many)).endswith("vit_15 and 92 more")
    few = unknown_name("pack", "x", ["b", "a"], "give a folder")
    assert str(few).endswith("known: a, b; or give a folder; see: rbk list packs")
    assert did_you_mean("x", []) == "known: none"
    assert len(str(unknown_name("model", "x" * 10_000, many))) < 200
