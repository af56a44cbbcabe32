"""A quick audit asks less, says so everywhere, and never passes for a full one."""

from itertools import pairwise

import pytest
from board_pages import board_text
from fakes import BASES, fake, refusal
from test_audit import FAINT, FLAGGED, TOO_WEAK, flags
from torch import nn

from robustbench_kpca import evaluate, load_data, load_model, load_record
from robustbench_kpca._engine.attack_loop.passes import most_passes
from robustbench_kpca.audit.budgets import QUICK as QUICK_ATTACKS
from robustbench_kpca.audit.checks import CHECKS, QUICK
from robustbench_kpca.audit.run import audit
from robustbench_kpca.cli.main import main
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.record import find_records

pytestmark = pytest.mark.usefixtures("few_resamples")
FGSM = ("fgsm-linf-8_255", "robust_accuracy")
HOW = {"batch_size": 8, "protocol": "fgsm-linf-8_255"}


@pytest.mark.usefixtures("tiny")
def test_a_quick_audit_makes_the_quick_checks(data):
    quick, full = (audit(load_model("vit_digits"), data, batch_size=8, level=level) for level in ("quick", "full"))
    assert [check.name for check in quick.checks] == [*(n for n in CHECKS if n in QUICK), "runs", "untouched"]
    assert [check.name for check in full.checks] == [*CHECKS, "runs", "untouched"]
    assert set(quick.plan.attacks) == set(QUICK_ATTACKS)
    both = {check.name: check for check in full.checks}
    assert all(check == both[check.name] for check in quick.checks)
    assert quick.plan_digest != full.plan_digest


@pytest.mark.usefixtures("tiny")
def test_a_quick_audit_does_not_serve_where_a_full_one_is_asked_for(data, tmp_path):
    model, out = load_model("vit_digits"), {"out": tmp_path}
    quick = evaluate(model, data, **HOW, **out, audit="quick")
    assert quick.audit.plan.level == "quick"
    full = evaluate(model, data, **HOW, **out, audit="full")
    assert full.audit.plan.level == "full"
    assert full.created == quick.created  # the attack was not made again
    assert evaluate(model, data, **HOW, **out, audit="quick").audit == full.audit  # a full one is enough
    said = []
    assert audit(model, data, level="quick", announce=said.append, **out, batch_size=8) == full.audit
    assert said == []
    evaluate(model, data, **HOW, **out, audit=audit(model, data, level="quick", batch_size=8))
    assert load_record(find_records(tmp_path)[0]).audit == full.audit


class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.least, self.most = load_model("vit_digits"), 0.0, 1.0

    def forward(self, x):
        least, most = x.detach().aminmax()
        self.least, self.most = min(self.least, float(least)), max(self.most, float(most))
        return self.inner(x)


@pytest.mark.usefixtures("tiny")
def test_an_audit_at_a_large_eps_stays_in_the_box(data):
    model = Watched().eval()
    audit(model, data, batch_size=8, level="quick", eps=0.8)
    assert (model.least, model.most) == pytest.approx((0, 1), abs=1e-6)


@pytest.mark.usefixtures("tiny")
def test_what_an_audit_costs_is_said_before_and_never_exceeded(data):
    said, told = [], []
    audit(
        load_model("vit_digits"), data, batch_size=8, level="quick", announce=said.append,
        progress=lambda done, total, **news: told.append(news["passes"]),
    )  # fmt: skip
    (text,) = said
    most = int(text.split(" at most ")[1].split()[0].replace(",", ""))
    assert text.startswith("quick audit: at most ")
    assert told[0][1] <= most
    assert all(before[1] >= after[1] >= after[0] for before, after in pairwise(told))  # what is possible only shrinks
    scenarios = [load_scenario("pgd20-linf-8_255", {"steps": 2})[1]] * 3 + [load_scenario("fgsm-linf-8_255")[1]]
    passes = [most_passes(scenario, 10) for scenario in scenarios]  # PGD, huge-eps, PGD to its end, FGSM
    assert most == 8 * sum(spent.total for spent in passes)


@pytest.mark.usefixtures("tiny")
def test_the_command_line_and_the_board_say_which_audit_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["eval", "-m", "vit_digits", "-p", "fgsm-linf-8_255", "--limit", "8", "--batch-size", "8", "-o", "runs"]
    assert main([*command, "--audit", "quick"]) == 0
    assert "vit_digits  quick audit  " in capsys.readouterr().err
    record = load_record(find_records("runs")[0])
    assert record.command[-2:] == ("--audit", "quick")
    assert main(["records", "show", "runs"]) == 0
    assert f"quick, {len(record.audit.checks)} checks: " in capsys.readouterr().out
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "board.toml").write_text(board_text(["vit_digits"], {"F": FGSM}, limit=8))
    assert main(["board", "render", "mine", "--records", "runs"]) == 0
    page = (tmp_path / "mine" / "README.md").read_text()
    assert "◐" in page
    assert "quick audit, of these checks alone: ascent, finite, gradients" in page
    assert main([*command, "--audit", "some"]) == 2
    assert "some" in capsys.readouterr().err


MISSED = {(BASES[0], "saturate", 1)}  # only `other-loss`, a check of the full audit, sees it


@pytest.mark.slow
@pytest.mark.parametrize(("base", "kind", "strength"), sorted({*FLAGGED} - {*TOO_WEAK, FAINT}))
def test_fakes_that_a_quick_audit_flags(base, kind, strength):
    few, model = load_data("digits", limit=24), fake(base, kind, strength)
    assert refusal(model, *few.tensors()) == ""
    found = flags(audit(model, few, batch_size=24, level="quick"))
    if (base, kind, strength) in MISSED or (base == BASES[1] and kind == "saturate"):
        assert found == []
    else:
        assert found != []
