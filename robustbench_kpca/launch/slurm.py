"""An sbatch script (https://slurm.schedmd.com/sbatch.html) for an evaluation or a training on Slurm. No torch."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.launch.request import Command, Machines

LEAD = 90
"""Seconds before the limit of time at which a job is told to stop: `rbk` needs at most 30."""
RESTARTS = 100
"""A job puts itself back into the queue so often at most."""
_DIRECTIVE = re.compile(r"[a-z][a-z-]*(=[A-Za-z0-9_.,:/+@%=\[\]-]+)?")
_MEMORY = re.compile(r"[1-9]\d*[KMGT]?")
_MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+/-]*")
_OURS = ("job-name", "nodes", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "mem", "time", "signal", "requeue",
         "no-requeue", "open-mode", "no-kill", "output")  # fmt: skip


@dataclass(frozen=True)
class Site:
    """What differs from one Slurm to another.

    Attributes:
        time: limit of time of one run of the job.
        directives: further lines `#SBATCH --…`, without the hyphens, such as "partition=gpu" or "exclusive".
        modules: environment modules to load.
        venv: folder of the Python environment, the same on all nodes; empty: as it is where sbatch is called.

    """

    time: str
    directives: Sequence[str] = ()
    modules: Sequence[str] = ()
    venv: str = ""

    def check(self) -> None:
        """Refuse what cannot stand in a script.

        Raises:
            BadInputError: a directive that is no directive or one of ours, a module that is no name, a relative folder.

        """
        for text in self.directives:
            if not _DIRECTIVE.fullmatch(text):
                raise BadInputError(f"--sbatch {text[:80]!r}", expected="KEY or KEY=VALUE, such as partition=gpu")
            if text.partition("=")[0] in _OURS:
                raise BadInputError(f"--sbatch {text}", fix="rbk launch writes this line itself: use its own option")
        for text in self.modules:
            if not _MODULE.fullmatch(text):
                raise BadInputError(f"--module {text[:80]!r}", expected="the name of a module, such as cuda/12.4")
        if self.venv and (not self.venv.startswith("/") or not self.venv.isprintable()):
            raise BadInputError(f"--venv {self.venv[:80]!r}", expected="a full path, the same on all nodes")


def script(command: Command, machines: Machines, site: Site) -> str:
    """Return the script.

    With Ray, the first node has the head and runs `rbk eval`, which gives shards to all nodes. When the time is nearly
    over, or the job is pre-empted, `rbk` is told to stop; the job goes back into the queue and goes on there.

    Raises:
        BadInputError: what cannot stand in a script.

    """
    site.check()
    machines.require_few(command.engine)
    if machines.memory and not _MEMORY.fullmatch(machines.memory):
        raise BadInputError(f"--memory {machines.memory[:40]!r}", expected="a number with K, M, G or T, such as 64G")
    return _template(f"{command.engine}.sbatch").render(
        command=command, machines=machines, site=site, lead=LEAD, restarts=RESTARTS
    )


@lru_cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("robustbench_kpca.launch"), autoescape=False, undefined=StrictUndefined,  # noqa: S701 (a
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,  # shell script: quoted by shlex instead)
    )  # fmt: skip
    environment.filters["quote"] = shlex.quote
    return environment.get_template(name)
