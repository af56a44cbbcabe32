"""An audit is made at the eps of the protocol that it is for, and a board says where it was not."""

import json

import pytest
from board_pages import board_text
from stand_ins import Flat, short_audits

from robustbench_kpca import evaluate, load_record
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.audit.budgets import eps_for, eps_of
from robustbench_kpca.cli.main import main
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.plan import AuditModel, Job, make_plan
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.threat import spell_eps
from robustbench_kpca.records.record import find_records

pytestmark = pytest.mark.usefixtures("few_resamples", "tiny")
SMALL = "pgd20-linf-4_255"


@pytest.mark.parametrize(
    ("protocol", "settings", "eps"),
    [
        ("pgd20-linf-8_255", {}, "8/255"),
        (SMALL, {}, "4/255"),
        ("pgd20-linf-8_255", {"eps": "1/255"}, "1/255"),
        ("pgd20-linf-8_255", {"eps": 0.0123456789}, 0.0123456789),
        ("pgd20-linf-8_255", {"eps": "4/255", "below": ["1/255", "2/255"]}, "1/255"),
        ("pgd20-l2-128_255", {}, "8/255"),  # an audit attacks within L-infinity
    ],
)
def test_the_eps_of_an_audit_for_a_protocol(protocol, settings, eps):
    assert eps_of(load_scenario(protocol, settings)[1]) == eps


def test_the_eps_of_audits_of_a_protocol_and_of_a_plan():
    assert (eps_for(None), eps_for(SMALL)) == ("8/255", "4/255")
    with pytest.raises(BadInputError, match="'clean' is not an attack"):
        eps_for("clean")
    assert planned(["clean", SMALL, "fgsm-linf-8_255", "pgd20-linf-8_255"]) == ["4/255", "8/255"]
    assert planned([SMALL], curve=("1/255", "4/255", "2/255")) == ["1/255"]
    assert planned([SMALL], curve=("1/255", "2/255"), independent=True) == ["1/255", "2/255"]


@pytest.mark.parametrize(("eps", "text"), [(8 / 255, "8/255"), (1.0, "255/255"), (0.5, "0.5")])
def test_an_eps_in_levels_is_a_fraction(eps, text):
    assert spell_eps(eps) == text


def planned(protocols, **how):
    jobs = [Job(ModelRequest("vit_digits"), protocols, **how)]
    plan = make_plan(jobs, DataRequest("digits"), RunOptions(), audit="quick")
    return [step.eps for step in plan.steps if isinstance(step, AuditModel)]


def eps_by_protocol(records):
    return {record.spec.protocol.name: record.audit and spell_eps(record.audit.plan.eps) for record in records}


def test_records_hold_the_audit_of_their_own_eps(data, tmp_path):
    """From Python and from the command; what else is asked for at once changes no record."""
    protocols = ["clean", "fgsm-linf-8_255", SMALL]
    expected = {"clean": None, "fgsm-linf-8_255": "8/255", SMALL: "4/255"}
    assert eps_by_protocol(evaluate(Flat(), data, protocol=protocols, audit="quick")) == expected
    asked = ["eval", "-m", "stand_ins:Flat", "--data", "digits", "--limit", "8", "--audit", "quick", "-q"]
    assert main([*asked, *(word for name in protocols for word in ("-p", name)), "-o", str(tmp_path)]) == 0
    assert eps_by_protocol(map(load_record, find_records(tmp_path))) == expected
    assert len(list(tmp_path.rglob("*.audit.json"))) == 2
    assert main([*asked, "-p", SMALL, "-o", str(tmp_path)]) == 0
    assert eps_by_protocol(map(load_record, find_records(tmp_path))) == expected


def test_audits_are_shared_by_budgets_and_made_again_at_another_eps(data, tmp_path):
    how = {"protocol": ["fgsm-linf-8_255"], "curve": ["1/255", "2/255"], "audit": "quick"}
    assert [*eps_by_protocol(evaluate(Flat(), data, **how)).values()] == ["1/255", "1/255"]
    alone = evaluate(Flat(), data, **how, independent=True)
    assert [*eps_by_protocol(alone).values()] == ["1/255", "2/255"]
    from robustbench_kpca.audit.run import audit

    model, how = Flat(), {"protocol": SMALL, "out": tmp_path}
    other = audit(model, data, level="quick")
    first = evaluate(model, data, **how, audit=other)
    assert first.audit.plan.eps == 8 / 255
    again = evaluate(model, data, **how, audit="quick")
    assert (again.audit.plan.eps, again.created) == (4 / 255, first.created)


def test_the_command_of_an_audit(capsys):
    asked = ["audit", "stand_ins:Flat", "--data", "digits", "--limit", "8", "--quick", "--json"]
    for more, eps in (([], "8/255"), (["-p", SMALL], "4/255"), (["--eps", "3/255"], "3/255")):
        main([*asked, *more])
        assert spell_eps(json.loads(capsys.readouterr().out)["plan"]["eps"]) == eps
    assert main([*asked[:-1], "-p", SMALL]) in (0, 1)
    assert "stand_ins-Flat  quick audit  linf 4/255" in capsys.readouterr().err
    for more, said in ((["-p", SMALL, "--eps", "1/255"], "one of them"), (["-p", "clean"], "is not an attack")):
        assert main([*asked, *more]) == 2
        assert said in capsys.readouterr().err


def test_a_board_says_where_audits_are_within_another_ball(data, tmp_path, capsys):
    folder, records = tmp_path / "mine", tmp_path / "runs"
    folder.mkdir()
    protocols = {"Small": SMALL, "L2": "pgd20-l2-128_255", "FGSM": "fgsm-linf-8_255"}
    columns = {title: (protocol, "robust_accuracy") for title, protocol in protocols.items()}
    (folder / "board.toml").write_text(board_text(["vit_digits"], columns, limit=8))
    asked = ["eval", "-m", "vit_digits", "--limit", "8", "--audit", "quick", "-q", "-o", str(records)]
    with short_audits():
        assert main([*asked, "-p", SMALL, "-p", "pgd20-l2-128_255", "-p", "fgsm-linf-8_255"]) == 0
    assert main(["board", "render", str(folder), "--records", str(records)]) == 0
    said = "Audits were made within linf 8/255. They say nothing of attacks within another ball: l2 128/255 (“L2”)."
    for page in ("README.md", "index.html"):
        assert said in (folder / page).read_text()
    assert "“Small”" not in (folder / "README.md").read_text().partition("## Audit")[2].partition("## ")[0]
