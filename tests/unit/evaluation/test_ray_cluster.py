"""The engine `ray` against a stand-in for Ray: the record of one process, whatever is lost; and what is refused."""

import sys

import pytest
from fake_ray import FakeRay
from stand_ins import tables

from robustbench_kpca import evaluate, load_data
from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca.evaluation import ray_cluster
from robustbench_kpca.evaluation.options import RunOptions

pytestmark = pytest.mark.usefixtures("few_resamples")
HOW = {"protocol": "pgd20-linf-4_255", "steps": 2, "batch_size": 4, "audit": False}


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", limit=20).in_order()


@pytest.fixture(scope="module")
def plain(digits, tmp_path_factory, few_resamples):
    out = tmp_path_factory.mktemp("plain")
    record = evaluate("symvit_digits", digits, out=out, executor="serial", **HOW)
    return record.model_dump(exclude={"created", "seconds"}), tables(out)


@pytest.fixture
def use(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def install(**how):
        ray = FakeRay(**how)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return ray

    return install


@pytest.mark.parametrize("lost", [(), (1,), (2, 4), (1, 2, 3, 6)])
def test_the_record_is_that_of_one_process_whatever_is_lost(lost, use, digits, plain, tmp_path):
    ray, told = use(lost=lost), []
    record = evaluate(
        "symvit_digits", digits, out=tmp_path, executor="ray",
        progress=lambda done, total, **news: told.append((done, total)), **HOW,
    )  # fmt: skip
    assert (record.model_dump(exclude={"created", "seconds"}), tables(tmp_path)) == plain
    assert told[-1] == (20, 20)
    assert ray.tasks == 5 + len(lost), "each of the five shards once, and again what was lost"
    assert not ray.connected
    assert (ray.asked["address"], ray.needs["num_gpus"]) == ("local", 0)
    assert not list(tmp_path.glob(".*"))


def test_a_shard_that_is_lost_three_times_is_given_up(use, digits, tmp_path):
    ray = use(resources={"CPU": 1}, lost=(1, 2, 3))
    with pytest.raises(EvaluationError, match=r"1 of 5 shards .*samples 0 to 3: .*lost \(its machine is gone\)"):
        evaluate("symvit_digits", digits, out=tmp_path, executor="ray", **HOW)
    assert ray.tasks == 3 + 4, "the others were made"
    assert not list(tmp_path.glob("*.json"))


def test_a_cluster_of_the_user_is_used_and_left_alone(use, digits, plain, tmp_path, monkeypatch):
    ray = use()
    ray.connected = True
    evaluate("symvit_digits", digits, out=tmp_path, executor="ray", processes=3, **HOW)
    assert tables(tmp_path) == plain[1]
    assert ray.connected
    assert not ray.asked, "not connected again"
    ray.connected = False
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    evaluate("symvit_digits", digits, out=tmp_path, executor="ray", fresh=True, **HOW)
    assert ray.asked["address"] == "head:6379"


def test_a_worker_in_another_environment_is_refused(use, digits, monkeypatch):
    use()
    monkeypatch.setattr("robustbench_kpca.evaluation.worker.environment", _other)
    with pytest.raises(EvaluationError, match="a worker has processor abacus, and the first process"):
        evaluate("symvit_digits", digits, executor="ray", **HOW)


def _other(where):
    from robustbench_kpca._engine.inference.environment import environment

    return environment(where).model_copy(update={"processor": "abacus"})


def test_what_cannot_be_done_is_refused_in_one_line(use, digits, monkeypatch):
    use(resources={"CPU": 2})
    with pytest.raises(BadInputError, match=r"no Ray cluster at 'nowhere:1' \(no connection"):
        evaluate("symvit_digits", digits, executor="ray:nowhere:1", **HOW)
    with pytest.raises(BadInputError, match="has no GPU"), ray_cluster.RayCluster(None, "", on_gpu=True):
        pass
    ray = use(room=False)
    monkeypatch.setattr(ray_cluster, "PATIENCE", 0.0)
    with pytest.raises(EvaluationError, match=r"no CPU in the Ray cluster for 0 s; expected a machine"):
        evaluate("symvit_digits", digits, executor="ray", **HOW)
    assert ray.cancelled
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInputError, match=r"pip install '\.\[ray\]'"):
        evaluate("symvit_digits", digits, executor="ray", **HOW)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"executor": "dask"}, "executor 'dask'"),
        ({"executor": "processes:auto"}, "executor 'processes:auto'"),
        ({"executor": "serial", "processes": 2}, "2 processes with executor 'serial'"),
    ],
)
def test_executors_that_make_no_sense_are_refused(asked, why):
    with pytest.raises(BadInputError, match=why):
        RunOptions(**asked)


def test_the_engine_follows_from_what_is_asked():
    asked = [{}, {"processes": 1}, {"processes": 2}, {"executor": "processes"}, {"executor": "ray:head:6379"}]
    assert [RunOptions(**one).engine for one in asked] == [
        ("serial", ""), ("serial", ""), ("processes", ""), ("processes", ""), ("ray", "head:6379"),
    ]  # fmt: skip
