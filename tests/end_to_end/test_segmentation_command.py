"""`rbk eval` and `rbk records show` on scenes: what works, and one line where model, data and protocol do not fit."""

import json

import pytest

from robustbench_kpca.cli.main import main
from robustbench_kpca.data.load import load_data
from robustbench_kpca.records.record import find_records, load_record

pytestmark = pytest.mark.usefixtures("elsewhere", "fork")  # what is untrained draws weights

EVAL = ["eval", "--data", "shapes", "--limit", "6", "-o", "out", "--quiet"]
UNTRAINED = [*EVAL, "-m", "symvit_shapes", "--set=model.untrained=true"]


def rbk(*arguments: str) -> int:
    return main(list(arguments))


def test_a_segmenter_is_evaluated_shown_and_kept(capsys):
    assert rbk(*UNTRAINED, "-p", "segmentation", "--name", "m") == 0
    assert "miou" in capsys.readouterr().out
    (path,) = find_records("out")
    record = load_record(path)
    assert record.spec.data.name == "shapes"
    assert record.spec.data.split == "val"
    assert record.spec.data.n == 6
    assert (record.outcomes.task, record.outcomes.kind) == ("segmentation", "clean")
    assert rbk("records", "show", "out") == 0
    shown = capsys.readouterr().out
    assert "By class, percent" in shown
    assert "by corruption" not in shown
    assert rbk("records", "show", "out", "--json") == 0
    (content,) = json.loads(capsys.readouterr().out)
    assert [row["class"] for row in content["classes"]] == list(load_data("shapes", limit=1).class_names)
    assert content["cells"][0]["corruption"] == "none"
    assert len(content["cells"][0]["iou"]) <= 8


def test_corrupted_and_attacked_scenes_and_the_gate(capsys):
    grid = ["-p", "shapes-c", "--set", "severities=[5]", "--name", "m"]
    assert rbk(*UNTRAINED, *grid, "--set", 'corruptions=["fog","zoom_blur"]', "--workers", "1") == 0
    assert "corrupted_miou_still" in capsys.readouterr().out
    assert rbk("records", "show", "out") == 0
    shown = capsys.readouterr().out
    assert "1 - mIoU by corruption and severity, percent" in shown
    assert rbk("check", "out", "--baseline", "out", "--fail", "corrupted_miou:-1pp") == 0
    attack = ["-p", "segpgd20-linf-2_255", "--set", "steps=2", "--batch-size", "6", "--audit", "none"]
    assert rbk(*UNTRAINED, *attack, "--name", "m") == 0
    assert "robust_miou" in capsys.readouterr().out
    assert rbk("records", "show", "out") == 0
    assert "attacked IoU" in capsys.readouterr().out


DRAWN = "-m symvit_shapes --set=model.untrained=true"
MISFITS = {
    "eval -m vit_digits -p segmentation --data shapes": "window",
    "eval -m vit_digits -p segmentation --data digits": "'digits'",
    "eval -m vit_digits -p clean --data shapes": "symvit_shapes",
    "eval -m vit_digits -p segmentation --data shapes --set window=32": "logits",
    f"eval {DRAWN} -p clean --data digits": "64 x 64",
    f"eval {DRAWN} -p segmentation --data shape": "'shape'",
    f"eval {DRAWN} -p segmentation --data shapes --set model.num_classes=5": "5 classes",
    f"eval {DRAWN} -p segmentation --data shapes --split test": "test",
    f"eval {DRAWN} -p segmentation --data shapes --against photos": "'shapes'",
    f"eval {DRAWN} -p segmentation --data shapes --set stride=100": "0 < stride <= window",
}


@pytest.mark.parametrize("words", MISFITS)
def test_what_does_not_fit_is_one_line(words, capfd):
    assert rbk(*words.split()) == 2
    said = capfd.readouterr().err.strip()
    assert MISFITS[words] in said
    assert len(said.splitlines()) == 1
    assert "Traceback" not in said
