"""Loggers write to the real libraries, and what they wrote is read back by these."""

import struct
import sys
from pathlib import Path

import pytest
from stand_ins import few_digits

from robustbench_kpca import load_record
from robustbench_kpca._core.errors import BadInputError, EvaluationError, UnknownNameError
from robustbench_kpca.cli.main import main
from robustbench_kpca.report.loggers import LOGGERS, Logger, Loggers, numbers, open_loggers

FOLDER = Path(__file__).parents[2] / "leaderboards" / "digits-attacks" / "records"
CURVE = [{"loss": 2.0, "val_accuracy": 0.5}, {"loss": 1.0, "val_accuracy": 0.75}]


@pytest.fixture(scope="module")
def record():
    return load_record(next(FOLDER.glob("vit_digits__*pgd20*.record.json")))


def log(text, record):
    """Log a record twice, as a command that is run again does, and a curve."""
    for _ in range(2):
        loggers = open_loggers([text])
        loggers.record(record)
        loggers.close()
    loggers = open_loggers([text])
    for step, values in enumerate(CURVE, start=1):
        loggers.scalars("training", values, step)
    loggers.close()


def test_tensorboard(tmp_path, record):
    pytest.importorskip("tensorboard", reason="NOT TESTED: the logger for TensorBoard; pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    def read(run):
        events = EventAccumulator(str(tmp_path / run))
        events.Reload()
        return {
            tag: [(event.step, float(tensor_util.make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
            for tag in events.Tags()["tensors"]
        }

    log(f"tensorboard:{tmp_path}", record)
    found = read(record.spec.stem())
    assert found["robust_accuracy"] == [(0, pytest.approx(record.metrics["robust_accuracy"].value))]
    assert set(found) == set(numbers(record))
    assert read("training")["loss"] == [(1, 2.0), (2, 1.0)]


def test_what_tensorboard_was_sent_in_part_is_sent_again(tmp_path, record, monkeypatch):
    pytest.importorskip("tensorboard", reason="NOT TESTED: the logger for TensorBoard; pip install tensorboard")
    from tensorboard.summary import Writer

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "add_scalar", _full)
        with pytest.raises(EvaluationError, match="run the same command again"):
            open_loggers([f"tensorboard:{tmp_path}"]).record(record)
    assert not (tmp_path / record.spec.stem()).exists()
    log(f"tensorboard:{tmp_path}", record)
    assert len(list((tmp_path / record.spec.stem()).glob("events.*"))) == 1
    assert not list(tmp_path.glob(".*"))


def _full(*_args, **_more):
    raise OSError("no space left")


@pytest.mark.filterwarnings("ignore")
def test_what_mlflow_was_sent_in_part_is_sent_again(tmp_path, record, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="NOT TESTED: the logger for MLflow; pip install mlflow")

    def gone(*_args):
        raise mlflow.exceptions.MlflowException("gone")

    uri = f"sqlite:///{tmp_path}/runs.db"
    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "log_metric", gone)
        with pytest.raises(EvaluationError, match="run the same command again"):
            open_loggers([f"mlflow:{uri}"]).record(record)
    for _ in range(2):
        open_loggers([f"mlflow:{uri}"]).record(record)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("robustbench-kpca").experiment_id
    (sent,) = client.search_runs([experiment])
    assert sent.data.metrics == pytest.approx(numbers(record))


@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path, record):
    mlflow = pytest.importorskip("mlflow", reason="NOT TESTED: the logger for MLflow; pip install mlflow")
    uri = f"sqlite:///{tmp_path}/runs.db"
    log(f"mlflow:{uri}", record)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("robustbench-kpca").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    assert set(runs) == {record.spec.stem(), "training"}
    sent = runs[record.spec.stem()]
    assert sent.data.metrics == pytest.approx(numbers(record))
    assert sent.data.params["protocol"] == "pgd20-linf-8_255"
    assert sent.info.status == "FINISHED"
    history = client.get_metric_history(runs["training"].info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == [(1, 2.0), (2, 1.0)]


def leveldb_log(data, block=32768, head=7):
    """Yield the entries of a log as LevelDB writes it, after a head of seven bytes: checksum, length, kind, content."""
    at, parts = head, b""
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts, at = parts + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(tmp_path, record, monkeypatch):
    pytest.importorskip("wandb", reason="NOT TESTED: the logger for Weights & Biases; pip install wandb")
    from wandb.proto import wandb_internal_pb2

    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    log("wandb:project", record)
    sent, names, losses = {}, set(), []
    for file in tmp_path.rglob("*.wandb"):
        for data in leveldb_log(file.read_bytes()):
            entry = wandb_internal_pb2.Record()
            entry.ParseFromString(data)
            if entry.HasField("run"):
                names.add(entry.run.display_name)
            for update in entry.summary.update:
                sent[update.key or update.nested_key[0]] = update.value_json
            losses += [item.value_json for item in entry.history.item if "loss" in (item.key, *item.nested_key)]
    assert names == {record.spec.stem(), "training"}
    assert float(sent["robust_accuracy"]) == record.metrics["robust_accuracy"].value
    assert [float(loss) for loss in losses] == [2.0, 1.0]


def test_a_logger_that_cannot_be_opened_is_one_line(tmp_path, monkeypatch):
    assert LOGGERS.names() == ["mlflow", "tensorboard", "wandb"]
    with pytest.raises(BadInputError, match="KIND:TARGET"):
        open_loggers(["tensorboard"])
    with pytest.raises(UnknownNameError, match="did you mean 'mlflow'"):
        open_loggers(["mflow:x"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "robustbench_kpca.report.loggers.wandb", raising=False)
    with pytest.raises(BadInputError, match=r"wandb.*pip install 'robustbench-kpca\[wandb\]'"):
        open_loggers(["wandb:x"])
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match="check the target"):
        open_loggers([f"tensorboard:{tmp_path}/file"])


def test_a_tracker_that_fails_later_ends_in_one_line(record):
    class Failing(Logger):
        failures = (ConnectionError,)

        def __init__(self):
            pass

        def record(self, record):
            raise ConnectionError("gone\nmore")

    with pytest.raises(EvaluationError, match=r"--log x:y: no connection.*; records are kept"):
        Loggers([("x:y", Failing())]).record(record)


def test_an_evaluation_and_a_training_are_logged(tmp_path, few_resamples):
    pytest.importorskip("tensorboard", reason="NOT TESTED: --log of the commands; pip install tensorboard")
    out, log = str(tmp_path / "runs"), f"tensorboard:{tmp_path / 'log'}"
    few = ["--limit", "4", "--batch-size", "4", "-o", out, "-q"]
    assert main(["eval", "-m", "vit_digits", "-p", "clean", *few, "--log", log]) == 0
    tiny = ["--set", "epochs=1", "--set", "warmup_epochs=0", "--name", "t", "-o", out, "-q"]
    with few_digits(64):
        assert main(["train", "vit_digits", *tiny, "--log", log]) == 0
    assert {path.parent.name for path in (tmp_path / "log").rglob("events.*")} == {
        next(Path(out).glob("*.record.json")).name.removesuffix(".record.json"), "t",
    }  # fmt: skip
