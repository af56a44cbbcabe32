"""Forged records of language models: everything stated follows from the forged table, and a rule refuses it."""

import markov_models
import numpy as np
import pytest
from forging import changed, saved

from robustbench_kpca import evaluate
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.report.consistency import load_consistent

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def honest(few_resamples):
    """Records of one model on 60 positions, by protocol."""
    names = ("clean", "text-word-swap-rates")
    return {name: evaluate(markov_models.small(), markov_models.text(), protocol=name, batch_size=8) for name in names}


def without(row):
    return lambda outcomes: {name: np.delete(column, row) for name, column in outcomes.columns.items()}


def swapped_articles(outcomes):
    return {"article": outcomes["article"].max() - outcomes["article"]}


FORGERIES = {
    "a negative loss": ("clean", changed("nll", 7, -0.5), "possible-losses"),
    "a loss that is not a number": ("clean", changed("nll", 7, float("nan")), "possible-losses|metric"),
    "a hard position left out": ("clean", without(20), "whole-blocks"),
    "a position twice": ("clean", changed("position", 7, 7), "one-row-each|whole-blocks"),
    "a position before the text": ("clean", changed("position", 0, 0), "whole-blocks"),
    "a swapped word without corruption": ("clean", changed("swapped", 3, 1), "swaps-fit"),
    "articles the other way round": ("clean", swapped_articles, "whole-blocks"),
    "a position left out of one cell": ("text-word-swap-rates", without(70), "whole-blocks"),
    "a swap that is neither there nor not": ("text-word-swap-rates", changed("swapped", 70, 2), "swaps-fit"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_table_is_refused(name, honest, tmp_path):
    protocol, how, rule = FORGERIES[name]
    record = honest[protocol]
    if rule.endswith("metric"):
        with pytest.raises(BadInputError, match="not finite"):
            saved(record, tmp_path, columns=how)
        return
    path = saved(record, tmp_path, columns=how)
    with pytest.raises(BadInputError, match=f"breaks the rule '({rule})'"):
        load_consistent(path)


@pytest.mark.parametrize("protocol", ["clean", "text-word-swap-rates"])
def test_the_honest_record_passes(protocol, honest, tmp_path):
    record = honest[protocol]
    assert load_consistent(saved(record, tmp_path)).outcomes.digest() == record.outcomes.digest()


@pytest.mark.parametrize("forwards", [0, 61])
def test_windows_that_were_not_shown(forwards, honest, tmp_path):
    record = honest["clean"]
    passes = record.passes.model_copy(update={"forwards": forwards})
    with pytest.raises(BadInputError, match=f"'windows-fit': {forwards} forward passes for 60 positions"):
        load_consistent(saved(record, tmp_path, passes=passes))
