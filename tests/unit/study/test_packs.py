import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from board_pages import CLEAN, commands, table_text
from stand_ins import few_digits, few_of, short_attacks

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.cli.reproduce import _states_of
from robustbench_kpca.protocols import presets
from robustbench_kpca.protocols.scenario import Ood, Shift
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.study.reproduction.pack import Open, Table, load_pack
from robustbench_kpca.study.reproduction.roles import NO_STAND_IN, Roles
from robustbench_kpca.study.reproduction.steps import Evaluate, Train, most_valuable_first, plan
from robustbench_kpca.study.reproduction.tables import board_spec

PACKS = [*presets.find("packs")]
FIRST = [pytest.param(name, marks=[pytest.mark.slow] * (name != "teo2024")) for name in PACKS]
"""All packs, of which one is planned in the short suite."""
OWN = """
title = "A <b>paper</b>"
source = "Nobody (2026)"
intro = "Said."

[embedded]
intro = "Small."
reference = "plain"

[embedded.samples]
val = { data = "digits", split = "test", limit = 24 }

[embedded.protocols]
attack = "fgsm-linf-8_255"

[embedded.arms]
plain = { title = "Plain", models = ["vit_digits"] }
trained = { title = "Trained", recipe = "vit_digits", seeds = [0, 1], set = { epochs = 1 }, keep_every = 1 }

[paper]
intro = "Large."

[paper.samples]
val = { data = "imagenet", split = "val" }
more = { data = "imagenet-r", split = "test" }

[paper.protocols]
attack = "fgsm-linf-1_255"

[paper.arms]
plain = { title = "Plain", models = ["timm:vit_tiny_patch16_224"] }
trained = { title = "Trained", recipe = "vit_tiny", seeds = [0], data = "imagenet" }
large = { title = "Large", recipe = "symvit_tiny", seeds = [0], data = "imagenet" }
"""
TABLE = table_text(
    ["plain", "trained", "large"],
    CLEAN | {
        "Attacked": ("attack", "robust_accuracy", {"corrected": "pgd20-linf-1_255", "eps": "2/255"}),
        "More": ("imagenet-r", "shift_accuracy", {"samples": "more"}),
    },
)  # fmt: skip
FIGURES = {
    "figure-1": 'kind = "epochs"\narms = ["trained"]\nsamples = "val"\nsplits = ["train", "test"]\nimages = 4\n',
    "figure-2": 'kind = "curves"\narms = ["trained"]\n',
    "figure-10": 'kind = "claims"\narms = ["plain"]\nsamples = "val"\nimages = 4\nclaims = ["eigenvalues"]\n',
    "table-2": 'kind = "open"\nreason = "no <i>program</i> of it"\n',
}


@pytest.fixture(autouse=True)
def few():
    with few_digits(64):
        yield


@pytest.fixture
def own(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "pack.toml").write_text(OWN)
    (folder / "table-1.toml").write_text(TABLE)
    for name, text in FIGURES.items():
        (folder / f"{name}.toml").write_text(f'title = "{name}"\nintro = "Seen."\n{text}')
    return folder


def roles_of(name, tmp_path, scale="embedded", **how):
    title, pack, items = load_pack(str(name))
    settings = {"folders": {}, "checkpoints": {}} | how
    return items, Roles(title, pack, scale, tmp_path / "out", **settings)


NOT_EMBEDDED = {"table-7", "table-8", "wikitext"}  # tables that only the papers' scale has


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("scale", ["embedded", "paper"])
def test_every_item_of_every_pack_plans_and_its_columns_have_a_meaning(name, scale, tmp_path):
    items, roles = roles_of(name, tmp_path, scale)
    steps = plan(items, roles)
    needed = {item for one in steps for item in one.items}
    assert needed == {key for key, item in items.items() if not isinstance(item, Open)}
    if scale == "embedded":
        assert {one.why for one in steps if one.state == "absent"} <= {NO_STAND_IN}
        runnable = {item for one in steps if one.state == "open" for item in one.items}
        closed = needed - runnable
        assert closed <= NOT_EMBEDDED, "base models and Chen's WikiText have no stand-in"
    for step in (one.step.evaluation for one in steps if isinstance(one.step, Evaluate)):
        scenario = step.resolve()[1]
        if isinstance(scenario, Shift | Ood) and scenario.classes != "all":
            assert scenario.classes in (step.data, step.split), "else images of other classes are refused"


def test_a_name_means_the_embedded_thing_or_the_papers(own, tmp_path):
    items, roles = roles_of(own, tmp_path)
    spec = board_spec(items["table-1"], roles)
    assert [(row.title, row.models) for row in spec.row] == [
        ("Plain", ("vit_digits",)),
        ("Trained", ("vit_digits-epochs1-s0", "vit_digits-epochs1-s1")),
        ("Large", ("symvit_tiny-s0",)),
    ]
    assert [(column.title, column.protocol, column.data, column.limit) for column in spec.column] == [
        ("Clean", "clean", "digits", 24),
        ("Attacked, literal", "fgsm-linf-8_255", "digits", 24),
        ("Attacked, corrected", "pgd20-linf-1_255", "digits", 24),
        ("More", "imagenet-r", "imagenet-r", None),
    ]
    paper = board_spec(items["table-1"], roles_of(own, tmp_path, "paper")[1])
    assert [row.models for row in paper.row] == [
        ("timm-vit_tiny_patch16_224",), ("vit_tiny-s0",), ("symvit_tiny-s0",)
    ]  # fmt: skip
    assert paper.column[1].protocol == "fgsm-linf-1_255"


def test_items_are_in_order_and_what_is_missing_is_said(own, tmp_path):
    items, roles = roles_of(own, tmp_path)
    steps = plan(items, roles)
    orders = [one.step.model.order for one in steps]
    assert orders == sorted(orders), "every first seed before any second"
    absent = {str(one.step): one.why for one in steps if one.state == "absent"}
    assert absent["train symvit_tiny-s0"] == NO_STAND_IN
    assert all(why == NO_STAND_IN for why in absent.values())
    paper = plan(*roles_of(own, tmp_path, "paper"))
    whys = {one.why for one in paper if isinstance(one.step, Train)}
    assert whys == {"no folder: --data imagenet:DIR"}
    assert "no weights: --checkpoint timm:vit_tiny_patch16_224=FILE" in {one.why for one in paper}
    assert [*load_pack(str(own))[2]] == ["figure-1", "figure-2", "figure-10", "table-1", "table-2"]


def test_a_pack_runs_end_to_end_and_again_keeps_everything(own, tmp_path, capsys, few_resamples):
    out = tmp_path / "out"
    assert main(["reproduce", str(own), "-o", str(out), "--audit", "none", "-q"]) == 0
    assert "13 of 21 steps" in capsys.readouterr().out
    index, page = (out / "README.md").read_text(), (out / "index.html").read_text()
    assert "A &lt;b&gt;paper" in page
    assert "no &lt;i&gt;program" in page
    finished, unfinished = index.split("## In progress")
    assert "[figure-1](figure-1/README.md)" in finished
    assert "[table-1](table-1/README.md)" in unfinished
    assert "2 of 3 trainings, 9 of 16 evaluations" in unfinished
    assert f"{NO_STAND_IN}: 1 training and 7 evaluations" in index
    shown = (out / "table-1" / "README.md").read_text()
    assert "vit_digits-epochs1-s1" in shown
    assert "“Large”" in shown, "a row without a number"
    assert f"`rbk reproduce {own} --scale embedded -o out --item table-1`" in shown
    assert [(out / f"figure-{number}" / "index.html").read_text().count("<svg") for number in (1, 2)] == [1, 1]
    assert "eigenvalues" in (out / "figure-10" / "README.md").read_text()
    attacked = [load_record(path) for path in find_records(out / "records") if "fgsm" in path.name]
    assert {record.spec.protocol.resolved["eps"] for record in attacked} == {2 / 255}
    made = [path for path in out.rglob("*") if path.suffix in (".json", ".safetensors") and path.name != "board.json"]
    before = {path: path.stat().st_mtime_ns for path in made}
    assert main(["reproduce", str(own), "-o", str(out), "--audit", "none", "-q"]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_the_index_keeps_the_items_that_a_run_was_not_about(own, tmp_path, few_resamples):
    """A page's own command, with --item, makes that page again; the index still lists and links everything."""
    words = ["reproduce", str(own), "-o", str(tmp_path / "out"), "--audit", "none", "--limit", "4", "--trained", "-q"]
    index, table = (tmp_path / "out" / name / "README.md" for name in ("", "table-1"))
    assert main([*words, "--item", "table-1"]) == 0
    before = table.stat().st_mtime_ns
    assert main([*words, "--item", "figure-10", "--budget", "0.0001s"]) == 0
    text = index.read_text()
    assert "[table-1](table-1/README.md)" in text
    assert "0 of 3 trainings, 3 of 16 evaluations" in text
    assert all(name in text for name in ("figure-1", "figure-2", "figure-10", "table-2"))
    assert table.stat().st_mtime_ns == before, "its page is not made again"


def test_a_reason_that_only_the_whole_pack_knows_stays_beside_what_a_run_of_one_item_left(own, tmp_path):
    items, roles = roles_of(own, tmp_path)
    train = next(one for one in plan(items, roles) if isinstance(one.step, Train))
    other = replace(train, why="its weights are needed")
    for state, why, known in (("open", "", other.why), ("open", "stopped", "stopped"), ("done", "", "")):
        (now,) = _states_of([other], [replace(train, state=state, why=why)])
        assert (now.state, now.why) == (state, known)


def test_a_plan_shows_estimates_and_writes_nothing(own, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["reproduce", str(own), "-o", str(out), "--plan", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)
    costs = {one["step"]: one["seconds"] for one in steps}
    clean, attacked = (costs[f"evaluate vit_digits under {name} on digits (test)"] for name in (
        "clean", "pgd20-linf-1_255+eps=2_255"
    ))  # fmt: skip
    assert 0 < clean < attacked
    assert attacked > 20 * clean
    trained = next(seconds for step, seconds in costs.items() if step.startswith("train "))
    of_all = len(load_data("digits", "train")) / 24
    assert trained == pytest.approx(of_all * clean * (1 + 2)), "one epoch; a backward pass is two forward ones"
    assert not out.exists()


def test_a_plan_of_the_papers_scale_says_what_it_costs_and_what_to_type_first(tmp_path, capsys, monkeypatch):
    """Without data: the size of a training follows from the shape of its network, 1,281,167 images and 300 epochs."""
    monkeypatch.delenv("RBK_DATA", raising=False)
    words = ["reproduce", "teo2024", "--scale", "paper", "--table", "9", "-o", str(tmp_path / "out"), "--plan"]
    assert main([*words, "--json"]) == 0
    training = next(one for one in json.loads(capsys.readouterr().out) if one["step"] == "train symfan_tiny-s0")
    assert training["seconds"] == pytest.approx(300 * 1_281_167 * 3 * 2_319_719_424 / 7e10)
    assert main([*words, "--processes", "2"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    hours = training["seconds"] * 7e10 / 1e13 / 3600
    assert said.startswith("table-9: 2 trainings of at most")
    assert float(re.search(r"at most ([\d.]+) hours", said)[1]) == pytest.approx(2 * hours, rel=0.05)
    evaluations = float(re.search(r"evaluations of at most ([\d.]+) hours", said)[1])
    on_two = float(re.search(r"([\d.]+) hours on 2 of them", said)[1])
    assert on_two == pytest.approx(hours + evaluations / 2, rel=0.05), "one network a device"
    assert "missing: imagenet, imagenet-r, imagenet-a; first: rbk reproduce teo2024 --scale paper" in said
    assert "--data imagenet:DIR" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--table", "2"], "table-2 cannot be made: no <i>program</i> of it"),
        (["--table", "1", "--scale", "paper"], "table-1 cannot be made: no folder: --data imagenet:DIR"),
    ],
)
def test_an_item_that_is_asked_for_and_not_made_is_an_error(own, tmp_path, arguments, message, capsys, monkeypatch):
    monkeypatch.delenv("RBK_DATA", raising=False)
    assert main(["reproduce", str(own), *arguments, "-o", str(tmp_path / "out"), "-q"]) == 3
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--table", "9"], "no item named 'table-9'"),
        (["--data", "imagenet"], "NAME:FOLDER"),
        (["--data", "imagenet:nowhere"], "no folder nowhere"),
        (["--checkpoint", "x"], "MODEL=FILE"),
        (["--checkpoint", f"vit_digit={__file__}"], "'vit_digit'"),
        (["--scale", "huge"], "embedded or paper"),
        (["--budget", "soon"], "such as 30min or 2h"),
    ],
)
def test_bad_options(own, arguments, message, capsys):
    assert main(["reproduce", str(own), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("table-1", '"plain", "trained"', '"plane", "trained"', "did you mean 'plain'"),
        ("table-1", 'samples = "more"', 'samples = "mare"', "did you mean 'more'"),
        ("table-1", 'kind = "table"', 'kind = "chair"', "one of table, claims"),
        ("pack", "seeds = [0, 1]", "seeds = []", "either `models`, or a `recipe` with `seeds`"),
        ("pack", "source =", "sauce =", "'sauce'"),
    ],
)
def test_bad_packs(own, file, old, new, message):
    path = own / f"{file}.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(BadInputError, match=message):
        load_pack(str(own))


@pytest.mark.slow
@pytest.mark.timeout(1200)  # minutes, where types are checked on a busy machine
@pytest.mark.parametrize("name", PACKS)
def test_every_pack_runs_on_few_samples(name, tmp_path, few_resamples, types_unchecked, monkeypatch):
    """Trainings of two seeds (of one, where arms are many) last two epochs: can every step be made and shown?"""
    for room in ("report.matching", "tasks.facts"):  # titles name twenty steps, of which two are made here
        monkeypatch.setattr(f"robustbench_kpca.{room}.misnamed", lambda text, scenarios: None)
    folder, out = tmp_path / name, tmp_path / "out"
    folder.mkdir()
    for file in presets.pack_path(name).parent.glob("*.toml"):
        if file.name != "statements.toml":  # these read committed boards, whose intervals are of more resamples
            text = re.sub(r"\n(batch_size|repeats) = .*", "", file.read_text())
            measured = text.startswith('kind = "efficiency"')
            (folder / file.name).write_text(text + "batch_size = 1\nrepeats = 1\n" * measured)
    toml = folder / "pack.toml"
    text, short = toml.read_text(), "epochs = 2, warmup_epochs = 0"
    seeds = r"\d+" if text.count("recipe = ") > 35 else r"\d+, \d+"
    text = re.sub(r"epochs = \d+", short, text)
    text = re.sub(r"set = \{ (?!.*epochs)", f"set = {{ {short}, ", text)
    text = re.sub(r"(recipe = .*seeds = \[[\d, ]*\]) \}", rf"\1, set = {{ {short} }} }}", text)
    text = re.sub(r"keep_every = \d+", "keep_every = 1", text)
    # After two epochs S is empty with lambda = 1 and more, and then networks with another lambda are one network.
    text = re.sub(r'(\.lam" = )(\d+\.\d)', lambda found: f"{found[1]}{float(found[2]) / 20}", text)
    toml.write_text(re.sub(rf"seeds = \[({seeds}), [^]]*", r"seeds = [\1", text))
    budget = {"steps": 2, "queries": 4, "samples": 2, "targets": 2, "binary_steps": 1}
    with few_digits(32), few_of("listops", 32), few_of("waves", 32), short_attacks(**budget):
        assert main(["reproduce", str(folder), "-o", str(out), "--audit", "none", "--limit", "16", "-q"]) == 0
        items, roles = roles_of(folder, tmp_path, limit=16)
        for one in plan(items, roles):
            assert one.state == "done" or one.why == NO_STAND_IN
    for key, item in items.items():
        if isinstance(item, Table) and key not in NOT_EMBEDDED:
            assert (out / key / "index.html").is_file()


@pytest.fixture
def two_turns(own):
    """A pack of two tables: a dear one that comes first by name, and a cheap one whose turn is earlier."""
    for path in own.glob("*-*.toml"):
        path.unlink()
    arms, dear = ["plain", "trained"], {"Clean": ("pgd20-linf-1_255", "robust_accuracy")}
    (own / "table-1.toml").write_text(table_text(arms, dear, title="Dear", turn=1))
    cheap = table_text(arms, CLEAN, title="Cheap", turn=0)
    attack = '[[column]]\ntitle = "FGSM"\nsamples = "val"\nprotocol = "attack"\nmetric = "robust_accuracy"\n'
    asked = '[[question]]\nsubject = "trained"\nbaseline = "plain"\nablation = "plain"\ncolumn = "Clean"\n'
    (own / "table-2.toml").write_text(cheap.replace("[[column]]", f"{asked}\n{attack}\n[[column]]"))
    return own


def test_the_most_valuable_steps_come_first(two_turns, tmp_path):
    steps = most_valuable_first(plan(*roles_of(two_turns, tmp_path)))
    known = (
        "evaluate vit_digits under ",
        "evaluate vit_digits-epochs1-s0 under ",
        "evaluate vit_digits-epochs1-s1 under ",
    )
    ends = ("clean on digits (test)", "fgsm-linf-8_255 on digits (test)", "pgd20-linf-1_255 on digits (test)")
    assert [str(one.step) for one in steps] == [
        known[0] + ends[0], known[0] + ends[1],  # the whole row, its cheap columns first
        "train vit_digits-epochs1-s0", known[1] + ends[0], known[1] + ends[1],
        "train vit_digits-epochs1-s1", known[2] + ends[0], known[2] + ends[1],  # the second seed after all first ones
        known[0] + ends[2], known[1] + ends[2], known[2] + ends[2],  # the later turn
    ]  # fmt: skip


def test_only_what_is_trained_is_evaluated_where_one_asks_for_it(two_turns, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["reproduce", str(two_turns), "-o", str(out), "--audit", "none", "--limit", "8", "--table", "2", "--json"]
    assert main([*words, "--trained", "--budget", "1h"]) == 0
    steps = {one["step"]: one for one in json.loads(capsys.readouterr().out)}
    assert steps["evaluate vit_digits under clean on digits (test)"]["state"] == "done"
    assert steps["train vit_digits-epochs1-s0"]["why"] == "vit_digits-epochs1-s0 is not trained"
    assert not list(out.rglob("*.safetensors"))


def test_the_command_in_a_cell_remakes_it(two_turns, tmp_path, few_resamples, monkeypatch, capsys):
    """Weights of a training of the pack; the command is read from the page, and run."""
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", str(two_turns), "-o", "out", "--audit", "none", "--limit", "8", "--table", "2", "-q"]
    assert main(words) == 0
    shown = commands(Path("out/table-2/index.html"))
    command = next(one for one in shown if "vit_digits-epochs1-s0" in one and "fgsm" in one)
    cell = json.loads(Path("out/table-2/board.json").read_text())
    rows = {row["model"]: {one["column"]: one for one in row["cells"]} for row in cell["rows"]}
    assert main([*shlex.split(command)[1:], "--out", "again", "-q"]) == 0
    again = load_record(find_records("again")[0])
    assert again.metrics["robust_accuracy"].value == rows["Trained"]["FGSM"]["trainings"]["vit_digits-epochs1-s0"]
    first = next(one for one in map(load_record, find_records("out/records")) if one.spec == again.spec)
    assert first.outcomes.digest() == again.outcomes.digest()


def test_what_a_row_costs(two_turns, tmp_path, few_resamples):
    (two_turns / "table-3.toml").write_text(
        'kind = "cost"\ntitle = "Cost"\nintro = "All."\narms = ["plain", "trained"]\n'
    )
    out = tmp_path / "out"
    assert main(["reproduce", str(two_turns), "-o", str(out), "--audit", "none", "--limit", "8", "-q"]) == 0
    text = (out / "table-3" / "README.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    (_, given, _, *_), trained = cells[1], cells[2]
    assert (given, trained[1]) == ("given", "2 of 2")
    records = [one for one in map(load_record, find_records(out / "records")) if "epochs1" in one.spec.model.name]
    assert trained[2] == f"{records[0].spec.model.parameters:,}"
    assert trained[3] == "1"
    assert trained[6:9] == [str(len(records)), f"{sum(r.passes.forwards for r in records):,}",
                            f"{sum(r.passes.backwards for r in records):,}"]  # fmt: skip
    model = load_model("vit_digits")
    evaluate(model, load_data("digits", limit=3), protocol="clean", name=records[0].spec.model.name, seed=7,
             out=out / "records", audit=False)  # fmt: skip
    assert main(["reproduce", str(two_turns), "-o", str(out), "--limit", "8", "--pages", "-q"]) == 0
    assert (out / "table-3" / "README.md").read_text() == text, "only what a table shows has a cost"
    assert "Does Trained help?" in (out / "README.md").read_text()
