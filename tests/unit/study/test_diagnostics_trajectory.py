"""The projection loss over training: both terms after every epoch, on the same images."""

import json

import pytest
import torch

from robustbench_kpca import create_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models.checkpoint import save_checkpoint
from robustbench_kpca.study.diagnostics.epochs import TERMS, load_trajectory
from robustbench_kpca.study.diagnostics.figures import trajectory
from robustbench_kpca.study.diagnostics.trajectory import over_training


@pytest.mark.usefixtures("fork")
def test_the_projection_loss_over_training(tmp_path):
    model, runs = create_model("symvit_digits", depth=2), tmp_path / "runs"

    def save(epoch):
        header = {"config": json.dumps(model.config)}
        save_checkpoint(runs / f"symvit_digits.epoch-{epoch:03d}.safetensors", model, header)

    for epoch in (1, 2, 10):
        with torch.no_grad():
            model.blocks[0].attn.qkv.weight[48:] *= 2  # |h|^2 of the first layer grows fourfold
        save(epoch)
    found = over_training(runs, "digits", ["train", "test"], 7)
    found.save(tmp_path / "out")
    assert load_trajectory(tmp_path / "out") == found
    assert [course.data.split for course in found.courses] == ["train", "test"]
    assert found.courses[0].data.digest != found.courses[1].data.digest
    epochs = found.courses[1].epochs
    assert [one.epoch for one in epochs] == [1, 2, 10]
    for one in epochs:  # the signed value is the difference of both terms
        assert one.mean("scaled_signed") == pytest.approx(one.mean("phi") - one.mean("h"))
    assert trajectory(found).count('id="axes_') == len(TERMS)
    first = [one.by_layer["log10_h"][0] for one in epochs]
    assert torch.tensor(first).diff().tolist() == pytest.approx([0.602, 0.602], abs=0.02)
    assert len({one.by_layer["log10_phi"][0] for one in epochs}) == 1  # q and k of that layer stay
    with pytest.raises(BadInputError, match="same images"):
        over_training(runs, "digits", ["test", "test"], 2)
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight[0] = torch.nan
    save(11)
    with pytest.raises(BadInputError, match="layer 1"):
        over_training(runs, "digits", ["test"], 2)


def test_a_folder_without_checkpoints_says_how_they_are_made(tmp_path):
    with pytest.raises(BadInputError, match="--keep-every"):
        over_training(tmp_path, "digits", ["test"], 2)
