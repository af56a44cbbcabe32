"""Metrics of segmentation equal scikit-learn's on all pixels pooled, and their intervals the plain bootstrap's."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score, recall_score

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import measure, metric_for
from robustbench_kpca.metrics.shared.bootstrap import Resampled, bootstraps
from robustbench_kpca.metrics.shared.pixels import PixelCounts
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.table import COUNTS
from robustbench_kpca.tasks.segmentation import TASK
from robustbench_kpca.tasks.segmentation.counts import pixel_counts

CLASSES = 6
CELLS = [("none", 0), ("gaussian_noise", 1), ("gaussian_noise", 2), ("zoom_blur", 1), ("zoom_blur", 2), ("fog", 3)]
GRID = {"grid": [
    {"corruptions": ["gaussian_noise", "zoom_blur"], "severities": [1, 2]}, {"corruptions": ["fog"], "severities": [3]},
]}  # fmt: skip


def maps(rng, count, ignore=0.2, absent=(3,), right=0.5):
    """Pairs (truth, prediction) of odd sizes; some pixels of no class, a class that is nowhere, one only predicted."""
    found = []
    for number in range(count):
        size = (1, 1) if number == 0 else tuple(rng.integers(2, 12, 2))
        truth = rng.choice([c for c in range(CLASSES) if c not in absent], size).astype(np.int16)
        guess = rng.choice([c for c in range(CLASSES) if c != 4], size).astype(np.int16)
        prediction = np.where(rng.random(size) < right, truth, guess).astype(np.int16)
        hidden = rng.random(size) < ignore
        hidden.flat[0] = False
        found.append((np.where(hidden, -1, truth).astype(np.int16), prediction))
    return found


def rows_of(pairs, number, cell=None):
    rows = []
    for index in number:
        for counts in pixel_counts(*pairs[index]).tolist():
            names = ("class", "intersection", "truth", "predicted")
            row = {"sample": f"s{index}"} | dict(zip(names, counts, strict=True))
            rows.append(row | ({} if cell is None else {"corruption": cell[0], "severity": cell[1]}))
    return rows


def outcomes_of(cells, number=None):
    """`cells`: (corruption, severity) -> pairs; `number`: which images, any of them more than once under another id."""
    rows = []
    for cell, pairs in cells.items():
        rows += rows_of(pairs, range(len(pairs)) if number is None else number, cell)
    return Outcomes.from_rows(TASK.table("clean" if [*cells] == [("none", 0)] else "corruption"), rows)


def pooled(pairs):
    truth = np.concatenate([t.ravel() for t, _ in pairs])
    prediction = np.concatenate([p.ravel() for _, p in pairs])
    return truth[truth >= 0], prediction[truth >= 0]


def oracle(pairs):
    """Pixel accuracy, mean accuracy and mIoU by scikit-learn, of all pixels in one vector.

    Accuracies are of the classes that are there, IoUs of those that are there or predicted: scikit-learn's own choice.
    """
    truth, prediction = pooled(pairs)
    return (
        accuracy_score(truth, prediction),
        recall_score(truth, prediction, labels=np.unique(truth), average="macro", zero_division=0),
        jaccard_score(truth, prediction, average="macro", zero_division=0),
    )


@pytest.mark.parametrize("seed", [0, 1, 5, 11])
def test_clean_metrics_are_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    pairs = maps(rng, 1 + seed, ignore=0.3 * (seed % 3), absent=(3,) if seed % 2 else (), right=seed / 12)
    outcomes = outcomes_of({("none", 0): pairs})
    found = measure(outcomes, load_scenario("segmentation")[1])
    names = ("pixel_accuracy", "mean_accuracy", "miou")
    assert sorted(found) == sorted(names)
    np.testing.assert_allclose([found[name].value for name in names], oracle(pairs), rtol=1e-12)
    assert {found[name].n for name in names} == {len(pairs)}


def test_pixel_counts_are_the_confusion_matrix():
    pairs = maps(np.random.default_rng(5), 9)
    counts = PixelCounts.of(outcomes_of({("none", 0): pairs}))
    matrix = confusion_matrix(*pooled(pairs), labels=range(counts.counts.shape[-1]))
    intersection, truth, predicted = counts.counts[0].sum(1)
    assert np.array_equal(intersection, np.diag(matrix))
    assert np.array_equal(truth, matrix.sum(1))
    assert np.array_equal(predicted, matrix.sum(0))
    truth, prediction = pooled(pairs)
    ious = jaccard_score(truth, prediction, labels=range(len(matrix)), average=None, zero_division=0)
    absent = matrix.sum(0) + matrix.sum(1) == 0
    assert (matrix.sum(1) == 0).any()
    np.testing.assert_allclose(counts.ious()[0], np.where(absent, np.nan, ious))


@pytest.fixture(scope="module")
def grid():
    rng = np.random.default_rng(1)
    pairs = {cell: maps(rng, 25, right=0.9 - 0.1 * number) for number, cell in enumerate(CELLS)}
    first = pairs["none", 0]
    rng = np.random.default_rng(2)
    for cell in CELLS[1:]:  # the same truth in every cell
        pairs[cell] = [(t, np.where(rng.random(t.shape) < 0.6, np.abs(t), p).astype(np.int16)) for t, p in first]
    return pairs


def test_under_corruption_every_corruption_counts_alike(grid):
    outcomes = outcomes_of(grid)
    scenario = load_scenario("shapes-c")[1].model_copy(update={"grid": _cells()})
    found = measure(outcomes, scenario)
    scores = {cell: oracle(pairs) for cell, pairs in grid.items()}
    by_corruption = {
        name: np.mean([scores[cell] for cell in CELLS if cell[0] == name], axis=0)
        for name in ("gaussian_noise", "zoom_blur", "fog")
    }
    means = np.mean(list(by_corruption.values()), axis=0)
    names = ("corrupted_pixel_accuracy", "corrupted_mean_accuracy", "corrupted_miou")
    np.testing.assert_allclose([found[name].value for name in names], means, rtol=1e-12)
    clean = scores["none", 0]
    assert found["miou_retention"].value == pytest.approx(means[2] / clean[2], rel=1e-12)
    still = np.mean([by_corruption["gaussian_noise"][2], by_corruption["fog"][2]])
    assert found["corrupted_miou_still"].value == pytest.approx(still, rel=1e-12)
    assert "corruption_degradation" not in found
    without = scenario.model_copy(update={"clean": False})
    assert "miou" not in measure(outcomes.where(outcomes["severity"] > 0), without)


def _cells():
    from robustbench_kpca.protocols.grid import Cells

    return tuple(Cells(**part) for part in GRID["grid"])


def test_intervals_are_the_bootstraps_of_whole_images(grid):
    """Resampling images by hand, pooling their pixels, asking scikit-learn: the same values as weighted sums."""
    pairs = grid["fog", 3]
    outcomes = outcomes_of({("none", 0): pairs})
    rng = np.random.default_rng(0)
    for name, place in (("pixel_accuracy", 0), ("mean_accuracy", 1), ("miou", 2)):
        weighted = metric_for(name).weighted(outcomes)
        for _ in range(5):
            drawn = rng.integers(0, len(pairs), len(pairs))
            weights = np.bincount(drawn, minlength=len(pairs))
            expected = oracle([pairs[index] for index in drawn])[place]
            assert weighted.value(weights) == pytest.approx(expected, rel=1e-12)
            assert weighted.many(np.stack([weights, weights]))[1] == pytest.approx(expected, rel=1e-12)
        estimate = metric_for(name).estimate(outcomes)
        [one_by_one] = bootstraps([Resampled(weighted.value)], len(pairs))
        assert (estimate.low, estimate.high) == pytest.approx(one_by_one, rel=1e-12)
        assert estimate.low < estimate.value < estimate.high


def test_two_models_are_compared_over_the_same_images(grid):
    worse, better = (outcomes_of({("none", 0): grid[cell]}) for cell in (("none", 0), ("fog", 3)))
    metric = metric_for("miou")
    order = np.random.default_rng(0).permutation(len(better))
    shuffled = Outcomes.from_rows(better.table, [better.rows()[at] for at in order])
    found = metric.paired(worse, shuffled)
    assert found.second > found.first
    assert found.p_value < 0.01
    assert metric.paired(worse, worse).p_value == 1
    with pytest.raises(BadInputError, match="one record only"):
        metric.paired(worse, better.where(better["sample"] != "s3"))


def test_degradation_divides_by_a_reference(grid):
    own, other = outcomes_of(grid), {cell: list(reversed(pairs)) for cell, pairs in grid.items()}
    for cell in CELLS[1:]:
        other[cell] = [(t, np.zeros_like(p)) for t, p in grid[cell]]
    reference = outcomes_of(other)
    scores = {cell: 1 - oracle(pairs)[2] for cell, pairs in grid.items()}
    base = {cell: 1 - oracle(pairs)[2] for cell, pairs in other.items()}

    def mean(errors, name):
        return np.mean([errors[cell] for cell in CELLS if cell[0] == name])

    names = ("gaussian_noise", "zoom_blur", "fog")
    cd = np.mean([mean(scores, name) / mean(base, name) for name in names])
    metric = metric_for("corruption_degradation").relative_to(reference)
    assert metric.estimate(own).value == pytest.approx(cd, rel=1e-9)
    assert metric.estimate(reference).value == pytest.approx(1)
    assert metric.lower_is_better
    with pytest.raises(BadInputError, match="reference"):
        metric_for("corruption_degradation").estimate(own)
    with pytest.raises(BadInputError, match="was not measured under"):
        metric.estimate(own.where(own["corruption"] != "fog"))
    perfect = outcomes_of({cell: [(t, np.abs(t)) for t, _ in pairs] for cell, pairs in grid.items()})
    with pytest.raises(BadInputError, match="gaussian_noise, zoom_blur, fog"):
        metric_for("corruption_degradation").relative_to(perfect)


def attacked(*pictures):
    """Outcomes of an attack, as they are defined: of each image its pictures, a row for all pixels and one a class.

    `pictures`: the clean ones, then what each stage found, None where it found nothing worse.
    """
    rows = []
    for index in range(len(pictures[0])):
        for number, pairs in enumerate(pictures):
            if pairs[index] is None:
                continue
            truth, said = pairs[index]
            known = truth >= 0
            same = {"sample": f"s{index}", "picture": number, "attack": "pgd" if number else "", "linf": 0, "l2": 0}
            same |= dict.fromkeys(COUNTS, 0)
            total, right = int(known.sum()), int((truth == said)[known].sum())
            rows.append(same | {"class": -1, "intersection": right, "truth": total, "predicted": total})
            for label in range(CLASSES):
                row = {"class": label, "truth": int((truth == label).sum())}
                row["intersection"] = int(((truth == label) & (said == label)).sum())
                row["predicted"] = int((known & (said == label)).sum())
                if row["truth"] + row["predicted"]:
                    rows.append(same | row)
    return Outcomes.from_rows(TASK.table("attack"), rows)


def test_attacked_metrics_are_of_the_worst_images(grid):
    clean = grid["fog", 3]
    rng = np.random.default_rng(3)
    first, second = ([(t, np.where(rng.random(p.shape) < 0.4, 5, p).astype(np.int16)) for t, p in clean] for _ in "12")
    first[4] = second[4] = second[7] = None
    outcomes = attacked(clean, first, second)
    worst = [
        min((pair for pair in found if pair), key=lambda pair: np.sum(pair[0] == pair[1]))
        for found in zip(clean, first, second, strict=True)
    ]
    assert worst[4] is clean[4]
    found = measure(outcomes, load_scenario("pgd20-linf-8_255")[1])
    names = ("pixel_accuracy", "mean_accuracy", "miou")
    assert sorted(found) == sorted([*names, *(f"robust_{name}" for name in names), "worst_miou"])
    np.testing.assert_allclose([found[name].value for name in names], oracle(clean), rtol=1e-12)
    np.testing.assert_allclose([found[f"robust_{name}"].value for name in names], oracle(worst), rtol=1e-12)
    assert found["worst_miou"].value <= found["robust_miou"].value


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 20))])
def test_the_worst_case_of_miou_is_one_that_no_single_image_lowers(seed):
    """Of few images and pictures also the lowest of all choices can be had, which is seldom missed."""
    rng = np.random.default_rng(seed)
    clean = maps(rng, 4, absent=())
    stages = [[(t, rng.choice(CLASSES, t.shape).astype(np.int16)) for t, _ in clean] for _ in range(2)]
    pictures = [clean, *stages]
    value = measure(attacked(*pictures), load_scenario("pgd20-linf-8_255")[1])["worst_miou"].value
    levels = {
        choice: oracle([pictures[k][index] for index, k in enumerate(choice)])[2]
        for choice in itertools.product(range(3), repeat=4)
    }
    mine = min(levels, key=lambda choice: abs(levels[choice] - value))
    assert levels[mine] == pytest.approx(value, rel=1e-12)
    neighbours = [choice for choice in levels if sum(a != b for a, b in zip(choice, mine, strict=True)) == 1]
    assert min(levels[choice] for choice in neighbours) >= value - 1e-12
    assert value <= min(levels.values()) + 0.05


def test_incomplete_tables_are_refused(grid):
    outcomes = outcomes_of(grid)
    missing = ~((outcomes["sample"] == "s2") & (outcomes["corruption"] == "fog"))
    with pytest.raises(BadInputError, match="1 images"):
        PixelCounts.of(outcomes.where(missing))
    twice = Outcomes.from_rows(outcomes.table, outcomes.rows() + outcomes.rows()[:2])
    with pytest.raises(BadInputError, match="2 rows"):
        PixelCounts.of(twice)


def test_pixels_without_a_finite_answer_are_wrong_and_those_of_no_class_count_nowhere():
    truth = np.array([[0, 0, 2, -1]], np.int16)
    assert pixel_counts(truth, np.array([[0, -1, -1, -1]], np.int16)).tolist() == [[0, 1, 2, 1], [2, 0, 1, 0]]
    assert pixel_counts(np.full((1, 3), -1, np.int16), np.zeros((1, 3), np.int16)).shape == (0, 4)
    truth = np.array([[-1, -1, 0]], np.int16)
    assert pixel_counts(truth, np.array([[5, 2, 1]], np.int16)).tolist() == [[0, 0, 1, 0], [1, 0, 0, 1]]
