"""The engine `torchrun`: the first process gives out shards, to the others that torchrun started and to one of its own.

The first rank listens; it tells the others where, and a secret, through a process group (gloo). From then on they are
workers at the other end of a connection, as processes of this machine are at that of a pipe.
"""

import os
import secrets
from contextlib import suppress
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from torch import distributed

from robustbench_kpca.errors import BadInputError, EvaluationError, reason_of
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
    """Be another rank than the first: make shards until that one is done.

    Raises:
        EvaluationError: the first rank cannot be reached.

    """
    host, port, key = _agree(None)
    try:
        pipe = Client((host, port), authkey=key)
        pipe.send(rank_under_torchrun())
    except (OSError, EOFError, AuthenticationError) as error:
        raise EvaluationError(
            f"rank {rank_under_torchrun()} cannot reach the first one at {host}:{port} ({reason_of(error)})",
            fix="let the machines reach each other at any port",
        ) from None
    with pipe, suppress(Stopped):
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
        here = host if alone else ""  # all addresses: on its own machine a host name often means 127.0.1.1
        with Listener((here, 0), backlog=self.count, authkey=key) as listener:
            _agree((host, listener.address[1], key))
            while len(self.workers) < self.count - 1:
                self.workers += _accepted(listener)
        return self

    def discharge(self, worker: Piped) -> None:
        """End the own process, which is started again; a rank goes on, since nobody could start it again."""
        if worker.process is not None:
            super().discharge(worker)

    def lose(self, worker: Piped, how: str, run: ShardRun) -> None:
        """End the run where a rank is gone; the own process is started again."""
        if worker.process is None:
            raise EvaluationError(
                f"rank {worker.rank} of {self.count} {how}",
                fix="finished shards are kept: give the same command again",
            )
        super().lose(worker, how, run)


def _accepted(listener: Listener) -> list[Piped]:
    """Wait for a connection; return the rank at its other end, or nothing where that is no rank, such as a scanner."""
    try:
        pipe: Connection = listener.accept()
        return [Piped(pipe=pipe, rank=pipe.recv())]
    except (ConnectionError, EOFError, AuthenticationError):
        return []


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
            f"the {os.environ['WORLD_SIZE']} ranks of torchrun have not met ({reason_of(error)})",
            fix="start all of them; a command that is to run by itself needs --executor serial",
        ) from None
    host, port, key = box[0]
    return host, port, key
