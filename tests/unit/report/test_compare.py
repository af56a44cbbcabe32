"""The gate fails on a planted, real regression, and only there."""

import xml.etree.ElementTree as ET

import pytest
import torch

from robustbench_kpca import evaluate
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.report.compare import Rule, annotations, compare, junit, table

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def data():
    rng = torch.Generator().manual_seed(0)
    return torch.rand(200, 1, 4, 4, generator=rng)


def record(linear, images, *, wrong=0, gain=0, seed=0, batch_size=64, protocol="clean", name="m", **overrides):
    labels = (images.flatten(1).sum(1) > 8).long()
    if wrong:
        flipped = images.flatten(1).sum(1).argsort()[:wrong]
        labels = labels.clone()

        class Wrong(linear):
            def forward(self, x):
                out = super().forward(x)
                bad = (x[:, None].flatten(2) == images[flipped].flatten(1)[None]).all(2).any(1)
                return torch.where(bad[:, None], out.flip(1), out)

        model = Wrong(torch.ones(1, 4, 4), -8.0).eval()
    else:
        model = linear(torch.ones(1, 4, 4), -8.0).eval()
    return evaluate(
        model, images, labels, protocol=protocol, name=name, seed=seed, batch_size=batch_size, **overrides, audit=False
    )


RULES = [Rule.parse("clean_accuracy:-2pp")]


@pytest.mark.parametrize(
    ("wrong", "regression"),
    [
        (0, False),
        (3, False),  # -1.5 points: within the threshold
        (5, False),  # -2.5 points, but 5 : 0 has p = 0.0625
        (6, True),  # -3 points, 6 : 0 has p = 0.03
        (40, True),
    ],
)
def test_only_a_drop_that_is_large_and_real_fails(linear, data, wrong, regression):
    (done,) = compare([record(linear, data, wrong=wrong)], [record(linear, data)], RULES)
    assert done.lost == wrong
    assert done.gained == 0
    assert done.change == pytest.approx(-wrong / 200)
    assert done.regression is regression


def test_improvements_and_one_other_model_are_no_regression(linear, data):
    (done,) = compare([record(linear, data)], [record(linear, data, wrong=40)], RULES)
    assert done.gained == 40
    assert not done.regression
    (done,) = compare([record(linear, data, name="new", wrong=40)], [record(linear, data, name="old")], RULES)
    assert done.model == "new instead of old"
    assert done.regression


def test_seed_and_batch_size_may_differ_and_order_does_not_matter(linear, data):
    new, old = record(linear, data, seed=5, batch_size=7), record(linear, data)
    (done,) = compare([new], [old], RULES)
    assert done.batch_sizes == (64, 7)
    assert done.change == 0


def test_what_is_not_alike_is_not_compared(linear, data):
    new, old = record(linear, data, protocol="fgsm-linf-8_255"), record(linear, data)
    with pytest.raises(BadInputError, match="m on images"):
        compare([new], [old], RULES)
    with pytest.raises(BadInputError, match="nothing to compare"):
        compare([new], [old], RULES, partial=True)
    with pytest.raises(BadInputError, match="data digest"):
        compare([record(linear, data.flip(3))], [record(linear, data)], RULES)
    old = record(linear, data, protocol="pgd20-linf-8_255")
    new = record(linear, data, protocol="pgd20-linf-8_255", steps=21)
    protocol = new.spec.protocol.model_copy(update={"name": old.spec.protocol.name})
    renamed = new.model_copy(update={"spec": new.spec.model_copy(update={"protocol": protocol})}).attach(new.outcomes)
    with pytest.raises(BadInputError, match="protocol digest"):
        compare([renamed], [old], [Rule.parse("robust_accuracy:-1pp")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("robust_accuracy", "METRIC:-POINTSpp"),
        ("robust_accuracy:2pp", "METRIC:-POINTSpp"),
        ("robust_accuracy:-2", "METRIC:-POINTSpp"),
        ("robust_acuracy:-2pp", "did you mean 'robust_accuracy'"),
        ("robust_accuracy:-100pp", "which nothing can fail; expected a change below 100pp"),
    ],
)
def test_bad_rules(text, message):
    with pytest.raises(BadInputError, match=message):
        Rule.parse(text)


def test_reports(linear, data, tmp_path):
    both = [
        *compare([record(linear, data, wrong=40, name="a:b,c")], [record(linear, data, name="a:b,c")], RULES),
        *compare([record(linear, data)], [record(linear, data)], RULES),
    ]
    assert table(both)[""].tolist() == ["REGRESSION", "ok"]
    suite = ET.fromstring(junit(both))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert len(suite.findall("testcase/failure")) == 1
    (line,) = annotations(both, tmp_path)
    assert line.startswith("::error title=clean_accuracy of a%3Ab%2Cc on images under clean::100.0 -> 80.0 %25")
    assert "\n" not in line
