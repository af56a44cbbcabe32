"""The engine `torchrun`: the first process gives out shards, to the others that torchrun started and to one of its own.

The first rank listens; it tells the others where, and a secret, through a process group (gloo). From then on they are
workers at the other end of a connection, as processes of this machine are at that of a pipe.
"""

import os
import secrets
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Client, Listener
from typing import Any

from torch import distributed

from robustbench_kpca.errors import BadInputError, EvaluationError
from robustbench_kpca.evaluation.bench import Stopped
from robustbench_kpca.evaluation.processes import Piped, Processes
from robustbench_kpca.evaluation.shard_run import ShardRun
from robustbench_kpca.evaluation.sharded import THREADS
from robustbench_kpca.evaluation.worker import serve

_TOGETHER = timedelta(minutes=10)  # in which all ranks must have started


def rank_under_torchrun() -> int | None:
    """Return which of the processes of torchrun this one is; None: torchrun did not start it."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else None


def follow() -> None:
    """Be another rank than the first: make shards until that one is done."""
    host, port, key = _agree(None)
    with Client((host, port), authkey=key) as pipe, suppress(Stopped):
        pipe.send(rank_under_torchrun())
        serve(pipe, int(os.environ["LOCAL_RANK"]), THREADS)


class Ranks(Processes):
    """A `Backend`: the first rank of torchrun, which makes shards in one process beside it, and all other ranks.

    torchrun ends all ranks when one dies, so a rank that is lost ends the run; finished shards are kept.
    """

    several_machines = True

    def __init__(self) -> None:
        if rank_under_torchrun() != 0:
            raise BadInputError("executor 'torchrun'", expected="torchrun -m robustbench_kpca eval ...")
        super().__init__(int(os.environ["WORLD_SIZE"]))

    def __enter__(self) -> "Ranks":
        super().__enter__()
        alone = os.environ["WORLD_SIZE"] == os.environ["LOCAL_WORLD_SIZE"]
        host, key = "127.0.0.1" if alone else os.environ["MASTER_ADDR"], secrets.token_bytes(32)
        with Listener((host, 0), backlog=self.count, authkey=key) as listener:
            _agree((host, listener.address[1], key))
            for _ in range(self.count - 1):
                pipe = listener.accept()
                self.workers.append(Piped(pipe=pipe, rank=pipe.recv()))
        return self

    def lose(self, worker: Piped, how: str, run: ShardRun) -> None:
        """End the run where a rank is gone; the own process is started again."""
        if worker.process is None:
            raise EvaluationError(
                f"rank {worker.rank} of {self.count} {how}",
                fix="finished shards are kept: give the same command again",
            )
        super().lose(worker, how, run)


def _agree(offer: tuple[str, int, bytes] | None) -> tuple[str, int, bytes]:
    """Return what the first rank offers, in every rank.

    Raises:
        EvaluationError: they have not met in time.

    """
    try:
        distributed.init_process_group("gloo", timeout=_TOGETHER)
        box: list[Any] = [offer]
        distributed.broadcast_object_list(box, src=0)
        distributed.destroy_process_group()
    except RuntimeError as error:
        raise EvaluationError(
            f"the {os.environ['WORLD_SIZE']} ranks of torchrun have not met ({' '.join(str(error).split())[:160]})",
            fix="start all of them; a command that is to run by itself needs --executor serial",
        ) from None
    host, port, key = box[0]
    return host, port, key
