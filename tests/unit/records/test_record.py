import hashlib
import json
import lzma
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robustbench_kpca import evaluate, load_data, load_model, load_record
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import safe_name, write_atomic
from robustbench_kpca.audit import run as auditing
from robustbench_kpca.data.scenes import ArrayScenes
from robustbench_kpca.metrics import measure
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.audit import AuditFile
from robustbench_kpca.records.record import find_records


@pytest.fixture
def saved(tmp_path, linear):
    model = linear(torch.ones(3, 2, 2), -6.0).eval()
    images = torch.rand(20, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 2
    evaluate(model, images, labels, protocol="pgd20-linf-8_255", name="toy", out=tmp_path, audit=False)
    (path,) = find_records(tmp_path)
    return path


def test_a_record_survives_the_disk_and_its_metrics_follow_from_the_table(saved):
    record = load_record(saved)
    assert measure(record.outcomes, load_scenario(record.spec.protocol.name)[1]) == record.metrics
    assert record.spec.protocol.resolved["eps"] == 8 / 255
    assert record.passes.backwards == record.outcomes["backwards"].sum()
    assert record.passes.forwards == 20 + record.outcomes["forwards"].sum()


def test_names_of_classes_are_kept_and_identify_nothing(tmp_path):
    class Left(torch.nn.Module):
        def forward(self, x):
            return torch.stack([x[:, 0], 0.5 - x[:, 0]], 1)

    image, mask = np.full((4, 4, 3), 200, np.uint8), np.eye(4, dtype=np.int16)
    how = {"protocol": "segmentation", "window": 4, "name": "m", "out": tmp_path / "o", "audit": False}
    first, second = (
        evaluate(Left().eval(), ArrayScenes([image], [mask], names), **how)
        for names in (("road", "sky <b>"), ("a", "b"))
    )
    (path,) = find_records(tmp_path / "o")
    assert first.spec.digest() == second.spec.digest(), "the second found the record of the first"
    assert load_record(path).spec.data.class_names == ("road", "sky <b>")
    content = json.loads(path.read_text())
    del content["spec"]["data"]["class_names"]
    path.write_text(json.dumps(content))
    older = load_record(path)
    assert older.spec.data.class_names is None
    assert older.spec.digest() == first.spec.digest()
    content["spec"]["data"]["class_names"] = ["road"]
    path.write_text(json.dumps(content))
    with pytest.raises(BadInputError, match="1 names for 2 classes"):
        load_record(path)


def test_a_table_of_other_columns_than_its_tasks_is_refused(saved):
    """Records state their own columns, so that they can be read; they must be those of their task and protocol."""
    from robustbench_kpca.report.consistency import load_consistent

    content = json.loads(saved.read_text())
    file = content["outcomes_file"]
    file["columns"] = {("withdrawn" if name == "retracted" else name): kind for name, kind in file["columns"].items()}
    table = saved.parent / file["file"]
    text = lzma.decompress(table.read_bytes()).replace(b"retracted", b"withdrawn", 1)
    table.write_bytes(lzma.compress(text))
    file["sha256"] = hashlib.sha256(text).hexdigest()
    saved.write_text(json.dumps(content))
    assert "withdrawn" in load_record(saved).outcomes.columns
    with pytest.raises(BadInputError, match=r"withdrawn.*classification.*retracted"):
        load_consistent(saved)


def _edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(schema_version=5), "schema 5.*upgrade"),
        (lambda c: c.update(schema_version=1), "schema 1.*evaluate"),
        (lambda c: c.update(schema_version="x"), "schema x"),
        (lambda c: c.update(surprise=1), "'surprise'"),
        (lambda c: c.pop("metrics"), "'metrics'"),
        (lambda c: c["outcomes_file"].update(rows=3), "table"),
        (lambda c: c["outcomes_file"].update(sha256="0" * 64), "table"),
        (lambda c: c["outcomes_file"].update(file="../x"), "file name"),
        (lambda c: c["outcomes_file"].update(file="gone.gz"), "missing"),
        (lambda c: c["spec"]["model"].update(pixel_std=[0.5, 0.0, 0.5]), "pixel_std"),
        (lambda c: c["spec"]["data"].update(known=0), "known"),
        (lambda c: c["outcomes_file"].update(columns={}), "columns"),
    ],
)
def test_bad_records(saved, change, message):
    _edit(saved, change)
    with pytest.raises(BadInputError, match=message):
        load_record(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["metrics"]["robust_accuracy"].update(value=1.0), "robust_accuracy = 1.0000"),
        (lambda c: c["metrics"].pop("robust_accuracy"), "robust_accuracy = None"),
        (lambda c: c["spec"]["protocol"].update(digest="0" * 64), "protocol digest 000000000000"),
        (lambda c: c["spec"]["protocol"]["resolved"].update(eps=0.5), "protocol digest"),
        (lambda c: c["spec"]["data"].update(n=21), "n = 21"),
    ],
)
def test_what_does_not_follow_is_not_believed(saved, change, message):
    from robustbench_kpca.report.consistency import load_consistent

    load_consistent(saved)
    _edit(saved, change)
    with pytest.raises(BadInputError, match=message):
        load_consistent(saved)


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """Records of two models, each with its own audit (in which nothing was asked)."""
    folder, data = tmp_path_factory.mktemp("audited"), load_data("digits", limit=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auditing, "run_checks", lambda bench: [])
        for name in ("vit_digits", "fan_digits"):
            model = load_model(name)
            found = auditing.audit(model, data, name=name)
            evaluate(model, data, protocol="fgsm-linf-8_255", name=name, audit=found, out=folder)
    evaluate(load_model("vit_digits"), data, protocol="clean", name="vit_digits", out=folder, audit=False)
    return folder


def pick(folder, name, protocol):
    return next(path for path in find_records(folder) if path.name.startswith(f"{name}__digits-test__{protocol}"))


SUBJECTS = [{"parameters_sha256": "0" * 64}, {"data": "other"}, {"split": "train"}, {"probe_sha256": "0" * 64}]


@pytest.mark.parametrize("change", SUBJECTS)
def test_an_audit_of_something_else_is_neither_taken_nor_believed(change, audited, tmp_path):
    path = pick(audited, "vit_digits", "fgsm")
    record = load_record(path)
    other = record.audit.model_copy(update={"subject": record.audit.subject.model_copy(update=change)})
    with pytest.raises(BadInputError, match="another model"):
        record.audited(other)
    copied = shutil.copytree(audited, tmp_path / "copied") / path.name
    load_record(copied)
    other.save(copied.parent)
    _edit(copied, lambda c: c.update(audit=AuditFile.of(other).model_dump()))
    with pytest.raises(BadInputError, match="another model"):
        load_record(copied)


def test_audits_of_other_batches_and_records(audited, tmp_path):
    record = load_record(pick(audited, "vit_digits", "fgsm"))
    subject = record.audit.subject.model_copy(update={"probe_sha256": "0" * 64, "data_digest": "0" * 64})
    other = record.audit.model_copy(update={"subject": subject})
    assert record.audited(other).audit == other
    data, model = load_data("digits", limit=20), load_model("vit_digits")
    drawn = evaluate(model, data, protocol="fgsm-linf-8_255", name="vit_digits", draws=3, audit=record.audit)
    assert drawn.audit == record.audit
    copied = shutil.copytree(audited, tmp_path / "copied")
    audit = json.loads(pick(copied, "fan_digits", "fgsm").read_text())["audit"]
    _edit(pick(copied, "vit_digits", "fgsm"), lambda c: c.update(audit=audit))
    with pytest.raises(BadInputError, match=r"'fan_digits'.*another model"):
        load_record(pick(copied, "vit_digits", "fgsm"))
    _edit(pick(copied, "vit_digits", "clean"), lambda c: c.update(audit=audit))
    with pytest.raises(BadInputError, match="attack"):
        load_record(pick(copied, "vit_digits", "clean"))


def test_an_audit_is_one_file_that_records_name(audited, tmp_path):
    copied = pick(shutil.copytree(audited, tmp_path / "copied"), "vit_digits", "fgsm")
    record = load_record(copied)
    path = AuditFile.of(record.audit).path(copied.parent)
    assert len(list(path.parent.iterdir())) == 2, "of two models"
    assert record.model_copy(update={"flags": ("again",)}).save(copied.parent) == copied
    assert load_record(copied).audit == record.audit
    assert len(list(path.parent.iterdir())) == 2
    path.write_bytes(path.read_bytes().replace(b'"seconds": ', b'"seconds": 1'))
    with pytest.raises(BadInputError, match=r"is not the audit that its record names"):
        load_record(copied)
    assert load_record(record.save(copied.parent)).audit == record.audit, "whole again"
    path.unlink()
    with pytest.raises(BadInputError, match=r"audits.* is missing"):
        load_record(copied)
    _edit(copied, lambda c: c["audit"].update(file="../x"))
    with pytest.raises(BadInputError, match="file name"):
        load_record(copied)


def test_a_record_that_is_not_written_leaves_the_one_before_with_its_audit(audited, tmp_path, monkeypatch):
    copied = pick(shutil.copytree(audited, tmp_path / "copied"), "vit_digits", "fgsm")
    before = load_record(copied)
    renewed = before.audited(before.audit.model_copy(update={"seconds": 777.0}))

    def stopped(path, data):
        if path.name.endswith(".record.json"):
            raise KeyboardInterrupt
        write_atomic(path, data)

    monkeypatch.setattr("robustbench_kpca.records.record.write_atomic", stopped)
    with pytest.raises(KeyboardInterrupt):
        renewed.save(copied.parent)
    assert AuditFile.of(renewed.audit).read(copied.parent) == renewed.audit
    assert load_record(copied).audit == before.audit


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null"])
def test_what_is_no_record(saved, text):
    saved.write_text(text)
    with pytest.raises(BadInputError, match="is no record"):
        load_record(saved)


def test_an_unwritable_folder_is_found_out_before_any_work(tmp_path, linear):
    (tmp_path / "file").write_text("")
    calls = []
    model = linear(torch.ones(3, 2, 2), 0.0).eval()
    model.register_forward_hook(lambda *a: calls.append(1))
    with pytest.raises(BadInputError, match="cannot write"):
        evaluate(model, torch.zeros(2, 3, 2, 2), [0, 1], protocol="clean", out=tmp_path / "file" / "sub", audit=False)
    assert not calls


@given(st.text())
def test_any_name_is_one_safe_path_component(text):
    name = safe_name(text)
    assert name not in ("", ".", "..")
    assert not set(name) & set("/\\\0")
    assert len(name) <= 120
