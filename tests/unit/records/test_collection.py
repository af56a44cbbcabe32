"""Records become tables and formats of other tools; each is read back by another library."""

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pytest

from robustbench_kpca import load_record, load_records
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import inert
from robustbench_kpca.cli.main import main
from robustbench_kpca.records.collection import Records
from robustbench_kpca.report.export import entry, export

FOLDER = Path(__file__).parents[3] / "leaderboards" / "digits-attacks" / "records"


def files(model, *protocols):
    return [next(FOLDER.glob(f"{model}__digits-test__{protocol}__*.record.json")) for protocol in protocols]


@pytest.fixture(scope="module")
def few():
    return Records([load_record(path) for path in files("vit_digits", "clean", "pgd20-linf-8_255", "autoattack-*")])


def renamed(record, name):
    spec = record.spec.model_copy(update={"model": record.spec.model.model_copy(update={"name": name})})
    return record.model_copy(update={"spec": spec})


def test_a_row_a_record_says_what_its_json_says(few):
    table = few.to_frame()
    assert list(table["protocol"]) == ["clean", "pgd20-linf-8_255", "autoattack-linf-8_255"]
    for row, path in zip(table.to_dict("records"), files("vit_digits", *table["protocol"]), strict=True):
        content = json.loads(path.read_text())
        assert path.name == f"{row['record']}.record.json"
        assert (row["n"], row["data"]) == (content["spec"]["data"]["n"], "digits")
        for name, estimate in content["metrics"].items():
            assert [row[name], row[f"{name}_low"], row[f"{name}_high"]] == [
                estimate[k] for k in ("value", "low", "high")
            ]
    assert pd.isna(table["eps"][0])
    assert table["eps"][1] == pytest.approx(8 / 255)
    assert list(table["audit"][1:]) == ["clear", "clear"]


def test_rows_of_records_and_samples(few):
    table = few.to_frame(by="sample")
    assert len(table) == sum(record.spec.data.n for record in few)
    attacked = table[table["protocol"] == "pgd20-linf-8_255"]
    assert (attacked["broken_by"] == "").mean() == few[1].metrics["robust_accuracy"].value
    assert str(table["forwards"].dtype) == "Int64"  # no whole number becomes a float where others lack the column
    assert table["forwards"].isna().sum() == few[0].spec.data.n
    assert repr(few[1]).startswith("Record('vit_digits', 'digits/test', 'pgd20-linf-8_255', n=64, clean_accuracy=0.9")
    assert "\n" not in repr(few[1])
    assert str(few[1]) == repr(few[1])
    shown = renamed(few[0], "<script>x</script>")._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


@pytest.mark.untyped  # a wrong name, on purpose
def test_another_row_is_refused(few):
    with pytest.raises(BadInputError, match="by = 'image'"):
        few.to_frame(by="image")


def test_a_folder_is_loaded_in_order_and_nothing_is_refused(tmp_path):
    records = load_records(FOLDER)
    assert len(records) == len(list(FOLDER.glob("*.record.json")))
    assert isinstance(records[:2], Records)
    assert repr(records) == "Records(44 records of 4 models)"
    with pytest.raises(BadInputError, match=r"no \*\.record\.json"):
        load_records(tmp_path)


def test_csv_and_json_hold_the_same_numbers_and_quoted_names(few):
    rows = list(csv.DictReader(io.StringIO(export(few, "csv"))))
    objects = json.loads(export(few, "json"))
    assert [row["model"] for row in rows] == [one["model"] for one in objects] == ["vit_digits"] * 3
    for row, one in zip(rows, objects, strict=True):
        assert float(row["clean_accuracy"]) == pytest.approx(one["clean_accuracy"], abs=1e-15)
    assert len(json.loads(export(few, "json", by="sample"))) == 192
    for name in ("=1+1", "+cmd", "-2+3", "@SUM(A1)", "\x1b[2J", "\u202eabc"):
        [row] = csv.DictReader(io.StringIO(export(Records([renamed(few[0], name)]), "csv")))
        assert row["model"] == f"'{name}"
        assert float(row["clean_accuracy"]) == few[0].metrics["clean_accuracy"].value
    assert [inert(cell) for cell in ("-1.5", "-inf", -2, None, "a=b", "")] == ["-1.5", "-inf", -2, None, "a=b", ""]


def test_the_commands_write_files(tmp_path, capsys):
    paths = [str(path) for path in files("vit_digits", "clean", "autoattack-*")]
    for to in ("csv", "json"):
        assert main(["records", "export", *paths, "--to", to, "-o", str(tmp_path / to)]) == 0
        assert (tmp_path / to).stat().st_size > 500
    capsys.readouterr()
    assert main(["records", "export", *paths, "--to", "csv", "-q"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def stored(record, **changes):
    """A record as if its pictures were the published ones."""
    resolved = record.spec.protocol.resolved | {"mode": "stored"} | changes
    protocol = record.spec.protocol.model_copy(update={"resolved": resolved})
    data = record.spec.data.model_copy(update={"name": "imagenet-c"})
    spec = record.spec.model_copy(update={"protocol": protocol, "data": data})
    return record.model_copy(update={"spec": spec})


def test_the_file_of_robustbench_has_its_fields_in_percent():
    """Keys are those of `model_info/imagenet/corruptions` in release 1.1.1; numbers are of the record's JSON."""
    folder = FOLDER.parents[1] / "imagenet-real" / "records"
    [path] = folder.glob("deit_tiny__*__imagenet-c-generated__*.record.json")
    record = load_record(path)
    without_mce = {name: value for name, value in record.metrics.items() if name != "mce"}
    depth = stored(record, profile="imagenet_3dcc").model_copy(update={"metrics": without_mce})
    content = json.loads(entry([stored(record), depth]))
    metrics = json.loads(path.read_text())["metrics"]
    assert content["corruptions_acc"] == content["corruptions_acc_3d"] == "51.54"
    assert content["corruptions_mce"] == f"{100 * metrics['mce']['value']:.2f}"
    assert (content["clean_acc"], content["number_forward_passes"]) == ("87.50", 1)
    assert set(content) == {
        "link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture",
        "eps", "clean_acc", "reported", "corruptions_acc", "corruptions_mce", "corruptions_acc_3d",
    }  # fmt: skip


def test_generated_pictures_are_not_for_robustbench(few, capsys):
    assert main(["records", "export", str(FOLDER), "--to", "robustbench"]) == 2
    assert "protocol imagenet-c (stored pictures)" in capsys.readouterr().err
