"""Forged records of language models: everything stated follows from the forged table, and a rule refuses it."""

import markov_models
import numpy as np
import pytest

from robustbench_kpca import evaluate
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import measure
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import OutcomesFile, load_record
from robustbench_kpca.report.consistency import load_consistent

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def honest(few_resamples):
    """Records of one model on 60 positions, by protocol."""
    names = ("clean", "text-word-swap-rates")
    return {name: evaluate(markov_models.small(), markov_models.text(), protocol=name, batch_size=8) for name in names}


def forge(record, folder, columns, **update):
    """Save a copy with other columns, in which everything follows from everything else."""
    old = record.outcomes
    outcomes = Outcomes.from_columns(old.table, {**old.columns, **columns})
    spec = record.spec
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"n": len(set(outcomes["sample"].tolist()))})})
    scenario = parse_scenario(spec.protocol.resolved, "forged")
    update |= {
        "spec": spec, "metrics": measure(outcomes, scenario), "outcomes_file": OutcomesFile.of(outcomes, spec)
    }  # fmt: skip
    return record.model_copy(update=update).attach(outcomes).save(folder)


def at(name, row, value):
    def change(outcomes):
        column = outcomes[name].copy()
        column[row] = value
        return {name: column}

    return change


def without(row):
    return lambda outcomes: {name: np.delete(column, row) for name, column in outcomes.columns.items()}


def swapped_articles(outcomes):
    return {"article": outcomes["article"].max() - outcomes["article"]}


FORGERIES = {
    "a negative loss": ("clean", at("nll", 7, -0.5), "possible-losses"),
    "a loss that is not a number": ("clean", at("nll", 7, float("nan")), "possible-losses|metric"),
    "a hard position left out": ("clean", without(20), "whole-blocks"),
    "a position twice": ("clean", at("position", 7, 7), "one-row-each|whole-blocks"),
    "a position before the text": ("clean", at("position", 0, 0), "whole-blocks"),
    "a swapped word without corruption": ("clean", at("swapped", 3, 1), "swaps-fit"),
    "articles the other way round": ("clean", swapped_articles, "whole-blocks"),
    "a position left out of one cell": ("text-word-swap-rates", without(70), "whole-blocks"),
    "a swap that is neither there nor not": ("text-word-swap-rates", at("swapped", 70, 2), "swaps-fit"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_table_is_refused(name, honest, tmp_path):
    protocol, how, rule = FORGERIES[name]
    record = honest[protocol]
    if rule.endswith("metric"):
        with pytest.raises(BadInputError, match="not finite"):
            forge(record, tmp_path, how(record.outcomes))
        return
    path = forge(record, tmp_path, how(record.outcomes))
    with pytest.raises(BadInputError, match=f"breaks the rule '({rule})'"):
        load_consistent(path)


@pytest.mark.parametrize("protocol", ["clean", "text-word-swap-rates"])
def test_the_honest_record_passes(protocol, honest, tmp_path):
    record = honest[protocol]
    assert load_consistent(forge(record, tmp_path, {})).outcomes.digest() == record.outcomes.digest()


@pytest.mark.parametrize("forwards", [0, 61])
def test_windows_that_were_not_shown(forwards, honest, tmp_path):
    record = honest["clean"]
    passes = record.passes.model_copy(update={"forwards": forwards})
    with pytest.raises(BadInputError, match=f"'windows-fit': {forwards} forward passes for 60 positions"):
        load_consistent(forge(record, tmp_path, {}, passes=passes))


def test_the_file_is_read_as_it_was_written(honest, tmp_path):
    record = honest["text-word-swap-rates"]
    assert load_record(record.save(tmp_path)).outcomes.digest() == record.outcomes.digest()
    assert record.outcomes["swapped"][record.outcomes["severity"] == 3].sum() > 0
