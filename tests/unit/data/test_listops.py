"""ListOps: the grammar against another evaluator, parts that do not overlap, limits, refusals."""

import random

import pytest
import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.forms import TOKENS
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.sets.listops import WORDS, grow

SMALL = "listops:test=200,val=100,train=300"
LARGE = "listops:depth=10,arguments=10,least=100,length=400,test=40,val=20,train=20"


def by_stack(words):
    """Evaluate a list with a stack; written from the definition of the operators, without the grammar's code."""
    stack = []
    for word in words:
        if word != "]":
            stack.append(word)
            continue
        values = []
        while not stack[-1].startswith("["):
            values.append(int(stack.pop()))
        values.sort()
        n = len(values)
        middle = values[n // 2] if n % 2 else (values[n // 2 - 1] + values[n // 2]) // 2
        value = {"[MIN": values[0], "[MAX": values[-1], "[MED": middle, "[SM": sum(values) % 10}[stack.pop()]
        stack.append(str(value))
    (left,) = stack
    return int(left)


def lists(data):
    return [[WORDS[word] for word in TOKENS.array(data.image(i)) if word] for i in range(len(data))]


def nesting(words):
    deepest = depth = 0
    for word in words:
        depth += word.startswith("[") - (word == "]")
        deepest = max(deepest, depth)
    return deepest


@pytest.mark.parametrize(
    ("text", "value"),
    [("[MED 1 2 ]", 1), ("[SM 9 9 [MAX 1 4 ] ]", 2), ("[MIN 8 [MED 9 7 5 ] ]", 7), ("[MED 0 3 4 9 ]", 3), ("7", 7)],
)
def test_the_other_evaluator_knows_lists_by_hand(text, value):
    assert by_stack(text.split()) == value


@pytest.mark.parametrize(("source", "deepest", "most"), [(SMALL, 3, 5), (LARGE, 9, 10)])
@pytest.mark.parametrize("part", ["test", "val", "train"])
def test_every_label_is_the_value_of_its_list(source, deepest, most, part):
    data = load_data(source, part)
    found = lists(data)
    assert [by_stack(words) for words in found] == data.labels
    assert max(map(nesting, found)) <= deepest
    least, length = (4, 32) if source == SMALL else (100, 400)
    assert all(least < len(words) < length for words in found)
    assert data.images.shape == (len(data), 1, 1, length)


def test_numbers_of_arguments_and_shares_are_the_published_ones():
    rng = random.Random(0)
    arguments, operators, digits, leaves = [], [], [], 0
    for _ in range(20_000):
        words, value = grow(rng, 2, 10)
        if len(words) == 1:
            leaves += 1
            digits.append(value)
        else:
            arguments.append(len(words) - 2)
            operators.append(words[0])
    assert abs(leaves / 20_000 - 0.75) < 0.015  # five standard errors
    assert set(arguments) == set(range(2, 11))
    for counts, kinds in ((arguments, 9), (operators, 4), (digits, 10)):
        expected = len(counts) / kinds
        squares = sum((counts.count(kind) - expected) ** 2 / expected for kind in set(counts))
        assert squares < 40  # chi square; the 99.99 % quantile for 9 degrees of freedom is 33.7


def test_parts_do_not_overlap_and_a_larger_training_part_leaves_the_others():
    parts = {part: load_data(SMALL, part) for part in ("test", "val", "train")}
    texts = {part: {" ".join(words) for words in lists(data)} for part, data in parts.items()}
    assert sum(map(len, texts.values())) == len(set.union(*texts.values())) == 600
    larger = load_data(SMALL.replace("train=300", "train=400"), "test")
    assert torch.equal(larger.images, parts["test"].images)
    assert not torch.equal(load_data(SMALL + ",seed=1", "test").images, parts["test"].images)
    assert parts["test"].name == "listops-test200-val100-train300"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("listops:depht=3", "depht=3"),
        ("listops:depth=3,depth=4", "depth=3,depth=4"),
        ("listops:depth=1", "depth = 1"),
        ("listops:least=30", "length = 32"),
        (f"listops:depth={'9' * 5000}", "NAME=NUMBER"),
        ("listops:length=16777215", "tokens"),
        ("listops:depth=2,arguments=2,least=3,length=8,test=500,val=500,train=500", "fewer than 1500 lists"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(source, message):
    with pytest.raises(BadInputError, match=message) as caught:
        load_data(source)
    assert "\n" not in str(caught.value)
