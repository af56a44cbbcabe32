"""Attention-Fool's loss: against a transcription by loops, its gradient in closed form, and in the loop."""

import math

import pytest
import torch
from attack_checks import USUAL, rand, scenario
from torch import nn

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.attention_loss import attention_loss, changed_tokens, watched
from robustbench_kpca._engine.attack_loop.engine import Engine
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.tasks import task_named

STAGE = {"attack": "mim", "restarts": 1, "steps": 3, "step_size": 0.1, "decay": 1.0}


def by_loops(layers, changed):
    values = []
    for n in range(len(changed)):
        by_layer = []
        for q, k in layers:
            heads = []
            for h in range(q.shape[1]):
                queries, keys = q[n, h], k[n, h]
                queries = queries / torch.stack([one.norm() for one in queries]).mean()
                keys = keys / torch.stack([one.norm() for one in keys]).mean()
                cells = keys[len(keys) - changed.shape[1] :]
                products = [
                    a @ cells[i] / math.sqrt(len(a)) for a in queries for i in range(len(cells)) if changed[n, i]
                ]
                heads.append(math.exp(sum(products) / len(products)))
            by_layer.append(sum(heads))
        values.append(math.log(sum(by_layer)))
    return torch.tensor(values, dtype=torch.float64)


def test_it_equals_a_transcription_by_loops():
    layers = [(rand(seed, 2, 3, 5, 4) - 0.5, rand(seed + 9, 2, 3, 5, 4) - 0.5) for seed in (0, 1)]
    changed = torch.tensor([[True, False, False, True], [False, True, False, False]])
    assert torch.allclose(attention_loss(layers, changed), by_loops(layers, changed), atol=1e-12)


def test_its_gradient_to_the_changed_key_is_the_mean_query():
    """With one head and layer and tokens of mean length 1: d loss / d k_i = mean_j q_j / sqrt(D), but for the norm."""
    q, k = (nn.functional.normalize(rand(seed, 1, 1, 6, 4) - 0.5, dim=3) for seed in (0, 1))
    k.requires_grad_()
    changed = torch.zeros(1, 6, dtype=torch.bool)
    changed[0, 2] = True
    (gradient,) = torch.autograd.grad(attention_loss([(q, k)], changed).sum(), k)
    plain = q[0, 0].mean(0) / 2
    along = (plain @ k[0, 0, 2].detach()) * k[0, 0].detach() / 6  # of the mean length, by which k is divided
    expected = torch.zeros(6, 4, dtype=torch.float64)
    expected[2] = plain
    assert torch.allclose(gradient[0, 0], expected - along, atol=1e-12)


@pytest.mark.parametrize("name", ["vit_digits", "rpc_symvit_digits", "symvit_digits"])
def test_queries_and_keys_are_those_of_the_model(name):
    model = load_model(name)
    images, _ = load_data("digits", limit=2).tensors()
    images.requires_grad_()
    with watched(model) as seen:
        model(images)
    layers = seen.first(2)
    assert len(layers) == len(model.blocks)
    assert {key.shape[2] for _, key in layers} == {17}
    symmetric = [torch.equal(query, key) for query, key in layers]
    assert all(symmetric) == (name != "vit_digits")
    assert not model.blocks[0].attn.k_norm._forward_hooks
    x = images.detach().clone()
    x[1, :, 9, 30] = 0.123
    assert changed_tokens(x, images.detach(), model)[1].nonzero()[:, 0].tolist() == [4 + 3]
    assert bool(changed_tokens(x, images.detach(), model)[0].all())


def test_models_without_attention_are_refused():
    with pytest.raises(BadInputError, match="q_norm"), watched(nn.Identity()):
        pass


def attack(stage, model, images, labels):
    samples = {}
    protocol = scenario([stage], norm="patches", eps=1, patch="token", corners="grid", policy="last")
    runner = Runner(model, 8, torch.device("cpu"))
    ids = [str(row) for row in range(len(labels))]
    success = task_named("classification").compute.success
    engine = Engine(runner, protocol, success, ids, 0, lambda sample: samples.update({sample.index: sample}))
    engine.run(iter([(list(range(len(labels))), images, labels)]))
    return [samples[row] for row in range(len(labels))]


def test_the_attack_follows_it():
    """It changes the image that is found, costs nothing more, and raises the attention that the patch gets."""
    model = load_model("vit_digits")
    images, labels = load_data("digits", limit=6).tensors()
    plain, fooled = (attack(stage, model, images, labels) for stage in (STAGE, STAGE | {"attention_loss": 100.0}))
    assert [one.forwards for one in plain] == [one.forwards for one in fooled]
    values = []
    for samples in (plain, fooled):
        x = torch.stack([sample.worst for sample in samples])
        with watched(model) as seen:
            model(x.requires_grad_())
        values.append(attention_loss(seen.first(6), changed_tokens(x.detach(), images, model)).mean().item())
    assert values[1] > values[0] + 0.05


def test_the_record_names_it(tmp_path, few_resamples):
    lines = [f"{key} = {value!r}" for key, value in (STAGE | {"attention_loss": 1.0}).items()]
    (tmp_path / "p.toml").write_text(USUAL + "\n[[stage]]\n" + "\n".join(lines) + "\n")
    record = evaluate(
        "vit_digits", load_data("digits", limit=8), protocol=tmp_path / "p.toml", audit=False, batch_size=8
    )
    assert "mim on attention" in set(record.outcomes["broken_by"])
