"""Forged records: everything stated follows from the forged table, hashes included, and a rule refuses it all the same.

Each case changes one honest record of the committed boards, computes metrics, sums and hashes again, and saves it as
an honest program would.
"""

import re

import numpy as np
import pytest
import torch
from forging import BOARDS, changed, honest, saved

from robustbench_kpca import evaluate, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import load_toml, validate
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.known import KNOWN
from robustbench_kpca.data.load import load_data
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records.audit import load_audit
from robustbench_kpca.records.audit_versions import fault
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.records.spec import Passes, ProtocolInfo
from robustbench_kpca.report.board_spec import BoardSpec
from robustbench_kpca.report.consistency import load_consistent
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.report.render import markdown
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.facts import known_data

PGD = "digits/records/vit_digits__*__pgd20-linf-8_255__*.record.json"
CASCADE = "digits-attacks/records/vit_digits_adv__*__autoattack-linf-8_255__*.record.json"
CLEAN = "digits/records/vit_digits__*__clean__*.record.json"
GRID = "digits/records/vit_digits__*__noise-blur-contrast-32px__*.record.json"
SCENE_GRID = "shapes/records/symvit_shapes__*__shapes-c__*.record.json"
OOD = "cifar10/records/vit_cifar_fast-s0__*__ood__*.record.json"
SCENES = "shapes/records/symvit_shapes__*__segpgd20-linf-4_255__*.record.json"
WORDS = "grammar/records/identity_lm_tiny__*__random-swap-words-1.5__*.record.json"

pytestmark = pytest.mark.usefixtures("few_resamples")


def forge(record, folder, columns=None, *, passes=None, audit=None, **resolved):
    """Save a copy with other columns, protocol, audit or passes, in which everything follows from everything else."""
    scenario = parse_scenario({**record.spec.protocol.resolved, **resolved}, "forged")
    protocol = ProtocolInfo(
        name=record.spec.protocol.name, digest=scenario.digest(), resolved=scenario.model_dump(mode="json")
    )
    changes = {name: value for name, value in (("passes", passes), ("audit", audit)) if value is not None}
    change = None if columns is None else lambda _: columns
    return saved(record, folder, columns=change, spec={"protocol": protocol}, **changes)


def emptied(outcomes):
    return {"broken_by": np.full(len(outcomes), "", dtype=object)}


def all_right(outcomes):
    return emptied(outcomes) | {"prediction": outcomes["label"]}


def standing(outcomes):
    return int((outcomes["broken_by"] == "").argmax())


def at_standing(name, value):
    return lambda outcomes: changed(name, standing(outcomes), value)(outcomes)


def at_broken(name, value):
    return lambda outcomes: changed(name, int((outcomes["broken_by"] == "pgd").argmax()), value)(outcomes)


def twice(outcomes):
    return {name: np.concatenate([column[:1], column[:1], column[2:]]) for name, column in outcomes.columns.items()}


FORGERIES = {
    "broken_by emptied": (PGD, emptied, "broken-fits"),
    "every answer right": (PGD, all_right, "broken-fits"),
    "an attack of another protocol": (PGD, changed("broken_by", 0, "square"), "broken-fits"),
    "beyond eps": (PGD, at_standing("linf", 0.05), "inside-the-ball"),
    "a perturbation that is not a number": (PGD, at_standing("linf", float("nan")), "inside-the-ball"),
    "zero passes": (PGD, at_broken("forwards", 0), "attacked"),
    "a search that stopped early": (PGD, at_standing("forwards", 20), "possible-passes"),
    "gradients that were never taken": (PGD, at_standing("backwards", 0), "possible-passes"),
    "more passes than a search has": (PGD, at_broken("forwards", 22), "possible-passes"),
    "more gradients than a search has": (PGD, at_broken("backwards", 21), "possible-passes"),
    "two attacks of four": (CASCADE, at_standing("backwards", 100), "possible-passes"),
    "a scene's search that stopped early": (SCENES, changed("backwards", 0, 3), "possible-passes"),
    "negative passes": (PGD, at_standing("backwards", -3), "counts-add-up"),
    "negative count": (PGD, at_standing("retracted", -1), "counts-add-up"),
    "a sample twice": (PGD, twice, "one-row-each"),
    "a label that is no class": (CLEAN, changed("label", 5, 10), "known-classes"),
    "a prediction that is no class": (CLEAN, changed("prediction", 5, -2), "known-classes"),
    "a confidence above one": (CLEAN, changed("confidence", 5, 1.5), "confidence-fits"),
    "a score above all numbers": (OOD, changed("max_logit", 5, float("inf")), "finite-scores"),
    "a rank that does not fit": (CLEAN, lambda o: {"rank": (o["prediction"] != o["label"]) * 0}, "rank-fits"),
    "two labels of one sample": (GRID, changed("label", 0, 9), "one-label-each|rank-fits"),
    "a cell left out": (SCENE_GRID, lambda o: o.where(o["severity"] < 5).columns, "every-cell"),
    "more right pixels than pixels": (SCENES, changed("intersection", 1, 10**6), "pixels-fit"),
    "a scene's passes": (SCENES, changed("forwards", 0, -1), "counts-add-up"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_table_is_refused(name, tmp_path):
    pattern, change, rule = FORGERIES[name]
    record = honest(pattern)
    path = forge(record, tmp_path, change(record.outcomes))
    with pytest.raises(BadInputError, match=f"{path.name} breaks the rule '"):
        load_consistent(path)
    forged = load_record(path)
    scenario, rules = parse_scenario(dict(forged.spec.protocol.resolved), "forged"), task_named(forged.spec.data.task)
    broken = {name for name, check in rules.pages.rules.items() if check(forged, scenario) is not None}
    assert broken & set(rule.split("|"))


@pytest.mark.parametrize("pattern", [PGD, CLEAN, GRID, SCENES, WORDS])
def test_the_honest_record_passes(pattern, tmp_path):
    """The forging itself is not what is refused."""
    record = honest(pattern)
    assert load_consistent(forge(record, tmp_path, {})).outcomes.digest() == record.outcomes.digest()


def test_a_small_budget_is_not_a_large_one(tmp_path):
    record = honest(PGD.replace("8_255", "2_255"))
    path = forge(record, tmp_path, eps=8 / 255)
    with pytest.raises(BadInputError, match="breaks the rule 'reaches-eps'"):
        load_consistent(path)


def test_the_honest_record_of_a_constant_model_passes(tmp_path):
    """No image is worse than the clean one, so nothing is moved."""
    constant = load_model("vit_digits")
    torch.nn.init.zeros_(constant.head.weight)
    evaluate(constant, load_data("digits", limit=160), protocol="pgd20-linf-8_255", audit=False, out=tmp_path)
    (path,) = find_records(tmp_path)
    assert load_consistent(path).outcomes["linf"].max() == 0


def test_an_attack_that_begins_at_the_image_may_break_all_near_it(tmp_path, few_resamples):
    """Where eps is huge, as an audit asks for, nothing is longer than half of it, and the record is honest."""
    made = evaluate(
        load_model("vit_digits"), load_data("digits", limit=16), protocol="mim-linf-8_255", eps=128 / 255,
        name="vit_digits", audit=False, out=tmp_path,
    )  # fmt: skip
    assert made.outcomes["linf"].max() < 64 / 255
    (path,) = find_records(tmp_path)
    assert load_consistent(path).outcomes.digest() == made.outcomes.digest()


def test_passes_that_do_not_add_up(tmp_path):
    path = forge(honest(PGD), tmp_path, passes=Passes(forwards=364, backwards=0))
    with pytest.raises(BadInputError, match=r"'counts-add-up': 364 and 0 passes, but its samples add up to"):
        load_consistent(path)


def test_an_audit_without_checks(tmp_path):
    record = honest(PGD)
    path = forge(record, tmp_path, audit=record.audit.model_copy(update={"checks": ()}))
    with pytest.raises(BadInputError, match="'audited-fully': its audit has no checks"):
        load_consistent(path)


def relaxed(checks, which, **changes):
    """The checks, one of them changed and its flag with it."""
    return tuple(one.model_copy(update=changes) if one.name == which else one for one in checks)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda audit: {"checks": audit.checks[1:]}, "lacks preflight"),
        (lambda audit: {"checks": (*audit.checks, audit.checks[0])}, "has a check twice"),
        (lambda audit: {"checks": relaxed(audit.checks, "slope", name="slopes")}, "lacks slope"),
        (lambda audit: {"checks": relaxed(audit.checks, "gradients", limit=1000.0)}, "'gradients' of its audit allows"),
        (lambda audit: {"schema_version": 2}, "version 2 lacks reach, smoothed"),
        (lambda audit: {"plan": audit.plan.model_copy(update={"limits": audit.plan.limits | {"flat": 1e-9}})},
         "has 1e-09 as limit 'flat'"),
    ],
)  # fmt: skip
def test_an_audit_lacks_what_every_audit_of_its_version_has(change, words, tmp_path):
    record = honest(PGD)
    audit = record.audit.model_copy(update=change(record.audit))
    audit = audit.model_copy(update={"plan_digest": audit.plan.digest()})
    with pytest.raises(BadInputError, match=f"'audited-fully': .*{words}"):
        load_consistent(forge(record, tmp_path, audit=audit))


def test_committed_audits_hold_what_their_version_asks():
    """Audits of the first version, and of any later one, stay readable."""
    found = {load_audit(path).schema_version for path in sorted(BOARDS.rglob("*.audit.json"))}
    records = [load_record(path) for path in sorted((BOARDS / "digits").rglob("*.record.json"))]
    for record in records:
        if record.audit is not None:
            assert fault(record.audit) is None
            found.add(record.audit.schema_version)
    assert 1 in found


EASIEST = "e" * 64
"""Digest of the easiest training images, in a folder that is named `digits/test`."""


@pytest.mark.parametrize("pattern", [CLEAN, GRID])
def test_other_images_are_not_the_bundled_ones(pattern, tmp_path):
    path = saved(honest(pattern), tmp_path, data={"digest": EASIEST})
    with pytest.raises(BadInputError, match=r"'known-data': all 364 samples of digits \(test\).* 3066c18d15dc"):
        load_consistent(path)


def test_a_set_has_no_more_samples_than_it_has(tmp_path):
    (path,) = BOARDS.glob("shapes/records/symvit_shapes__*__segmentation__*.record.json")
    record, (_, scenario) = load_record(path), load_scenario("segmentation")
    spec = record.spec.model_copy(update={"data": record.spec.data.model_copy(update={"n": 201})})
    assert (
        known_data(record.model_copy(update={"spec": spec}).attach(record.outcomes), scenario)
        == "201 samples of shapes (val), which has 200"
    )
    assert known_data(record, scenario) is None, "of a part nothing is known"


def test_images_of_another_name_are_anybodys(tmp_path):
    load_consistent(saved(honest(CLEAN), tmp_path, data={"name": "mine", "digest": EASIEST}))


@pytest.mark.parametrize(("name", "split"), [key for key in KNOWN if key[1] != "train"])
def test_the_known_digests_are_those_of_the_sets(name, split):
    data = load_data(name, split)
    assert (len(data), data.digest()) == KNOWN[name, split]


def test_a_board_takes_only_the_data_that_it_names(tmp_path, capsys):
    """Part of a split has no known digest; the board has one."""
    (path,) = BOARDS.glob("digits-attacks/records/vit_digits__*__clean__*.record.json")
    forged = saved(load_record(path), tmp_path / "records", data={"digest": EASIEST})
    load_consistent(forged)
    mine = tmp_path / "mine"
    mine.mkdir()
    text = (BOARDS / "digits-attacks" / "board.toml").read_text()
    (mine / "board.toml").write_text(text)
    runs = load_board(str(mine), [path]).runs
    assert {run.state for run in runs if run.record} == {"ready"}
    board = load_board(str(mine), [path, forged])
    assert [run.record.spec.data.digest for run in board.runs if run.record] == [load_record(path).spec.data.digest]
    other = load_board(str(mine), [forged])
    assert [run.state for run in other.runs if run.model == "vit_digits"].count("other data") == 1
    assert "Records of 1 runs are of other data" in markdown(other)
    assert main(["board", "plan", str(mine), "--records", str(forged.parent)]) == 0
    shown = capsys.readouterr().out
    assert "Records of 1 runs are of other data" in shown
    assert "other data" in shown
    (mine / "board.toml").write_text(re.sub(r"digest = .*\n", "", text))
    assert {run.state for run in load_board(str(mine), [forged]).runs} == {"ready", "missing"}


@pytest.mark.parametrize("digest", ["abc", "G" * 64, "a" * 65, "a" * 64 + " "])
def test_a_digest_that_is_none(digest, tmp_path):
    text = (BOARDS / "digits" / "board.toml").read_text()
    (tmp_path / "board.toml").write_text(re.sub(r'digest = ".*"', f'digest = "{digest}"', text))
    with pytest.raises(BadInputError, match="digest = "):
        load_board(str(tmp_path), [])


def test_a_digest_belongs_to_the_samples(tmp_path):
    text = (BOARDS / "digits" / "board.toml").read_text()
    (tmp_path / "board.toml").write_text(f'{text}digest = "{EASIEST}"\n')  # of the last column
    with pytest.raises(BadInputError, match="has a digest, but the samples of the board"):
        load_board(str(tmp_path), [])


@pytest.mark.parametrize("board", sorted(path.parent.name for path in BOARDS.glob("*/board.toml")))
def test_every_board_names_its_data(board):
    spec = validate(BoardSpec, load_toml(BOARDS / board / "board.toml"), board)
    assert all(wanted.digest for wanted in spec.evaluations)


@pytest.mark.parametrize(
    "command", [["records", "show"], ["check", "--fail", "robust_accuracy:-1pp", "--baseline", str(BOARDS)]]
)
def test_every_reader_refuses_in_one_line(command, tmp_path, capsys):
    record = honest(PGD)
    path = forge(record, tmp_path, emptied(record.outcomes))
    assert main([*command, str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "breaks the rule 'possible-passes'" in line
    assert "row " in line


def test_what_was_wrong_and_is_right_when_cut_off_may_stand(tmp_path):
    """Protocols that cut normalised inputs off at 0 and 1 attack such a sample; no other protocol does."""
    literal, corrected = (
        honest(f"teo2024/records/symvit_digits__digits-test__{name}-autoattack__*.record.json")
        for name in ("teo2024", "teo2024-corrected")
    )
    paths = []
    for record in (literal, corrected):
        row = standing(record.outcomes)
        wrong = changed("clean_prediction", row, (record.outcomes["label"][row] + 1) % 10)
        paths.append(forge(record, tmp_path, wrong(record.outcomes)))
    load_consistent(paths[0])
    with pytest.raises(BadInputError, match="broken-fits"):
        load_consistent(paths[1])


def test_every_rule_is_explained():
    """tests/forgery/README.md lists the rules of all tasks, and no other."""
    text = (BOARDS.parent / "tests" / "forgery" / "README.md").read_text()
    rules = {name for task in ("classification", "segmentation") for name in task_named(task).pages.rules}
    assert rules | {"known-algorithms"} == set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE))
