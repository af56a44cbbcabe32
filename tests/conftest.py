"""One thread for each process that tests, and what many tests share.

With RBK_TYPECHECK=1 shapes and types are checked on every call.
"""

import os
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch; also for the processes that tests start
if os.environ.get("RBK_TYPECHECK") == "1":
    from jaxtyping import install_import_hook

    install_import_hook("robustbench_kpca", "typechecker.check")

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import nn

if settings().deadline is not None:  # no test states how fast an example is; some continuous integrations set none
    settings.register_profile("without-deadline", deadline=None)
    settings.load_profile("without-deadline")

torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    """Skip, and say so, what needs a CUDA device where there is none, and wrong types where these are checked."""
    reasons = {}
    if not torch.cuda.is_available():
        reasons["cuda"] = "needs a CUDA device"
    if os.environ.get("RBK_TYPECHECK") == "1":
        reasons["untyped"] = "passes what annotations forbid"
    for item in items:
        for mark, reason in reasons.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def real_data(request):
    """Return what lies at a path in the folder RBK_DATA; where nothing does, skip. The summary counts these tests."""

    def path(name: str) -> Path:
        request.node.user_properties.append(("real data", name))
        found = Path(os.environ.get("RBK_DATA", "nowhere"), name)
        if not found.exists():
            pytest.skip(f"RBK_DATA has no {name}")
        return found

    return path


def pytest_terminal_summary(terminalreporter):
    """Say how many tests ran on real photographs, texts and networks."""

    def count(*kinds: str) -> int:
        reports = [report for kind in kinds for report in terminalreporter.stats.get(kind, [])]
        return sum("real data" in dict(report.user_properties) for report in reports)

    ran, skipped, folder = count("passed", "failed"), count("skipped"), os.environ.get("RBK_DATA", "not set")
    if ran or skipped:
        terminalreporter.write_line(f"real data: {ran} tests ran on it, {skipped} were skipped (RBK_DATA: {folder})")


@pytest.fixture
def types_unchecked():
    """For runs of whole commands, which last minutes: types are checked where their parts are tested."""
    from jaxtyping import config

    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


class Linear(nn.Module):
    """Two classes, logits (0, w . x + b): everything about attacking it is known in closed form."""

    def __init__(self, weight: torch.Tensor, bias: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.flatten())
        self.bias = nn.Parameter(torch.tensor(bias, dtype=weight.dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x.flatten(1) @ self.weight + self.bias
        return torch.stack([torch.zeros_like(score), score], 1)


@pytest.fixture
def linear() -> type[Linear]:
    return Linear


@pytest.fixture(autouse=True)
def global_generators_stay_untouched():
    """No test may leave numpy's or torch's global generator moved by the package."""
    torch.manual_seed(1234)
    np.random.seed(1234)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    yield
    after = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    assert torch.equal(before[0], after[0]), "torch's global generator was used"
    assert np.array_equal(before[1], after[1]), "numpy's global generator was used"


@pytest.fixture
def fork():
    """Let a test draw from torch's global generator (as building an untrained model does) and put it back."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="module")
def few_resamples():
    """Intervals of a hundred resamples where no interval is looked at: two thousand take a second a clean record."""
    from robustbench_kpca.metrics.shared import metric

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metric, "bootstraps", partial(metric.bootstraps, resamples=100))
        yield


@pytest.fixture
def tiny():
    """Audits whose attacks take two steps, where the machinery is tested and not the verdict."""
    from stand_ins import short_audits

    with short_audits():
        yield


@pytest.fixture(scope="session")
def frost_folder() -> str:
    """The original photographs of frost, which come with imagecorruptions."""
    from patched import source

    return str(source().with_name("frost"))


@pytest.fixture
def metrics_of_a_test(monkeypatch):
    """Forget the metrics that a test adds."""
    from robustbench_kpca.metrics import METRICS

    monkeypatch.setattr(METRICS, "added", dict(METRICS.added))
