import pytest
import torch

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.acceleration import accelerated, float32_products
from robustbench_kpca._engine.inference.environment import environment
from robustbench_kpca.training.ledger import Options
from robustbench_kpca.training.loop import train
from robustbench_kpca.training.recipe import load_recipe


def test_precision_is_set_and_put_back():
    before = float32_products()
    for tf32, expected in ((False, "matmul ieee, conv ieee"), (True, "matmul tf32, conv tf32")):
        with accelerated([], None, tf32=tf32):
            assert float32_products() == expected
            older = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
            assert older == (tf32, tf32)  # torch refuses to read them where its two interfaces disagree
        assert float32_products() == before


def test_training_is_exact_whatever_was_set_before(tmp_path):
    _, recipe, text = load_recipe("vit_digits", {"model_options": {"depth": 1}})

    def after_a_step(*_, **__):
        raise RuntimeError(float32_products())

    with accelerated([], None, tf32=True):
        with pytest.raises(RuntimeError, match=r"^matmul ieee, conv ieee$"):
            train("exact", recipe, text, tmp_path, Options(on_step=after_a_step))
        assert float32_products() == "matmul tf32, conv tf32"


def test_a_model_is_itself_again_afterwards(monkeypatch, fork):
    seen = []
    monkeypatch.setattr(torch, "compile", lambda forward, **how: lambda x: (seen.append(how), forward(x))[1])
    model = torch.nn.Linear(2, 3)
    x = torch.ones(1, 2, requires_grad=True)
    with accelerated([model], "default", tf32=False):
        (gradient,) = torch.autograd.grad(model(x).sum(), x)
        assert torch.allclose(gradient[0], model.weight.sum(0))
        assert environment(torch.device("cpu")).compiled == "default"
    assert seen == [{"mode": "default", "dynamic": False}]
    assert "forward" not in vars(model)
    assert environment(torch.device("cpu")).compiled is None


def test_an_unknown_mode_is_refused():
    with pytest.raises(BadInputError, match=r"compile = 'fast'.*reduce-overhead"):
        evaluate(torch.nn.Identity(), torch.zeros(1, 3, 2, 2), torch.zeros(1).long(), protocol="clean", compile="fast")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_gets_the_same_verdicts():
    model, digits = load_model("vit_digits_adv"), load_data("digits").in_order()
    few = digits.take(range(0, len(digits), len(digits) // 24))
    how = {"protocol": "pgd20-linf-8_255", "eps": "18/255", "steps": 5, "batch_size": 25, "audit": False}
    plain = evaluate(model, few, **how)
    compiled = evaluate(model, few, **how, compile="default")
    assert (plain.environment.compiled, compiled.environment.compiled) == (None, "default")
    assert 0 < plain.metrics["robust_accuracy"].value < 1
    assert (plain.outcomes["broken_by"] == compiled.outcomes["broken_by"]).all()
    assert compiled.environment.packages["torch"] == torch.__version__.partition("+")[0]
