"""An attack driven by hand ends where a loop written out ends."""

import pytest
import torch
from attack_checks import Wavy, rand

from robustbench_kpca._engine.attack_loop.follow import PlainQuery, WholeBatches, run_to_end
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Query

SHAPE, THREAT = (2, 6, 6), Threat("linf", 0.1)


@pytest.fixture
def setting():
    model = Wavy(SHAPE, dtype=torch.float32).eval()
    x, y = rand(7, 5, *SHAPE, dtype=torch.float32), torch.arange(5) % 3
    return model, x, y, torch.arange(5) + 2**62


@pytest.mark.parametrize("runs", [WholeBatches, lambda model: Runner(model, 5, torch.device("cpu"))])
def test_the_end_is_that_of_a_written_loop(setting, runs):
    model, x, y, keys = setting
    attack = ATTACKS.get("pgd")(steps=4, step_size="0.3 eps", random_start=True)
    query = PlainQuery(runs(model))
    found = run_to_end(attack, query, x, y, THREAT, keys)
    state, losses = attack.start(x, y, THREAT, keys), []
    other = PlainQuery(WholeBatches(model), losses=losses)
    while not bool(state["finished"].all()):
        state = attack.step(state, THREAT, other)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert len(query.losses) == len(losses) == 4
    assert all(torch.equal(mine, own) for mine, own in zip(query.losses, losses, strict=True))


def test_rows_of_rows_keep_their_places(setting):
    model, x, _, _ = setting
    query = PlainQuery(WholeBatches(model), loss=lambda rows: lambda logits: logits[:, 0] * weights[rows])
    weights = torch.arange(1.0, 6.0)
    assert isinstance(query, Query)
    part = query.rows(torch.tensor([True, False, True, True, True])).rows(torch.tensor([False, True, False, True]))
    chosen = x[[2, 4]]
    losses, _ = part.gradient(chosen, lambda logits: logits[:, 1])
    assert torch.equal(losses, model(chosen)[:, 0].detach() * torch.tensor([3.0, 5.0]))
    assert query.losses[0] is losses
    assert part.module() is model
