"""The line about a long piece of work, and the line a minute where there is no terminal."""

import logging
import re

import pytest
import torch
from stand_ins import Flat, short_audits
from unfinished_states import Clock

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.progress import Every, Line, spell
from robustbench_kpca._engine.attack_loop import passes
from robustbench_kpca.audit.run import audit

pytestmark = pytest.mark.usefixtures("few_resamples")


def test_the_time_left_without_better_news():
    clock = Clock()
    line = Line("decoding", clock)
    assert line.left is None
    for done in (1, 20):
        clock.now = 100 + done
        line(done, 100)
    assert line.left == pytest.approx(80)
    clock.now += 5  # no news since
    assert line.left == pytest.approx(75)
    assert str(line) == "decoding  20/100  75 s left"
    clock = Clock()
    line = Line("resumed", clock)
    clock.now = 101
    line(900, 1000)  # found done
    clock.now = 111
    line(910, 1000)
    assert line.left == pytest.approx(90)


def test_the_line_of_an_attack_and_its_time_left():
    clock = Clock()
    line = Line("vit  autoattack", clock)
    line(3, 10, passes=(250, 1000), stage="apgd (1 of 4)", result="80.0 % of 5 stand", left=600.0)
    assert str(line) == (
        "vit  autoattack  apgd (1 of 4)  3/10, 250 of at most 1,000 passes  80.0 % of 5 stand  10 min left"
    )
    assert line.share == 0.25
    # Samples finish unevenly, so their number tells little: 900 of 1,000 possible passes are left at 10 a second.
    clock = Clock()
    line = Line("vit", clock)
    clock.now = 110
    line(0, 10, passes=(100, 1000))
    assert line.left == pytest.approx(90)
    line(8, 10, passes=(100, 300))  # those that broke can spend nothing more
    assert line.left == pytest.approx(20)
    assert str(line).endswith("at most 20 s left")


def test_a_protocol_without_attacks_reports_too(monkeypatch):
    monkeypatch.setattr(passes, "EVERY", 0.0)
    told = []
    evaluate(
        load_model("vit_digits"), load_data("digits", limit=4), protocol="teo2024-cut-off", audit=False,
        progress=lambda done, total, **news: told.append(news["stage"]),
    )  # fmt: skip
    assert set(told) == {"clean"}


def test_a_line_a_minute():
    clock, said = Clock(), []
    heartbeat, line = Every(60, clock), Line("long", clock)
    for second in range(1, 181):
        clock.now = 100 + second
        line(second, 1000)
        said += [str(line)] if heartbeat.due() else []
    assert said == ["long  60/1,000  16 min left", "long  120/1,000  15 min left", "long  180/1,000  14 min left"]


@pytest.mark.parametrize(("seconds", "text"), [(None, "?"), (0, "1 s"), (99, "99 s"), (100, "2 min"), (7200, "2.0 h")])
def test_durations(seconds, text):
    assert spell(seconds) == text


def test_what_an_attack_reports(monkeypatch):
    """Passes done are those of the record in the end, the possible ones a bound before, and the stages are named."""
    monkeypatch.setattr(passes, "EVERY", 0.0)
    told = []
    record = evaluate(
        load_model("vit_digits"), load_data("digits", limit=12), protocol="pgd20-linf-2_255", batch_size=8, audit=False,
        progress=lambda done, total, **news: told.append((done, total, news)),
    )  # fmt: skip
    possible = [news["passes"][1] for *_, news in told]
    assert 0 < possible[-1] <= max(possible) <= 12 * (21 + 20 + 1)  # a broken sample can cost a confirming pass more
    done, total, news = told[-1]
    assert (done, total) == (12, 12)
    assert news["passes"] == (news["passes"][1],) * 2
    assert news["passes"][0] == sum(record.outcomes[name].sum() for name in ("forwards", "backwards"))
    standing = 100 * (record.outcomes["broken_by"] == "").mean()
    assert news["result"] == f"{standing:.1f} % of 12 stand"
    assert all(news["stage"] == "pgd" for *_, news in told)


def test_an_attack_that_goes_on_after_success_says_nothing_of_those_that_stand(digits, monkeypatch):
    monkeypatch.setattr(passes, "EVERY", 0.0)
    told = []
    evaluate(
        Flat(), digits, protocol="pgd20-linf-2_255", policy="strongest", steps=2, audit=False,
        progress=lambda done, total, **news: told.append(news["result"]),
    )  # fmt: skip
    assert set(told) == {""}


ASKED = {"protocol": "fgsm-linf-8_255", "audit": "quick", "allow": ["vanishing-loss"]}


def shown_by_python(data):
    with short_audits():
        evaluate(Flat(), data, name="vit", **ASKED)
        audit(Flat(), data, name="alone", level="quick")


def quietly(data):
    evaluate(Flat(), data, protocol="fgsm-linf-8_255", audit=False, quiet=True)


@pytest.fixture
def digits():
    return load_data("digits", limit=4)


LINES = (
    "vit  quick audit: at most [0-9,]+ passes", "vit  quick audit  linf 8/255", "vit  fgsm-linf-8_255  clean_accuracy",
    "alone  quick audit: at most", "alone  quick audit  linf 8/255",
)  # fmt: skip


@pytest.mark.usefixtures("few_resamples")
class TestPythonShowsWhatTheCommandShows:
    def test_in_the_log(self, digits, caplog, capsys):
        with caplog.at_level(logging.INFO, "robustbench_kpca"):
            shown_by_python(digits)
            for line in LINES:
                assert re.search(line, caplog.text), line
            assert capsys.readouterr().err == ""
            caplog.clear()
            quietly(digits)
            assert not [one for one in caplog.records if one.levelno == logging.INFO]

    @pytest.mark.slow
    def test_on_a_terminal(self, digits, caplog, capsys, monkeypatch):
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        shown_by_python(digits)
        text = capsys.readouterr().err
        for line in (*LINES, "alone  audit .*━"):
            assert re.search(line, text), line
        quietly(digits)
        assert capsys.readouterr().err == ""
        assert not caplog.messages

    def test_a_flag_is_a_warning_even_if_quiet(self, linear, caplog):
        images = torch.linspace(0, 1, 32).reshape(-1, 1, 1, 1)
        labels = (images < 0.5).long().flatten()  # of these none is right
        evaluate(linear(torch.ones(1, 1, 1), -0.5).eval(), images, labels, protocol="clean", quiet=True)
        warned = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
        assert any(text.startswith("Linear, clean: ") for text in warned)

    def test_a_program_may_follow_by_itself(self, digits, capsys, monkeypatch):
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        told = []
        evaluate(
            load_model("vit_digits"), digits, protocol="clean", progress=lambda done, total, **_: told.append(done)
        )
        assert told[-1] == len(digits)
        assert "━" not in capsys.readouterr().err
