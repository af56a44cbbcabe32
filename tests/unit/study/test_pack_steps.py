"""What a run of a pack does with steps that fail, with leftovers, and with time that ends; on a pack of one table."""

import json
import re
import shlex
import time
from pathlib import Path

import pytest
import torch
from board_pages import CLEAN, pack_text, table_text
from safetensors.torch import load_file, save_file
from stand_ins import few_digits

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.progress import Screen, read_spent
from robustbench_kpca._engine.attack_loop.passes import most_passes
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.imagenet_classes import robustbench_validation
from robustbench_kpca.evaluation.reporter import Reporter
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.models.checkpoint import parameters_sha256, state_sha256
from robustbench_kpca.models.loading import load_model
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.spec import DataInfo
from robustbench_kpca.report.notes import explain
from robustbench_kpca.report.render import markdown
from robustbench_kpca.study.diagnostics.epochs import Course, Trajectory
from robustbench_kpca.study.reproduction.pack import load_pack
from robustbench_kpca.study.reproduction.pages import counted
from robustbench_kpca.study.reproduction.reader import Reader
from robustbench_kpca.study.reproduction.roles import Roles, default_folder
from robustbench_kpca.study.reproduction.run import Settings, run
from robustbench_kpca.study.reproduction.steps import Diagnose, Evaluate, Follow, Train, plan
from robustbench_kpca.study.reproduction.tables import board_of

PACK = pack_text(
    ['plain = { title = "Plain", models = ["vit_digits"] }', 'other = { title = "Other", models = ["symvit_digits"] }',
     'trained = { title = "Trained", recipe = "vit_digits", seeds = [0, 1], set = { epochs = 2 }, keep_every = 1 }'],
    ['plain = { title = "Plain", models = ["timm:vit_tiny_patch16_224"] }',
     'other = { title = "Other", models = ["timm:deit_tiny_patch16_224"] }',
     'trained = { title = "Trained", recipe = "vit_tiny", seeds = [0, 1], data = "imagenet" }'],
)  # fmt: skip
TABLE = table_text(["plain", "other"], CLEAN)
CLAIMS = """
kind = "claims"
title = "Claims"
intro = "Seen."
arms = ["plain"]
samples = "val"
images = 4
claims = ["eigenvalues"]
literal = ["study_eigenvalues", "study_norms"]
"""
FIGURE = """
kind = "epochs"
title = "Figure 1"
intro = "Seen."
arms = ["trained"]
samples = "val"
splits = ["train", "test"]
images = 4
"""


def _silent(*_, **__):
    pass


def showing(start):
    return Reporter(Screen(_silent, _silent, _silent, start))


QUIET = showing(lambda title: _silent)


@pytest.fixture
def pack(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "pack.toml").write_text(PACK)
    (folder / "table-1.toml").write_text(TABLE)
    return folder


def planned(pack, tmp_path, limit=None, **how):
    name, content, items = load_pack(str(pack))
    settings = {"folders": {}, "checkpoints": {}} | how
    roles = Roles(name, content, "embedded", tmp_path / "out", limit=limit, **settings)
    return plan(items, roles), roles


def test_a_pack_takes_the_options_of_a_run_and_a_damaged_model_fails_alone(pack, tmp_path, few_resamples):
    asked = ["--audit", "none", "-q", "--limit", "4", "--batch-size", "4", "--allow", "batch", "--device", "cpu"]
    assert not main(["reproduce", str(pack), "-o", str(tmp_path / "out"), *asked])
    made = [json.loads(path.read_text()) for path in (tmp_path / "out" / "records").glob("*.record.json")]
    assert [each["spec"]["batch_size"] for each in made] == [4, 4]
    assert all("--allow" in each["command"] for each in made)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"no weights")
    steps, roles = planned(pack, tmp_path, 8, checkpoints={"vit_digits": damaged})
    after = {one.step.model.arm: one for one in run(steps, roles, Settings(audit=False), QUIET)}
    assert {arm: one.state for arm, one in after.items()} == {"plain": "failed", "other": "done"}
    assert "damaged.safetensors" in after["plain"].why


@pytest.fixture
def few():
    with few_digits(64):
        yield


def named(steps, kind):
    return {str(one.step): (one.state, one.why) for one in steps if isinstance(one.step, kind)}


def test_leftovers_of_few_images_are_made_again(pack, tmp_path, few_resamples):
    """A course over epochs, a diagnosis and its literal twin, all on fewer images than are wanted now."""
    (pack / "table-1.toml").unlink()
    (pack / "claims.toml").write_text(CLAIMS)
    (pack / "figure-1.toml").write_text(FIGURE)
    steps, roles = planned(pack, tmp_path, 3)
    wanted = [one for one in steps if isinstance(one.step, Diagnose)]
    assert {one.state for one in run(wanted, roles, Settings(), QUIET)} == {"done"}
    kinds = (Diagnose, Follow)
    course = next(one.step for one in steps if isinstance(one.step, Follow))
    data = [DataInfo(name="digits", split=split, n=3, classes=10, digest="0", task="classification")
            for split in course.splits]  # fmt: skip
    courses = tuple(Course(data=one, epochs=()) for one in data)
    Trajectory(name=course.model.name, layers=(), courses=courses).save(course.folder)
    few = named(planned(pack, tmp_path, 3)[0], kinds)
    assert {state for state, _ in few.values()} == {"done"}
    assert len(few) == 3, "a diagnosis, its twin, and a course"
    assert {state for state, _ in named(planned(pack, tmp_path, 4)[0], kinds).values()} == {"open"}


def test_records_of_other_images_close_their_table_only(pack, tmp_path, few_resamples, capsys):
    """One row was evaluated on 8 images, the other on all; a second table has no records yet."""
    (pack / "table-2.toml").write_text(TABLE.replace("Table 1", "Table 2")
        .replace('protocol = "clean"', 'protocol = "fgsm-linf-8_255"').replace("clean_acc", "robust_acc"))  # fmt: skip
    first, second = (
        next(one for one in planned(pack, tmp_path, limit)[0] if str(one.step) == f"evaluate {name} under clean on "
             "digits (test)") for name, limit in (("vit_digits", 8), ("symvit_digits", 12))
    )  # fmt: skip
    for limit, one in ((8, first), (12, second)):
        run([one], planned(pack, tmp_path, limit)[1], Settings(audit=False), QUIET)
    steps, roles = planned(pack, tmp_path)
    states = named(steps, Evaluate)
    assert {state for step, (state, _) in states.items() if "clean" in step} == {"absent"}
    assert {state for step, (state, _) in states.items() if "fgsm" in step} == {"open"}
    assert all("of other images than the rest" in why for step, (_, why) in states.items() if "clean" in step)
    assert main(["reproduce", str(pack), "-o", str(roles.out), "--pages", "-q"]) == 0
    assert "cannot be shown: the records of table-1 in" in (roles.out / "README.md").read_text()


def test_a_limit_above_the_number_of_samples_is_none(pack, tmp_path, few_resamples):
    few = planned(pack, tmp_path, 8)[1].samples("val")
    assert few.limit == 8
    steps, roles = planned(pack, tmp_path, 100_000)
    assert roles.samples("val").limit is None
    size = roles.size("digits", "test")
    assert planned(pack, tmp_path, size)[1].samples("val").limit is None
    assert planned(pack, tmp_path, size - 1)[1].samples("val").limit == size - 1
    first = steps[:1]
    assert [one.state for one in run(first, roles, Settings(audit=False), QUIET)] == ["done"]
    assert next(one for one in planned(pack, tmp_path, 100_000)[0] if one.step == first[0].step).state == "done"


@pytest.fixture
def slow(monkeypatch):
    """A reporter for which time passes at news only: 0.6 seconds at each, whatever the machine does."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def news(*_, **__):
        now[0] += 0.6

    return showing(lambda title: news)


def test_a_training_stops_at_the_end_of_the_budget_and_goes_on(pack, tmp_path, few_resamples, slow):
    """A step takes longer than the budget: one epoch is trained each time. The diagnosis after it is not begun."""
    (pack / "table-1.toml").write_text(TABLE.replace('["plain", "other"]', '["trained"]'))
    (pack / "words.toml").write_text(CLAIMS)
    toml = pack / "pack.toml"
    toml.write_text(toml.read_text().replace("seeds = [0, 1]", "seeds = [0]"))
    stopped = "stopped by the budget after epoch 1; it goes on next time"
    with few_digits(64):
        for expected in (("open", stopped), ("done", "")):
            steps, roles = planned(pack, tmp_path)
            after = run(steps, roles, Settings(budget=0.5, audit=False), slow)
            assert [(one.state, one.why) for one in after if isinstance(one.step, Train)] == [expected]
            assert {one.why for one in after if isinstance(one.step, Diagnose)} == {"beyond the budget"}


def test_an_evaluation_stops_at_the_end_of_the_budget_and_goes_on(pack, tmp_path, few_resamples, slow):
    """Of two batches one is shown; the news of the last one would stop nothing."""
    steps, roles = planned(pack, tmp_path, 100)
    first, *others = run(steps, roles, Settings(budget=0.5, audit=False), slow)
    assert (first.state, first.why) == ("open", "stopped by the budget; it goes on next time")
    assert {one.why for one in others} == {"beyond the budget"}
    assert not roles.records()
    first, *others = run(steps, roles, Settings(budget=0.7, audit=False), slow)
    assert first.state == "done"
    assert {one.why for one in others} == {"beyond the budget"}


@pytest.mark.parametrize(("more", "at_once"), [("", 2), (", ema_decay = 0.9", None)])
def test_the_seeds_of_an_arm_are_trained_in_one_pass_where_that_can_be(more, at_once, pack, tmp_path, few_resamples):
    (pack / "table-1.toml").write_text(TABLE.replace('["plain", "other"]', '["trained"]'))
    toml = pack / "pack.toml"
    toml.write_text(toml.read_text().replace("epochs = 2", f"epochs = 2, warmup_epochs = 0{more}"))
    with few_digits(64):
        steps, roles = planned(pack, tmp_path, 8)
        after = run(steps, roles, Settings(together=True, audit=False), QUIET)
    assert {one.state for one in after} == {"done"}
    headers = [read_header(one.step.training.weights) for one in after if isinstance(one.step, Train)]
    assert [json.loads(header["machines"])[0].get("together") for header in headers] == [at_once, at_once]


def test_a_training_whose_weights_were_given_is_not_followed(pack, tmp_path):
    (pack / "figure-1.toml").write_text(FIGURE)
    given = {"vit_digits-epochs2-s0": tmp_path / "given.safetensors"}
    given["vit_digits-epochs2-s0"].touch()
    steps, _ = planned(pack, tmp_path, checkpoints=given)
    assert list(named(steps, Follow).values()) == [("absent", "its training is not here, only its weights")]
    words = ["reproduce", str(pack), "-o", str(tmp_path / "out"), "--figure", "1", "--trained"]
    assert main([*words, "--checkpoint", f"vit_digits-epochs2-s0={given['vit_digits-epochs2-s0']}"]) == 3, (
        "the figure that was asked for is not made"
    )


@pytest.mark.parametrize(
    ("limit", "out", "expected"),
    [
        (None, "", ""),
        (20, "", " --limit 20"),
        (None, "reproduced/small", ""),
        (20, "reproduced/small", " --limit 20 -o reproduced/small"),
        (None, "results/of mine", " -o 'results/of mine'"),
        (None, "{here}/results", " -o results"),
        (None, "{here}/reproduced/small", ""),
        (None, "{parent}/elsewhere", " -o elsewhere"),
    ],
)
def test_the_command_on_a_page_names_the_folder_of_its_results(pack, tmp_path, monkeypatch, limit, out, expected):
    """No path of this machine is in it."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    name, content, _ = load_pack(str(pack))
    folder = Path(out.format(here=here, parent=tmp_path)) if out else default_folder(name, limit)
    roles = Roles(name, content, "embedded", folder, {}, {}, limit)
    assert roles.command == f"rbk reproduce small --scale embedded{expected}"


def test_the_command_on_a_page_goes_on_with_its_results(pack, tmp_path, monkeypatch, capsys, few_resamples):
    """The page is of a pack in a folder below the current one; its command finds what is there."""
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", str(pack), "-o", "my results", "--limit", "4"]
    assert main([*words, "--audit", "none", "-q"]) == 0
    found = re.search(r"Made by `rbk (.*)`\. The same", Path("my results/README.md").read_text())[1]
    assert found == "reproduce small --scale embedded --limit 4 -o 'my results'"
    capsys.readouterr()
    assert main([*shlex.split(found), "--plan", "--json"]) == 0
    assert {one["state"] for one in json.loads(capsys.readouterr().out)} == {"done"}


def test_a_model_that_draws_noise_needs_a_column_of_several_draws(pack, tmp_path):
    arm = 'noisy = { title = "Noisy", recipe = "kep_svgp_vit_digits", seeds = [0] }'
    (pack / "pack.toml").write_text(
        PACK.replace('plain = { title = "Plain", models', f'{arm}\nplain = {{ title = "Plain", models')
    )
    several = TABLE[TABLE.index("[[column]]") :].replace('"Clean"', '"Mean"') + "draws = 3\n"
    (pack / "table-1.toml").write_text(TABLE.replace('"plain", "other"', '"noisy", "other"') + several)
    steps, roles = planned(pack, tmp_path)
    found = {(one.step.model.arm, one.step.evaluation.draws): one for one in steps if isinstance(one.step, Evaluate)}
    assert {key: one.state for key, one in found.items()} == {
        ("noisy", None): "absent", ("noisy", 3): "open", ("other", None): "open", ("other", 3): "open",
    }  # fmt: skip
    assert "draws = 1" in found["noisy", None].why
    assert found["other", 3].step.evaluation.resolve()[1].draws == 3
    assert "+draws=3" in str(found["other", 3].step)
    board = board_of("table-1", load_pack(str(pack))[2]["table-1"], roles)
    assert "`clean` with draws = 3 (no record)" in explain(board, board.spec.column[1])


@pytest.mark.parametrize(("seeds", "names"), [("", ["s0", "s1"]), ("seeds = [1]", ["s1"]), ("seeds = [1, 9]", ["s1"])])
def test_a_dear_table_has_the_trainings_of_its_seeds_only(pack, tmp_path, seeds, names):
    text = TABLE.replace('"plain", "other"', '"trained"').replace("\n[[column]]", f"{seeds}\n[[column]]")
    (pack / "table-1.toml").write_text(text)
    steps, roles = planned(pack, tmp_path)
    board = board_of("table-1", load_pack(str(pack))[2]["table-1"], roles)
    wanted = [f"vit_digits-epochs2-{name}" for name in names]
    assert list(board.spec.row[0].models) == wanted
    assert sorted({one.step.model.name for one in steps}) == wanted


def test_a_table_has_a_training_of_every_arm(pack):
    """Of arms of finished models it has them all."""
    text = TABLE.replace("\n[[column]]", "seeds = [9]\n[[column]]")
    (pack / "table-1.toml").write_text(text)
    load_pack(str(pack))
    (pack / "table-1.toml").write_text(text.replace('"plain", "other"', '"plain", "trained"'))
    with pytest.raises(BadInputError, match=r"arm 'trained' has no training of seeds = 9.*expected one of 0, 1"):
        load_pack(str(pack))


@pytest.mark.parametrize(("stronger", "flagged"), [("0.10", True), ("0.45", False)])
def test_a_table_names_trainings_that_overfitted_catastrophically(pack, tmp_path, stronger, flagged):
    arm = 'trained = { title = "Attacked", recipe = "vit_cifar_fast_adv", seeds = [0] }'
    text = PACK.replace(PACK[PACK.index("trained =") : PACK.index("\n\n[paper]")], arm)
    (pack / "pack.toml").write_text(text)
    (pack / "table-1.toml").write_text(TABLE.replace('"plain", "other"', '"trained"'))
    _, roles = planned(pack, tmp_path)
    weights = roles.models["trained"][0].training.weights
    weights.parent.mkdir(parents=True)
    weights.with_suffix(".csv").write_text(
        f"epoch,loss,val_adv_accuracy,val_stronger_accuracy\n0,1,0.3,0.25\n1,1,0.5,{stronger}\n2,1,0.4,0.35\n"
    )
    board = board_of("table-1", load_pack(str(pack))[2]["table-1"], roles)
    flags = markdown(board).partition("<summary>Flags: ")[2]
    assert bool(board.remarks) == flagged
    assert ("shows catastrophic overfitting in 1 of its epochs, the last being 2: accuracy 50.0 %" in flags) == flagged


def test_killed_runs_go_on_and_trainings_from_files_have_one_folder(pack, tmp_path):
    (tmp_path / "out" / "records").mkdir(parents=True)
    steps, _ = planned(pack, tmp_path, 8)
    assert {one.state for one in steps} == {"open"}
    # As its option; in the recipe too, it would read `ade20k:FOLDER:FOLDER`.
    title, content, _ = load_pack("teo2024")
    roles = Roles(title, content, "paper", tmp_path / "out", folders={"ade20k": tmp_path})
    (segmenter,) = roles.models["segmenter"]
    assert segmenter.training.data == "ade20k"
    assert segmenter.training.content.data == "ade20k"


@pytest.mark.usefixtures("few")
def test_records_and_diagnoses_are_of_the_weights_at_hand(pack, tmp_path, few_resamples):
    """Here a file of other weights comes beside finished results, as after a training on another machine."""
    (pack / "table-1.toml").write_text(TABLE.replace('"plain", "other"', '"trained"'))
    (pack / "figure-2.toml").write_text(
        CLAIMS.replace('"plain"', '"trained"').replace("study_eigenvalues", "study_norms")
    )
    settings = Settings(audit=False)
    steps, roles = planned(pack, tmp_path, 8)
    assert {one.state for one in run(steps, roles, settings, QUIET)} == {"done"}
    first = roles.models["trained"][0].training.weights
    weights = {name: values + 0.01 for name, values in load_file(first).items()}
    save_file(weights, first, metadata=read_header(first))
    steps, roles = planned(pack, tmp_path, 8)
    states = {(type(one.step).__name__, one.step.model.order, one.state) for one in steps}
    assert states == {
        ("Train", 0, "done"), ("Train", 1, "done"), ("Evaluate", 0, "open"), ("Evaluate", 1, "done"),
        ("Diagnose", 0, "open"), ("Diagnose", 1, "done"),
    }  # fmt: skip
    board = board_of("table-1", load_pack(str(pack))[2]["table-1"], roles)
    assert [run.state for run in board.runs] == ["another network", "ready"]
    assert "than the weights at hand: they are to be evaluated again." in board.left_out
    run(steps, roles, settings, QUIET)
    steps, roles = planned(pack, tmp_path, 8)
    assert {one.state for one in steps} == {"done"}
    board = board_of("table-1", load_pack(str(pack))[2]["table-1"], roles)
    assert board.runs[0].record.spec.model.parameters_sha256 == state_sha256(weights)


def test_files_of_several_networks_and_the_most_passes(tmp_path):
    first, second = (load_model(name).state_dict() for name in ("vit_digits", "vit_digits_adv"))
    file = tmp_path / "both.pt"
    torch.save({"first": first, "second": second}, file)
    reader = Reader()
    digests = [reader.digest(ModelRequest("vit_digits", f"{file}::{key}")) for key in ("first", "second")]
    assert digests == [parameters_sha256(load_model(name)) for name in ("vit_digits", "vit_digits_adv")]
    once, drawn = (most_passes(load_scenario("pgd20-linf-1_255", {"draws": draws})[1], 10) for draws in (1, 10))
    assert (drawn.forwards, drawn.backwards) == (10 * once.forwards, 10 * once.backwards)
    lower = most_passes(load_scenario("pgd20-linf-2_255", {"below": ["1/255"]})[1], 10)
    assert (lower.forwards, lower.backwards) == (2 * once.forwards, 2 * once.backwards)
    scenario = load_scenario("ade20k-c-kamann")[1]
    assert most_passes(scenario, 150).forwards == len(scenario.cells) < len(scenario.names) * len(scenario.levels)


def test_records_of_other_weights_than_the_packages_are_not_taken_for_a_bundled_model(pack, tmp_path, few_resamples):
    steps, roles = planned(pack, tmp_path, 8)
    run(steps, roles, Settings(audit=False), QUIET)
    assert {one.state for one in planned(pack, tmp_path, 8)[0]} == {"done"}
    path = next((roles.out / "records").glob("vit_digits__*.record.json"))
    digest = roles.digest(roles.models["plain"][0])
    path.write_text(path.read_text().replace(digest, "0" * 64))
    states = {one.step.model.arm: one.state for one in planned(pack, tmp_path, 8)[0]}
    assert states == {"plain": "open", "other": "done"}


@pytest.mark.usefixtures("few")
def test_a_training_whose_weights_are_gone_is_made_again_only_where_they_are_needed(pack, tmp_path, few_resamples):
    (pack / "table-1.toml").write_text(TABLE.replace('"plain", "other"', '"trained"'))
    settings = Settings(audit=False)
    steps, roles = planned(pack, tmp_path, 8)
    run(steps, roles, settings, QUIET)
    item = load_pack(str(pack))[2]["table-1"]
    made = board_of("table-1", item, roles)
    assert (
        made.files["vit_digits-epochs2-s0"] == "out/trainings/vit_digits-epochs2-s0/vit_digits-epochs2-s0.safetensors"
    )
    assert made.left_out == ""
    for model in roles.models["trained"]:
        model.training.weights.unlink()
    made = board_of("table-1", item, roles)
    assert made.files == {}
    lost = "The weights of vit_digits-epochs2-s0, vit_digits-epochs2-s1 are not here"
    assert lost in made.left_out
    assert lost in markdown(made), "also where no run is missing"
    steps, _ = planned(pack, tmp_path, 8)
    assert {one.state for one in steps} == {"done"}, "the records are all there"
    more = TABLE[TABLE.index("[[column]]") :].replace('"Clean"', '"Again"') + "draws = 2\n"
    (pack / "table-1.toml").write_text((pack / "table-1.toml").read_text() + more)
    steps, roles = planned(pack, tmp_path, 8)
    trainings = [one for one in steps if isinstance(one.step, Train)]
    assert {(one.state, one.why) for one in trainings} == {
        ("open", "to be trained again: its weights are not here, but needed")
    }
    assert counted(steps) == "2 of 2 trainings, 2 of 4 evaluations"
    before = {path: path.stat().st_mtime_ns for path in roles.out.rglob("*.record.json")}
    assert {one.state for one in run(steps, roles, settings, QUIET)} == {"done"}
    after = {path: path.stat().st_mtime_ns for path in roles.out.rglob("*.record.json")}
    assert len(after) == 4
    assert before.items() <= after.items(), "the same machine, so the same weights: their records are kept"
    spent = [read_spent(model.training.weights).epochs for model in roles.models["trained"]]
    assert spent == [2, 2], "of the new run alone"


FIRST, SECOND = "n01440764", "n01443537"
KNOWN = next(name for name, wnid in robustbench_validation().items() if wnid == FIRST)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ((f"val/{FIRST}/{KNOWN}.JPEG", f"train/{FIRST}/{FIRST}_1.JPEG"), ("", "")),
        ((f"val/{SECOND}/{KNOWN}.JPEG", f"train/{SECOND}/{SECOND}_1.JPEG"), ("", f"but its class is {FIRST}")),
        (
            (f"val/{FIRST}/{KNOWN}.JPEG", f"train/{FIRST}/{FIRST}_1.JPEG", f"train/{SECOND}/{SECOND}_1.JPEG"),
            (f"different classes: {SECOND}", f"different classes: {SECOND}"),
        ),
        ((f"train/{FIRST}/{FIRST}_1.JPEG",), ("no class folders in train and val",) * 2),
    ],
)
def test_a_plan_refuses_what_a_training_and_an_evaluation_would(files, said, pack, tmp_path):
    """In the order training, evaluation: a wrong label, a class in one part only, a part that is missing."""
    for file in files:
        (tmp_path / "data" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / file).touch()
    (pack / "table-1.toml").write_text(TABLE.replace('["plain", "other"]', '["trained"]'))
    title, content, items = load_pack(str(pack))
    roles = Roles(title, content, "paper", tmp_path / "out", folders={"imagenet": tmp_path / "data"})
    for planned in plan(items, roles):
        why = said[isinstance(planned.step, Evaluate)]
        assert (planned.state, why in planned.why) == ("absent" if why else "open", True), planned


def test_a_plan_refuses_weights_of_another_vocabulary(tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / f"wiki.{part}.tokens").write_text(" a b <unk> \n")
    save_file({"w": torch.zeros(1)}, tmp_path / "lm.safetensors", metadata={"vocabulary_sha256": "0" * 64})
    title, content, items = load_pack("teo2024")
    given = {"softmax_lm_paper-s0": tmp_path / "lm.safetensors"}
    roles = Roles(title, content, "paper", tmp_path / "out", folders={"wikitext103": tmp_path}, checkpoints=given)
    (step,) = [each for each in plan({"table-3": items["table-3"]}, roles) if "softmax_lm_paper-s0" in str(each.step)][
        :1
    ]
    assert step.state == "absent"
    assert "trained with another vocabulary" in step.why
    assert any("vocabulary has" in remark for _, remark in roles.remarks)
