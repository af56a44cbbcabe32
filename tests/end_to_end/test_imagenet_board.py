"""The board of a published network: its commands make its numbers again where weights and photographs are at hand."""

import pytest

from robustbench_kpca.report.matching import load_board
from robustbench_kpca.verification.rerun import rerun
from robustbench_kpca.verification.stated import Conditions


@pytest.mark.slow
def test_a_number_of_the_page_is_made_again(real_data, monkeypatch):
    real_data("models/deit_tiny_patch16_224_fp16.safetensors")
    monkeypatch.chdir(real_data("imagenet_nips2017/labels.csv").parents[1])
    found = next(run.record for run in load_board("imagenet-real").runs if run.evaluation.protocol == "fgsm-linf-2_255")
    again = rerun(found, samples=3, seed=1, how=Conditions(other_versions=True))
    assert len(again.samples) == 3
    assert not again.differing, "the command of the record gives other rows"
