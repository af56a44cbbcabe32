"""Large tables: the same values in both forms, bounded before they are unpacked, and named by their content."""

import dataclasses
import io
import json
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustbench_kpca import files
from robustbench_kpca.cli.main import main
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics import measure
from robustbench_kpca.owner import place
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records import outcomes as outcomes_file
from robustbench_kpca.records import parquet
from robustbench_kpca.records.coded import Coded
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import OutcomesFile, ProtocolInfo, find_records, load_record
from robustbench_kpca.records.table import Table
from robustbench_kpca.records.unpacking import unpack
from robustbench_kpca.report.consistency import load_consistent
from robustbench_kpca.tasks import task_named

BOARD = Path(__file__).parents[2] / "leaderboards/digits/records"
TABLE = Table("classification", "made", {"sample": "str", "count": "int", "loss": "float", "note": "str"})
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=6)  # text loses returns
floats = st.floats(width=32)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(texts, st.integers(-(2**63), 2**63 - 1), floats, texts), min_size=1, max_size=20))
def test_both_forms_give_the_same_values_bit_by_bit(rows):
    columns = dict(zip(TABLE.columns, map(list, zip(*rows, strict=True)), strict=True))
    made = Outcomes.from_columns(TABLE, columns)
    text = Outcomes.from_file(made.to_file(), TABLE, "text")
    stored = parquet.read(parquet.write(made.columns), TABLE, len(rows), "columns")
    for name, kind in TABLE.columns.items():
        if kind == "float":
            assert text[name].tobytes() == stored[name].tobytes()
        else:
            assert text[name].tolist() == stored[name].tolist() == columns[name]
            assert text[name].dtype == stored[name].dtype


def test_groups_of_rows_share_one_dictionary_in_memory(monkeypatch):
    monkeypatch.setattr(parquet, "GROUP", 7)
    ids = [f"image {number % 5}" for number in range(40)]
    made = Outcomes.from_columns(TABLE, {"sample": ids, "count": range(40), "loss": [0.5] * 40, "note": [""] * 40})
    data = parquet.write(made.columns)
    assert pq.ParquetFile(pa.BufferReader(data)).num_row_groups == 6
    stored = parquet.read(data, TABLE, 40, "it")
    assert len(stored.held("sample").values) == 5
    assert stored["sample"].tolist() == ids
    assert stored["count"].tolist() == list(range(40))


def test_only_the_columns_asked_for_are_unpacked():
    made = Outcomes.from_columns(TABLE, {"sample": ["a"], "count": [1], "loss": [2.0], "note": ["b"]})
    stored = parquet.read(parquet.write(made.columns), TABLE, 1, "it")
    assert "loss" in stored
    assert "other" not in stored
    assert list(stored._held) == []
    assert stored["count"].tolist() == [1]
    assert list(stored._held) == ["count"]


def one(**how):
    """The bytes of a file of one column of ten rows, written with other settings than ours."""
    table = pa.table({"sample": pa.array(["a"] * 10)}, schema=pa.schema([pa.field("sample", pa.string(), False)]))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **({"compression": "NONE", "store_schema": False} | how))
    return buffer.getvalue()


ALONE = Table("classification", "made", {"sample": "str"})


@pytest.mark.parametrize(
    ("data", "table", "rows"),
    [
        (one(compression="zstd"), ALONE, 10),
        (one(store_schema=True), ALONE, 10),
        (one(), ALONE, 9),
        (one(), ALONE, 11),
        (one(), Table("classification", "made", {"sample": "int"}), 10),
        (one(), Table("classification", "made", {"other": "str"}), 10),
        (one()[:-9], ALONE, 10),
        (one()[:40] + one()[60:], ALONE, 10),
        (b"", ALONE, 10),
        (b"PAR1", ALONE, 10),
        (b"PAR1" + b"\xff" * 100 + b"PAR1", ALONE, 10),
        (one(), ALONE, 10**12),
        (one(), ALONE, -1),
    ],
)
def test_another_file_is_refused_before_it_is_unpacked(data, table, rows):
    with pytest.raises(BadInputError):
        dict(parquet.read(data, table, rows, "it"))


def test_a_small_file_that_claims_many_rows_is_refused():
    rows = 10**7
    table = pa.table(
        {"sample": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array(["a" * 1000]))},
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="NONE", store_schema=False)
    assert len(buffer.getvalue()) < 2_000_000, "it would unpack to 10 GB of text"
    with pytest.raises(BadInputError):
        parquet.read(buffer.getvalue(), ALONE, 10, "it")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_are_one_error_or_other_values(data):
    content = bytearray(one())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = dict(parquet.read(bytes(content), ALONE, 10, "it"))
    except BadInputError:
        return
    assert len(found["sample"]) == 10


def test_codes_are_compacted_in_order_of_appearance():
    column = Coded.of(["b", "a", "b", "c"])[np.array([False, True, False, True])]
    compact, first = column.compact()
    assert compact.values.tolist() == ["a", "c"]
    assert compact.codes.tolist() == [0, 1]
    assert first.tolist() == [0, 1]
    assert column.tiled(2).text().tolist() == ["a", "c", "a", "c"]
    assert column.repeated(2).text().tolist() == ["a", "a", "c", "c"]
    assert column.equals("c").tolist() == [False, True]


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
def test_a_large_record_is_stored_as_parquet_and_reads_as_the_small_one(record, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(outcomes_file, "LARGE", 10)
    path = again(record).save(tmp_path)
    found = load_consistent(path)
    assert found.outcomes_file.file.endswith(".outcomes.parquet")
    assert (tmp_path / found.outcomes_file.file).is_file()
    assert found.outcomes.to_csv() == record.outcomes.to_csv()
    assert found.outcomes.rows() == record.outcomes.rows()
    assert main(["records", "show", str(path)]) == 0
    assert "equal" in capsys.readouterr().out
    found.release()
    table = tmp_path / found.outcomes_file.file
    table.write_bytes(table.read_bytes()[:-1] + b"x")
    assert main(["records", "show", str(path)]) == 2
    assert "SHA-256" in capsys.readouterr().err
    with table.open("ab") as file:
        file.truncate(10**9)
    assert main(["records", "show", str(path)]) == 2
    assert "at most" in capsys.readouterr().err
    table.unlink()
    assert main(["records", "show", str(path)]) == 2
    assert "is missing beside" in capsys.readouterr().err


@pytest.mark.usefixtures("few_resamples")
def test_two_hosts_leave_one_whole_record(record, tmp_path):
    """Both write their tables before either writes its record: the last record finds its own table."""
    half = {**record.outcomes.columns, "confidence": [0.5] * len(record.outcomes)}
    other = Outcomes.from_columns(record.outcomes.table, half)
    first, second = again(record), again(record, other)
    assert first.spec.stem() == second.spec.stem()
    for one in (first, second):
        stored = one.outcomes.stored()
        (tmp_path / one.outcomes_file.file).write_bytes(stored.content)
    path = second.save(tmp_path)
    assert load_consistent(path).outcomes.to_csv() == other.to_csv()
    path = first.save(tmp_path)
    assert load_consistent(path).outcomes.to_csv() == record.outcomes.to_csv()
    assert len(list(tmp_path.glob("*.outcomes.csv.xz"))) == 2, "a young orphan may be of a host that still writes"
    loser = tmp_path / second.outcomes_file.file
    day = time.time() - 2 * files.OLD
    os.utime(loser, (day, day))
    os.utime(tmp_path / first.outcomes_file.file, (day, day))
    old = tmp_path / f"{first.spec.stem()}.outcomes.csv.gz"  # the name before names held digests
    old.write_bytes(b"")
    os.utime(old, (day, day))
    stranger = tmp_path / f"{first.spec.stem()}x.outcomes.csv.xz"
    stranger.write_bytes(b"")
    os.utime(stranger, (day, day))
    first.save(tmp_path)
    assert not loser.exists()
    assert not old.exists()
    assert stranger.exists()
    assert load_consistent(path).outcomes.to_csv() == record.outcomes.to_csv()


def test_old_names_stay_as_they_are(record, tmp_path):
    name = f"{record.outcomes_file.stem}.outcomes.csv.gz"
    assert record.outcomes_file.file == name, "committed records have names without a digest"
    path = record.save(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {path.name, name}
    assert load_record(path).outcomes.to_csv() == record.outcomes.to_csv()


def test_what_a_killed_process_left_is_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_SWEPT", {})
    day = time.time() - 2 * files.OLD
    names = {
        "dead": f".rbk-{place()}-999999999-a.tmp",
        "alive": f".rbk-{place()}-{os.getpid()}-b.tmp",
        "elsewhere": ".rbk-00000000-1-c.tmp",
        "older name": ".rbk-abcdef.tmp",
        "young and dead": f".rbk-{place()}-999999999-d.tmp",
        "young and elsewhere": ".rbk-00000000-1-e.tmp",
        "not ours": "other.tmp",
    }
    for what, name in names.items():
        (tmp_path / name).write_bytes(b"x")
        if not what.startswith("young"):
            os.utime(tmp_path / name, (day, day))
    files.write_atomic(tmp_path / "file", b"content")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"file", names["alive"], names["young and elsewhere"], names["not ours"]}


def test_a_list_of_records_is_one_document_or_nothing(record, tmp_path, capsys):
    again(record).save(tmp_path)
    (path,) = find_records(tmp_path)
    assert main(["records", "show", str(tmp_path), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["spec"]["model"]["name"] == "vit_digits"
    (tmp_path / "zzz.record.json").write_text("{}")
    assert main(["records", "show", str(tmp_path), "--json"]) == 2
    assert capsys.readouterr().out == ""
    assert unpack((tmp_path / load_record(path).outcomes_file.file).read_bytes(), 2**20, "t").startswith(b"sample,")


def grid():
    """A grid of 40 images, 2 corruptions, 2 severities, and its protocol."""
    scenario = load_scenario("noise-blur-contrast-32px", {"severities": [1, 2]})[1]
    cells, rng = scenario.cells, np.random.default_rng(0)
    ids, names = Coded.of([f"image {number}" for number in range(40)]), Coded.of([name for name, _ in cells])
    rank = rng.integers(0, 7, 40 * len(cells))
    label = np.tile(rng.integers(0, 5, 40), len(cells))
    columns = {
        "sample": ids.tiled(len(cells)), "label": label, "corruption": names.repeated(40),
        "severity": np.repeat([severity for _, severity in cells], 40),
        "prediction": np.where(rank == 0, label, label + 1), "rank": rank,
    }  # fmt: skip
    return Outcomes.from_columns(task_named("classification").table("corruption"), columns), scenario


def test_metrics_are_equal_from_codes_and_from_texts():
    coded, scenario = grid()
    plain = dataclasses.replace(coded, columns=dict(coded.columns))
    order = np.random.default_rng(1).permutation(len(coded))
    shuffled = dataclasses.replace(coded, columns={name: column[order] for name, column in coded.columns.items()})
    found = measure(coded, scenario)
    assert found == measure(plain, scenario)
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
