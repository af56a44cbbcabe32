"""Stored sets are evaluated as they lie on disk, under the protocol of that very set and no other."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from robustbench_kpca import evaluate, load_data
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.imagenet_classes import imagenet_wnids
from robustbench_kpca.data.request import View

WNIDS = imagenet_wnids()[:2]
FEW = {"corruptions": ["fog", "contrast"], "severities": [1, 2]}
NAMES = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in (7, 8, 9)]


class Bright(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.classes = classes

    def forward(self, x):
        level = x.mean((1, 2, 3))
        rest = torch.full((len(x), self.classes - 2), -9.0)
        return torch.cat([torch.stack([0.5 - level, level - 0.5], 1), rest], 1)


def picture(level, side=224):
    return Image.fromarray(np.full((side, side, 3), level, np.uint8))


@pytest.fixture
def imagenet_c(tmp_path):
    """Two dark images of class 0 and a bright one of class 1; contrast at severity 2 shows the first as bright."""
    root = tmp_path / "c"
    for corruption in FEW["corruptions"]:
        for severity in FEW["severities"]:
            for name, wnid, level in zip(NAMES, (WNIDS[0], WNIDS[0], WNIDS[1]), (20, 30, 230), strict=True):
                turned = (corruption, severity, name) == ("contrast", 2, NAMES[0])
                folder = root / corruption / str(severity) / wnid
                folder.mkdir(parents=True, exist_ok=True)
                picture(240 if turned else level).save(folder / name, quality=95)
    return root


def test_imagenet_c_without_the_images_as_they_are(imagenet_c, tmp_path):
    data = load_data(f"imagenet-c:{imagenet_c}", view=View(224))
    record = evaluate(Bright(1000).eval(), data, protocol="imagenet-c", out=tmp_path / "runs", **FEW, audit=False)
    assert record.metrics["mean_corruption_error"].value == pytest.approx(1 / 12)
    assert "mce" not in record.metrics, "of two corruptions at two severities"
    assert "clean_accuracy" not in record.metrics
    (flag,) = record.flags
    assert "3 of the 50000 published images of imagenet-c" in flag
    assert record.spec.data.name == "imagenet-c"
    again = evaluate(Bright(1000).eval(), data, protocol="imagenet-c", out=tmp_path / "runs", **FEW, audit=False)
    assert again.created == record.created
    with pytest.raises(BadInputError, match=r"none .*severity 0"):
        evaluate(Bright(1000).eval(), data, protocol="imagenet-c", clean=True, **FEW, audit=False)


def test_the_command_line_takes_lists_and_stored_sets(imagenet_c, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bright.py").write_text(
        "import torch\nfrom test_stored_evaluation import Bright\n\ndef model():\n    return Bright(1000).eval()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(__import__("pathlib").Path(__file__).parent))
    lists = ["--set", 'corruptions=["fog","contrast"]', "--set", "severities=[1,2]"]
    common = ["eval", "-m", "bright:model", "--data", f"imagenet-c:{imagenet_c}", "-q", "-o", "runs", *lists]
    assert main([*common, "-p", "imagenet-c"]) == 0
    assert "mean_corruption_error" in capsys.readouterr().out
    assert main([*common, "-p", "imagenet-c-generated"]) == 2
    assert "mode = 'stored'" in capsys.readouterr().err
    assert main([*common, "-p", "fgsm-linf-1_255", "--audit", "none"]) == 2
