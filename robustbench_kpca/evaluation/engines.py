"""The engines by name. Each makes the same outcomes, byte for byte."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from robustbench_kpca._engine.inference.loader import cores_here
from robustbench_kpca.evaluation.backend import Backend
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.processes import Processes
from robustbench_kpca.evaluation.ray_cluster import RayCluster
from robustbench_kpca.evaluation.share import share_of


@contextmanager
def engine_for(options: RunOptions) -> Iterator[Backend | None]:
    """Start the engine that the options name, and end it; None: this process evaluates itself.

    Raises:
        BadInputError: the engine is not installed, or cannot be reached.

    """
    kind, address = options.engine
    on_gpu = (options.device or "").startswith("cuda")
    if options.part is not None:
        with share_of(options.part) as share:
            yield share
    elif kind == "serial":
        yield None
    elif kind == "processes":
        with Processes(options.processes or _of_this_machine(on_gpu=on_gpu)) as processes:
            yield processes
    else:
        with RayCluster(options.processes, address, on_gpu=on_gpu) as cluster:
            yield cluster


def _of_this_machine(*, on_gpu: bool) -> int:
    return torch.cuda.device_count() if on_gpu else cores_here()
