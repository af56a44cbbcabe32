"""A search in bfloat16: its weights are converted once, give autocast's own numbers, and are put back."""

from types import SimpleNamespace

import pytest
import torch
from attack_checks import network
from torch import nn

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference import precision
from robustbench_kpca._engine.inference.precision import remark
from robustbench_kpca._engine.inference.runner import Runner, frozen
from robustbench_kpca._engine.inference.search_weights import SearchWeights
from robustbench_kpca.cli.main import main
from robustbench_kpca.evaluation import make_records

CPU = torch.device("cpu")


def images(n=4):
    return torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def ce(logits):
    return nn.functional.cross_entropy(logits, torch.arange(len(logits)) % 5, reduction="none")


def by_autocast(model, x):
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x).float()
        (gradient,) = torch.autograd.grad(ce(logits).sum(), x)
    return gradient, logits


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_the_numbers_are_those_of_autocast(kind, fork):
    model, x = network(kind), images()
    with frozen(model):
        expected, logits = by_autocast(model, x)
        runner = Runner(model, 4, CPU, search=torch.bfloat16)
        _, gradient, answers = runner.gradient(x, ce)
        assert torch.equal(gradient, expected)
        assert torch.equal(answers, logits)
        assert torch.equal(runner.logits(x, search=True), logits)
        assert not torch.equal(runner.logits(x), logits)


def test_the_numbers_are_those_of_autocast_in_a_transformer():
    model, (x, y) = load_model("rpc_symvit_digits"), load_data("digits", limit=4).tensors()
    with frozen(model):
        x = x.requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = torch.autograd.grad(nn.functional.cross_entropy(model(x).float(), y, reduction="sum"), x)[0]
        runner = Runner(model, 4, CPU, search=torch.bfloat16)
        gradient = runner.gradient(x, lambda z: nn.functional.cross_entropy(z, y, reduction="none"))[1]
    assert torch.equal(gradient, expected)


class Watched(nn.Module):
    """Notes the weight's place and type in every pass; fails where an image is 1 everywhere."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.seen = nn.Linear(48, 5), nn.LayerNorm(48), []

    def forward(self, x):
        self.seen.append((self.layer.weight.dtype, self.layer.weight.data_ptr()))
        assert self.norm.weight.dtype == torch.float32
        if bool((x == 1).flatten(1).all(1).any()):
            raise ValueError
        return self.layer(self.norm(x.flatten(1)))


def test_weights_are_converted_once_and_put_back_whatever_happens(fork):
    model, x = Watched().eval(), images()
    place = model.layer.weight.data_ptr()
    with frozen(model):
        runner = Runner(model, 4, CPU, search=torch.bfloat16)
        runner.gradient(x, ce)
        runner.logits(x, search=True)
        with pytest.raises(BadInputError):
            runner.gradient(torch.ones_like(x), ce)
        runner.logits(x)
    types, places = zip(*model.seen, strict=True)
    assert types == (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float32)
    assert places[0] == places[1] == places[2] != places[3] == place
    assert model.layer.weight.data_ptr() == place


def test_a_weight_that_another_layer_shares_stays(fork):
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    model[1].bias = model[0].bias
    with SearchWeights(model, torch.bfloat16).in_place():
        assert model[0].weight.dtype == torch.bfloat16
        assert model[1].bias.dtype == torch.float32


def test_a_search_that_is_slower_says_so(monkeypatch, fork):
    model, x = network("mlp"), images()
    runner = Runner(model, 4, CPU, search=torch.bfloat16)
    seconds = iter([0, 1, 0, 3] * 4)  # a pass of single precision takes one second, one of bfloat16 three
    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    assert "3.0 times" in remark(runner, x, torch.arange(4))
    seconds = iter([0, 3, 0, 1] * 4)
    assert remark(runner, x, torch.arange(4)) == ""
    assert remark(Runner(model, 4, CPU), x, torch.arange(4)) == ""
    assert runner.forwards == runner.backwards == 0


def test_the_remark_is_a_flag_of_the_record_and_is_printed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(make_records, "remark", lambda *_: "it does not pay")
    data = load_data("digits", limit=4)
    record = evaluate(load_model("vit_digits"), data, protocol="fgsm-linf-8_255", audit=False, precision="bf16-search")
    assert record.flags == ("it does not pay",)
    asked = "eval -m vit_digits -p fgsm-linf-8_255 --set precision=bf16-search --limit 4 --audit none -o"
    assert main([*asked.split(), str(tmp_path)]) == 0
    assert "it does not pay" in capsys.readouterr().err


def test_where_there_is_no_gradient_its_speed_is_not_measured(monkeypatch):
    monkeypatch.setattr(
        "robustbench_kpca.evaluation.make_records.remark", lambda *given: pytest.fail("it was measured")
    )
    how = {"precision": "bf16-search", "restarts": 1, "audit": False}
    texts = load_data("grammar", limit=1)
    record = evaluate(load_model("softmax_lm_tiny"), texts, protocol="random-swap-words-1.5", **how)
    assert record.spec.data.n == 1
    digits, model = load_data("digits", limit=4), load_model("vit_digits")
    model.differentiable = False
    assert evaluate(model, digits, protocol="square-linf-8_255", queries=3, **how).spec.data.n == 4
