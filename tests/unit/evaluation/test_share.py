"""Parts that know nothing of each other make the record of one process; the last one writes it."""

import sys
from pathlib import Path

import pytest
from fake_ray import FakeRay
from stand_ins import tables

from robustbench_kpca import evaluate, load_data
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.evaluation import part
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.shard_run import WaitingError
from robustbench_kpca.evaluation.sharded import Share

pytestmark = pytest.mark.usefixtures("few_resamples")
ATTACK = {"protocol": "pgd20-linf-4_255", "steps": 2, "batch_size": 4, "audit": False}
GRID = {"protocol": "common-corruptions", "severities": [1], "corruptions": ["fog", "contrast"], "batch_size": 4}
TIMES = {"created", "seconds"}


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", limit=20).in_order()


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr("robustbench_kpca.records.shards.LEAST_BATCHES", 1)


@pytest.mark.parametrize("how", [ATTACK, GRID], ids=["attack", "grid"])
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 1, 2)])
def test_the_last_part_makes_the_record_of_one_process(how, order, digits, tmp_path):
    plain = evaluate("symvit_digits", digits, out=tmp_path / "plain", **how)
    *first, last = order
    for number in first:
        with pytest.raises(WaitingError, match=rf"part {number} of 3 is made; \d of 5 shards are not there yet"):
            evaluate("symvit_digits", digits, out=tmp_path / "parts", part=f"{number}/3", **how)
    made = evaluate("symvit_digits", digits, out=tmp_path / "parts", part=f"{last}/3", **how)
    assert made.model_dump(exclude=TIMES) == plain.model_dump(exclude=TIMES)
    assert tables(tmp_path / "parts") == tables(tmp_path / "plain")
    assert not list((tmp_path / "parts").glob(".*"))
    again = evaluate("symvit_digits", digits, out=tmp_path / "parts", part="1/3", **how)
    assert again.created == made.created


@pytest.mark.parametrize("who", ["part", "ray"])
def test_a_curve_goes_on_from_the_smaller_budget_in_every_shard(who, digits, tmp_path, monkeypatch):
    how, real, known = {**ATTACK, "protocol": [ATTACK["protocol"]], "curve": ["1/255", "4/255"]}, part.attack_all, []
    plain = evaluate("symvit_digits", digits, out=tmp_path / "plain", **how)

    def attack_all(runner, data, protocol, *, smaller, **more):
        if protocol.below:
            known.append((list(smaller["sample"]), data.ids))
        return real(runner, data, protocol, smaller=smaller, **more)

    monkeypatch.setattr(part, "attack_all", attack_all)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", FakeRay(resources={"CPU": 1}))
    given = {"part": "1/1"} if who == "part" else {"executor": "ray"}
    made = evaluate("symvit_digits", digits, out=tmp_path / "shards", **given, **how)
    assert [one.model_dump(exclude=TIMES) for one in made] == [one.model_dump(exclude=TIMES) for one in plain]
    assert tables(tmp_path / "shards") == tables(tmp_path / "plain")
    assert [ids for ids, _ in known] == [ids for _, ids in known] == [digits.ids[at : at + 4] for at in range(0, 20, 4)]


def test_a_part_that_was_killed_goes_on_and_makes_no_shard_twice(digits, tmp_path, monkeypatch):
    real, made = part.make_part, []

    def interrupted(subjects, samples, *given, **how):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(samples.ids)
        return real(subjects, samples, *given, **how)

    monkeypatch.setattr(part, "make_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate("symvit_digits", digits, out=tmp_path, part="1/1", **ATTACK)
    monkeypatch.setattr(part, "make_part", lambda *given, **how: (made.append(given[1].ids), real(*given, **how))[1])
    record = evaluate("symvit_digits", digits, out=tmp_path, part="1/1", **ATTACK)
    assert [name for ids in made for name in ids] == digits.ids
    assert record.spec.data.n == 20


def test_two_last_parts_at_once_make_one_record(digits, tmp_path, monkeypatch):
    """The second has found all shards, waits for the lock, and finds the record."""
    real, written = Evaluation.finish, []

    def finish(evaluation, *given, **how):
        written.append(True)
        return real(evaluation, *given, **how)

    plain = Share.prepare
    monkeypatch.setattr(Evaluation, "finish", finish)

    def make_own(*given):
        plain(*given)
        monkeypatch.setattr(Share, "prepare", plain)
        written.append(evaluate("symvit_digits", digits, out=tmp_path, part="1/1", **ATTACK))

    monkeypatch.setattr(Share, "prepare", make_own)
    record = evaluate("symvit_digits", digits, out=tmp_path, part="1/1", **ATTACK)
    assert written == [True, record]


@pytest.mark.parametrize(
    "how", [{"part": "0/3"}, {"part": "4/3"}, {"part": "1"}, {"part": "1/3", "processes": 2}, {"part": "1/3"},
            {"part": "1/3", "out": Path("runs"), "fresh": True}, {"part": "1/9999", "out": Path("runs")}],
)  # fmt: skip
def test_parts_that_make_no_sense_are_refused(how):
    with pytest.raises(BadInputError, match="part"):
        RunOptions(**how)


def test_the_command_ends_well_and_says_what_is_missing(tmp_path, capsys):
    asked = ["eval", "-m", "vit_digits", "-p", "fgsm-linf-8_255", "--limit", "8", "--batch-size", "4"]
    asked += ["--audit", "none"]
    assert main([*asked, "-o", str(tmp_path), "--part", "1/2"]) == 0
    assert capsys.readouterr().err.count("part 1 of 2 is made; 1 of 2 shards are not there yet") == 1
    assert main(["records", "status", str(tmp_path)]) == 0
    assert main([*asked, "-o", str(tmp_path), "--part", "2/2"]) == 0
    assert "robust_accuracy" in capsys.readouterr().out
