"""What is to be launched: a command of `rbk`, and the machines that it gets. Everything is checked here. No torch."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.evaluation.options import OPTIONS

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
"""A label of RFC 1123, section 2.1: what Kubernetes takes as a name, of at most 63 characters."""
_TIME = re.compile(r"(\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d|\d+-\d+:\d\d:\d\d)")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = {"--executor", "--processes", "--nproc-per-node"}


class Engine(StrEnum):
    """What spreads the work over the machines."""

    processes = "processes"
    ray = "ray"
    torchrun = "torchrun"


@dataclass(frozen=True)
class Command:
    """A command line of `rbk` as a list of words; it is never joined without quoting.

    Attributes:
        words: such as ("eval", "-m", "vit_digits", "-p", "clean").
        engine: what spreads it over the machines. "processes" is for one machine.

    """

    words: tuple[str, ...]
    engine: Engine

    @classmethod
    def of(cls, words: Sequence[str], engine: Engine | None, nodes: int) -> "Command":
        """Choose the engine where none is asked for: torchrun for training, else processes or, beyond one node, Ray.

        Raises:
            BadInputError: a command that cannot be launched, an engine that cannot run it, or an option that
                `rbk launch` adds itself.

        """
        verb = words[0] if words else ""
        if verb not in ("eval", "train"):
            raise BadInputError(
                f"'{verb}' cannot be launched" if verb else "no command after --",
                expected="eval or train with its options, such as: -- eval -m vit_digits -p clean -o runs",
            )
        for word in words:
            if any(not letter.isprintable() and letter not in "\n\t" for letter in word):
                raise BadInputError(f"{word[:40]!r} in the command", expected="printable text")
            if word.partition("=")[0] == "--keep-adversarial":
                raise BadInputError(f"{word} in the command", expected="no images to keep: that needs one process")
            if word in ("--fresh", "--no-resume"):
                raise BadInputError(
                    f"{word} in the command",
                    expected="a job that goes on where it stopped",
                    fix="leave it out, or name another folder",
                )
            if word.partition("=")[0] in _OURS:
                raise BadInputError(f"{word} in the command", fix="leave it out: rbk launch chooses it")
        if engine is None:
            for_eval = Engine.processes if nodes == 1 else Engine.ray
            engine = Engine.torchrun if verb == "train" else for_eval
        if (verb == "train") != (engine is Engine.torchrun):
            expected = "torchrun" if verb == "train" else "processes or ray"
            raise BadInputError(f"--engine {engine} for {verb}", expected=expected)
        if engine is Engine.processes and nodes > 1:
            raise BadInputError(f"--engine processes with {nodes} nodes", expected="ray")
        if verb == "train" and "--resume" not in words:
            words = (*words, "--resume")  # a job that is started again goes on
        return cls(tuple(words), engine)

    def line(self, *added: str) -> str:
        """Return the command as a shell reads it, with the options of the engine."""
        return shlex.join([*self.words, *added])


@dataclass(frozen=True)
class Machines:
    """What the job gets.

    Attributes:
        name: of the job.
        nodes: number of machines.
        gpus: of each.
        cpus: cores of each.
        memory: of each, such as "64G"; empty: whatever is the default there.
        environment: variables that are set.

    """

    name: str
    nodes: int = 1
    gpus: int = 1
    cpus: int = 8
    memory: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        """Processes of a machine: one a GPU; without GPUs one a core."""
        return self.gpus or self.cpus

    @property
    def all_processes(self) -> int:
        """Processes of all machines: Ray waits for those whose machine is not there yet."""
        return self.nodes * self.processes

    def require_few(self, engine: Engine) -> None:
        """Refuse more processes than `rbk eval --processes` takes.

        Raises:
            BadInputError: too many, with an engine that is told how many.

        """
        most = OPTIONS["processes"].most or math.inf
        if engine is not Engine.torchrun and self.all_processes > most:
            raise BadInputError(
                f"{self.all_processes:,} processes on {self.nodes} nodes", expected=f"at most {most:,}",
                fix="ask for fewer nodes, or fewer cores or GPUs of each",
            )  # fmt: skip


def parse_time(text: str) -> str:
    """Check a limit of time as sbatch takes it: minutes, M:SS, H:MM:SS, D-H, D-H:MM or D-H:MM:SS.

    Raises:
        BadInputError: another form.

    """
    if not _TIME.fullmatch(text) or not any(int(part) for part in re.findall(r"\d+", text)):
        raise BadInputError(f"--time {text}", expected="a limit such as 24:00:00, 90 (minutes) or 2-12:00:00")
    return text


def parse_name(option: str, text: str, kind: re.Pattern[str] = _NAME, most: int = 64) -> str:
    """Check a name that becomes part of a script.

    Raises:
        BadInputError: characters that have a meaning elsewhere, or too many of them.

    """
    if not kind.fullmatch(text) or len(text) > most:
        allowed = "small letters, digits and inner hyphens" if kind is LABEL else "letters, digits, dots and hyphens"
        raise BadInputError(f"{option} {text[:80]!r}", expected=f"{allowed}, at most {most} characters")
    return text


def parse_environment(texts: Sequence[str]) -> dict[str, str]:
    """Read KEY=VALUE pairs; a value may hold anything printable.

    Raises:
        BadInputError: no such pair.

    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not _VARIABLE.fullmatch(name) or not value.isprintable() or name in found:
            raise BadInputError(f"--env {text[:80]!r}", expected="KEY=VALUE in one line, each key once")
        found[name] = value
    return found
