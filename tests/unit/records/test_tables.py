"""Tables of outcomes: exact as text, bounded before they are unpacked, and named by their content."""

import json
import math
import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustbench_kpca._core import files
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.metrics import measure
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records import text
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import OutcomesFile, find_records, load_record
from robustbench_kpca.records.spec import ProtocolInfo
from robustbench_kpca.records.table import Table
from robustbench_kpca.report.consistency import load_consistent
from robustbench_kpca.tasks import task_named

BOARD = Path(__file__).parents[3] / "leaderboards/digits/records"
TABLE = Table("classification", "made", {"sample": "str", "count": "int", "loss": "float", "note": "str"})
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=6)  # text loses returns
floats = st.floats(width=32).map(lambda value: math.nan if math.isnan(value) else value)  # text has one NaN


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(texts, st.integers(-(2**63), 2**63 - 1), floats, texts), min_size=1, max_size=20))
def test_a_table_is_read_back_bit_by_bit(rows):
    columns = dict(zip(TABLE.columns, map(list, zip(*rows, strict=True)), strict=True))
    made = Outcomes.from_columns(TABLE, columns)
    read = Outcomes.from_text(text.unpack(text.pack(made.to_csv()), 2**20, "it"), TABLE, "it")
    assert read.table == made.table == TABLE
    for name, kind in TABLE.columns.items():
        if kind == "float":
            assert read[name].tobytes() == np.array(columns[name], np.float32).astype(np.float64).tobytes()
        else:
            assert read[name].tolist() == columns[name]


@pytest.mark.parametrize("quoted", [False, True])
def test_portions_share_one_numbering_of_texts(quoted, monkeypatch):
    monkeypatch.setattr(text, "PORTION", 7)
    monkeypatch.setattr(text, "_CHUNK", 50)
    ids = [f"image {number % 5}" for number in range(40)]
    note = 'a "note", quoted' if quoted else "a note"
    made = Outcomes.from_columns(TABLE, {"sample": ids, "count": range(40), "loss": [0.5] * 40, "note": [note] * 40})
    assert made.to_csv() == (
        b"sample,count,loss,note\n"
        + b"".join(
            f"image {number % 5},{number},0.5,{note if not quoted else QUOTED}\n".encode() for number in range(40)
        )
    )
    read = Outcomes.from_text(made.to_csv(), TABLE, "it")
    owner, samples = read.numbered("sample")
    assert samples.tolist() == ids[:5], "in order of appearance"
    assert owner.tolist() == [number % 5 for number in range(40)]
    assert len({id(text) for text in read["sample"]}) == 5, "each text is kept once"
    assert read["sample"].tolist() == ids
    assert read["count"].tolist() == list(range(40))
    assert read["note"].tolist() == [note] * 40


def test_empty_and_committed_tables():
    made = Outcomes.from_rows(TABLE, [])
    assert made.to_csv() == b"sample,count,loss,note\n"
    assert Outcomes.from_text(made.to_csv(), TABLE, "it").table == TABLE
    for path in BOARD.parents[1].rglob("*.record.json"):
        stated, stem = json.loads(path.read_text())["outcomes_file"], path.name.removesuffix(".record.json")
        assert stated["file"] == f"{stem}.{stated['sha256'][:12]}.outcomes.csv.xz"
        assert (path.parent / stated["file"]).is_file()


QUOTED = '"a ""note"", quoted"'
ROW = b"a,1,0.5,b\n"


@pytest.mark.parametrize(
    "rows",
    [
        ROW[:-3] + b"\n",
        ROW[:-1] + b",c\n",
        ROW[:-1] + b",c\na,1,0.5\n",
        b"a,1.5,0.5,b\n",
        b"a,1,x,b\n",
        b"a," + b"9" * 30 + b",0.5,b\n",
        b"\n" + ROW,
        b'"a",1,0.5\n',
        b"\xff" + ROW,
        b"a,1,0.5," + b"b" * 2**18 + b'""\n',
    ],
)
@pytest.mark.parametrize("more", [b"", b'"q",1,0.5,b\n'], ids=["plain", "quoted"])
def test_another_text_is_refused(rows, more):
    with pytest.raises(BadInputError, match="it is no whole outcomes table"):
        Outcomes.from_text(b"sample,count,loss,note\n" + rows + more, TABLE, "it")
    for header in (b"sample,count,loss\n", b""):
        with pytest.raises(BadInputError, match="it is no whole outcomes table"):
            Outcomes.from_text(header + more, TABLE, "it")


@pytest.mark.parametrize("rows", [-1, 2**30 // 32 + 1, 10**12])
def test_a_record_that_declares_more_rows_than_memory_is_for_is_refused(rows):
    assert text.most_bytes(TABLE, 2**30 // 32, "it") == text.MOST
    with pytest.raises(BadInputError, match=rf"declares {rows:,} rows; expected at most 33,554,432"):
        text.most_bytes(TABLE, rows, "it")


@pytest.fixture
def record():
    return load_record(next(BOARD.glob("vit_digits__*__clean__*.record.json")))


def again(record, outcomes=None, **changes):
    """The record with another table or other statements, as an honest program makes it."""
    outcomes = record.outcomes if outcomes is None else outcomes
    scenario = load_scenario("clean")[1]
    protocol = ProtocolInfo(name="clean", digest=scenario.digest(), resolved=scenario.model_dump(mode="json"))
    spec = record.spec.model_copy(update={"protocol": protocol})
    file = OutcomesFile.of(outcomes, spec)
    made = {"spec": spec, "outcomes_file": file, "metrics": measure(outcomes, scenario)}
    return record.model_copy(update=made | changes).attach(outcomes)


@pytest.mark.usefixtures("few_resamples")
def test_a_record_is_read_back_and_an_altered_table_is_refused(record, tmp_path, capsys):
    path = again(record).save(tmp_path)
    found = load_consistent(path)
    assert found.outcomes_file.file == f"{found.spec.stem()}.{found.outcomes.digest()[:12]}.outcomes.csv.xz"
    assert (tmp_path / found.outcomes_file.file).is_file()
    assert found.outcomes.to_csv() == record.outcomes.to_csv()
    assert found.outcomes.rows() == record.outcomes.rows()
    assert main(["records", "show", str(path)]) == 0
    assert "equal" in capsys.readouterr().out
    table = tmp_path / found.outcomes_file.file
    with table.open("ab") as file:
        file.truncate(10**9)
    assert main(["records", "show", str(path)]) == 2
    assert "at most" in capsys.readouterr().err


@pytest.mark.usefixtures("few_resamples")
def test_two_hosts_leave_one_whole_record(record, tmp_path):
    """Both write their tables before either writes its record: the last record finds its own table."""
    half = {**record.outcomes.columns, "confidence": [0.5] * len(record.outcomes)}
    other = Outcomes.from_columns(record.outcomes.table, half)
    first, second = again(record), again(record, other)
    assert first.spec.stem() == second.spec.stem()
    for one in (first, second):
        (tmp_path / one.outcomes_file.file).write_bytes(text.pack(one.outcomes.to_csv()))
    path = second.save(tmp_path)
    assert load_consistent(path).outcomes.to_csv() == other.to_csv()
    path = first.save(tmp_path)
    assert load_consistent(path).outcomes.to_csv() == record.outcomes.to_csv()
    assert len(list(tmp_path.glob("*.outcomes.csv.xz"))) == 2, "a young orphan may be of a host that still writes"
    loser = tmp_path / second.outcomes_file.file
    day = time.time() - 2 * files.OLD
    os.utime(loser, (day, day))
    os.utime(tmp_path / first.outcomes_file.file, (day, day))
    stranger = tmp_path / f"{first.spec.stem()}x.outcomes.csv.xz"
    stranger.write_bytes(b"")
    os.utime(stranger, (day, day))
    first.save(tmp_path)
    assert not loser.exists()
    assert stranger.exists()
    assert load_consistent(path).outcomes.to_csv() == record.outcomes.to_csv()


def test_what_a_killed_process_left_is_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_SWEPT", {})
    day = time.time() - 2 * files.OLD
    for name, content in {"killed": b"x", "old": b"", "just made": b"", "written now": b"x"}.items():
        (tmp_path / f".rbk-{name}.tmp").write_bytes(content)
    (tmp_path / "other.tmp").write_bytes(b"x")
    os.utime(tmp_path / ".rbk-old.tmp", (day, day))
    with (tmp_path / ".rbk-written now.tmp").open("rb+") as held:
        files._mark_as_written(held)
        files.write_atomic(tmp_path / "file", b"content")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"file", ".rbk-just made.tmp", ".rbk-written now.tmp", "other.tmp"}


def test_a_list_of_records_is_one_document_or_nothing(record, tmp_path, capsys):
    again(record).save(tmp_path)
    (path,) = find_records(tmp_path)
    assert main(["records", "show", str(tmp_path), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["spec"]["model"]["name"] == "vit_digits"
    (tmp_path / "zzz.record.json").write_text("{}")
    assert main(["records", "show", str(tmp_path), "--json"]) == 2
    assert capsys.readouterr().out == ""
    assert text.unpack((tmp_path / load_record(path).outcomes_file.file).read_bytes(), 2**20, "t").startswith(
        b"sample,"
    )


def grid():
    scenario = load_scenario("noise-blur-contrast-32px", {"severities": [1, 2]})[1]
    cells, rng = scenario.cells, np.random.default_rng(0)
    ids = [f"image {number}" for number in range(40)]
    rank = rng.integers(0, 7, 40 * len(cells))
    label = np.tile(rng.integers(0, 5, 40), len(cells))
    columns = {
        "sample": ids * len(cells), "label": label, "corruption": [name for name, _ in cells for _ in ids],
        "severity": np.repeat([severity for _, severity in cells], 40),
        "prediction": np.where(rank == 0, label, label + 1), "rank": rank,
    }  # fmt: skip
    return Outcomes.from_columns(task_named("classification").table("corruption"), columns), scenario


def test_metrics_do_not_depend_on_the_order_of_rows():
    coded, scenario = grid()
    shuffled = coded.where(np.random.default_rng(1).permutation(len(coded)))
    found = measure(coded, scenario)
    assert {name: one.value for name, one in measure(shuffled, scenario).items()} == pytest.approx(
        {name: one.value for name, one in found.items()}
    )
    right = coded["rank"] == 0  # a plain loop as the oracle
    cells: dict = {}
    for name, severity, one in zip(coded["corruption"], coded["severity"], right, strict=True):
        cells.setdefault((name, severity), []).append(one)
    by_name: dict = {}
    for (name, severity), answers in cells.items():
        if severity:
            by_name.setdefault(name, []).append(np.mean(answers))
    assert found["corruption_accuracy"].value == pytest.approx(np.mean([np.mean(one) for one in by_name.values()]))
