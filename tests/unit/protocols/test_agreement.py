"""The measured agreement of a short protocol with the long one: up to date, counted right, shown beside its numbers."""

import json

import pytest
from attack_checks import scenario
from board_pages import board_text

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.web.marks import prose
from robustbench_kpca.cli.main import main
from robustbench_kpca.protocols import presets
from robustbench_kpca.protocols.agreement import FILE, Agreement, Part, agreement_of, search_digest
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.estimate import proportion
from robustbench_kpca.tasks.caveats import in_full, in_short

FAST = "autoattack-fast-linf-8_255"
SHORT = (FAST, "autoattack-fast-l2-128_255")
PART = Part(
    network="a", kind="robust", data="d", eps="2/255", images=100, attacked=60, robust=40, agreed=98,
    only_reference_broke=1, only_this_broke=1, passes=100.0, reference_passes=700.0,
)  # fmt: skip
QUICK = {"attack": "fgsm", "restarts": 1}


def measured(*parts, stages=(QUICK,)):
    return Agreement(
        protocol="quick", reference="long", search=search_digest(scenario(stages)), date="2026-01-02",
        command="make it", parts=parts,
    )  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
def test_the_measurement_is_of_the_protocol_as_it_stands(name):
    found = agreement_of(*load_scenario(name))
    assert found is not None
    assert found.parts, "measure again: benchmarks/compare.py protocols --write"
    assert found.protocol == name
    assert found.reference in presets.protocols()


@pytest.mark.parametrize("name", SHORT)
def test_its_counts_add_up(name):
    for part in agreement_of(*load_scenario(name)).parts:
        assert part.agreed + part.only_reference_broke + part.only_this_broke == part.images
        assert part.images >= part.attacked >= part.robust
        assert part.robust >= part.only_this_broke
        assert part.attacked - part.robust >= part.only_reference_broke


def test_a_budget_changes_nothing_and_another_setting_was_not_measured():
    whole = agreement_of(*load_scenario(FAST))
    assert agreement_of(*load_scenario(FAST, {"eps": "3/255", "below": ["1/255"]})) == whole
    changed = agreement_of(*load_scenario(FAST, {"steps": 5}))
    assert changed.parts == ()
    assert "not measured" in in_short(changed) == in_full(changed)
    assert agreement_of(*load_scenario("autoattack-linf-8_255")) is None
    assert agreement_of(*load_scenario("clean")) is None


def spelt(agreed, n):
    share = proportion(agreed, n)
    return f"{100 * share.value:.2f} % [{100 * share.low:.2f}, {100 * share.high:.2f}]"


@pytest.fixture
def presets_of_its_own(tmp_path, monkeypatch):
    folder = tmp_path / "presets" / "attacks"
    folder.mkdir(parents=True)
    fields = scenario([QUICK]).model_dump(mode="json") | {"stage": [QUICK]}
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items() if key != "stage"]
    (folder / "quick.toml").write_text("\n".join([*lines, "[[stage]]", 'attack = "fgsm"', "restarts = 1"]))
    (folder / FILE).write_text(json.dumps({"measured": [measured(PART).model_dump(mode="json")]}))
    monkeypatch.setenv(presets.ENVIRONMENT_VARIABLE, str(folder.parent))
    return folder


def test_it_is_shown_beside_the_numbers(presets_of_its_own, tmp_path, capsys):
    records, board = tmp_path / "records", tmp_path / "mine"
    models = ["-m", "vit_digits", "-m", "symvit_digits"]
    assert not main(["eval", *models, "-p", "quick", "--limit", "4", "--audit", "none", "-o", str(records)])
    assert " ".join(capsys.readouterr().err.split()).count(in_short(measured(PART))) == 1
    next(records.glob("symvit_digits*.record.json")).unlink()
    assert main(["records", "show", str(records)]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").replace("|", " ").split())
    assert f"{spelt(98, 100)} of 100 images" in shown
    board.mkdir()
    (board / "board.toml").write_text(board_text(["vit_digits"], {"q": ("quick", "robust_accuracy")}))
    assert main(["board", "render", str(board), "--records", str(records)]) == 0
    assert prose(in_full(measured(PART))) in (board / "README.md").read_text()


def test_a_damaged_file_is_refused_in_one_line(presets_of_its_own):
    (presets_of_its_own / FILE).write_text('{"measured": [{"protocol": "quick"}]}')
    with pytest.raises(BadInputError, match=FILE):
        agreement_of(*load_scenario("quick"))
    (presets_of_its_own / FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(BadInputError, match=FILE):
        agreement_of(*load_scenario("quick"))
