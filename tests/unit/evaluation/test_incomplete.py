"""A record that is incomplete stops no other one, and one that another run has finished meanwhile is not made again."""

from contextlib import contextmanager, nullcontext

import pytest
from stand_ins import Here

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.lock import is_held
from robustbench_kpca.evaluation import part
from robustbench_kpca.evaluation.engines import Serial
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.execute import execute
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.plan import Job, make_plan
from robustbench_kpca.evaluation.reporter import Reporter
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
from robustbench_kpca.evaluation.shard_run import IncompleteError
from robustbench_kpca.records.shard_folder import lock_of

pytestmark = pytest.mark.usefixtures("few_resamples")


class Reports(Reporter):
    def __init__(self):
        self.said, self.records = [], []

    def start(self, title):
        return lambda done, total, **news: None

    def announce(self, text):
        self.said.append(text)

    def recorded(self, record):
        self.records.append((record.spec.model.name, record.spec.protocol.name))


def carry_out(plan, reports, engine=None):
    return execute(plan, reports, lambda options: nullcontext(engine or Serial()))


def plan(out, protocol, models=("symvit_digits",), overrides=None, **how):
    jobs = [Job(ModelRequest(name), [protocol], overrides or {}, **how) for name in models]
    options = RunOptions(batch_size=4, device="cpu", out=out)
    return make_plan(jobs, DataRequest("digits", limit=4), options, audit=False)


def test_after_an_incomplete_budget_those_that_do_not_start_from_it_are_attacked(tmp_path):
    fails = Here(lambda work: work.scenario.eps == pytest.approx(2 / 255))
    for independent, made in ((True, 2), (False, 1)):
        reports, out = Reports(), tmp_path / str(independent)
        curve = {"curve": ("1/255", "2/255", "3/255"), "independent": independent}
        with pytest.raises(IncompleteError, match=r"1 of 1 shards failed at every attempt"):
            carry_out(plan(out, "pgd20-linf-4_255", overrides={"steps": 1}, **curve), reports, fails)
        assert len(reports.records) == made
        assert len(list(out.glob("*.record.json"))) == made
        assert sum("shards failed" in text for text in reports.said) == 1


@pytest.mark.untyped
def test_an_audit_that_python_does_not_know_is_refused():
    with pytest.raises(BadInputError, match=r"audit = 'none'"):
        make_plan([], DataRequest("digits"), RunOptions(), audit="none")


def test_incomplete_models_stop_no_other_one_nor_its_settings(tmp_path):
    models = ("symvit_digits", "vit_digits", "symvit_digits_adv")
    fails, reports = Here(lambda work: work.spec.model.name != "vit_digits"), Reports()
    with pytest.raises(IncompleteError, match=r"symvit_digits clean: .* 1 more record is incomplete"):
        carry_out(plan(tmp_path, "clean", models), reports, fails)
    assert reports.records == [("vit_digits", "clean")]
    assert [text.split()[0] for text in reports.said] == ["symvit_digits", "symvit_digits_adv"]
    protocol, models = "common-corruptions", ("symvit_digits", "vit_digits", "symvit_digits_adv")
    jobs = [
        Job(ModelRequest(name), [protocol], {"severities": [severity]})
        for name, severity in zip(models, (1, 2, 1), strict=True)
    ]
    options = RunOptions(batch_size=4, device="cpu", out=tmp_path)
    steps = make_plan(jobs, DataRequest("digits", limit=4), options, audit=False).steps
    assert [(step.models, step.overrides["severities"]) for step in steps] == [((0, 2), [1]), ((1,), [2])]


@pytest.mark.parametrize("protocol", ["clean", "fgsm-linf-8_255"])
def test_the_lock_is_held_until_the_record_is_written(protocol, tmp_path, monkeypatch):
    held, real = [], Evaluation.finish

    def finish(evaluation, *given, **how):
        held.append(is_held(lock_of(tmp_path, evaluation.spec.stem())))
        return real(evaluation, *given, **how)

    monkeypatch.setattr(Evaluation, "finish", finish)
    carry_out(plan(tmp_path, protocol), Reports(), Here())
    assert held
    assert all(held)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("protocol", ["clean", "fgsm-linf-8_255"])
@pytest.mark.parametrize("backend", [None, Here()], ids=["alone", "elsewhere"])
def test_what_another_run_has_finished_meanwhile_is_not_made_again(backend, protocol, tmp_path, monkeypatch):
    """It looked for the record, found none, and had the lock only after the other run had given it back."""
    real, other = Evaluation.holding_lock, []

    @contextmanager
    def holding_lock(evaluation, *, wait):
        if not other:
            other.append(True)
            other.extend(carry_out(plan(tmp_path, protocol), Reports(), None))
            monkeypatch.setattr(part, "attack_all", None)
            monkeypatch.setattr(part, "show_all", None)
        with real(evaluation, wait=wait):
            yield

    monkeypatch.setattr(Evaluation, "holding_lock", holding_lock)
    assert carry_out(plan(tmp_path, protocol), Reports(), backend) == other[1:]
    assert backend is None or not backend.made
