"""Options of a run that do not depend on the models, data or protocols; here and nowhere else. No torch.

The fields of `RunOptions` are the keywords of `evaluate`, the options of `rbk eval`, and words of a record's command.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from robustbench_kpca._core.errors import BadInputError

EXECUTORS = ("serial", "processes", "ray")
"""Who evaluates: this process, several of this machine, or those of a Ray cluster."""
COMPILED = ("default", "reduce-overhead", "max-autotune")
"""Modes of `torch.compile`."""


@dataclass(frozen=True)
class Option:
    """A field of `RunOptions` on the command line.

    Attributes:
        help: what it is; an image stands for any sample.
        flags: its names; none: that of the field.
        least: smallest number.
        most: largest number.
        recorded: whether it belongs to the command in a record: it can change outcomes.
    """

    help: str
    flags: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    recorded: bool = False


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that do not depend on model, data or protocol; the help of each says what it is.

    With a folder, an interrupted run can be resumed, and a finished record of the same specification is used again.
    Batch size, `compile` and `tf32` are part of the record, because they change the last bits of logits. Workers,
    processes, executor and part change no result.

    Raises:
        BadInputError: a number is not in its range; there is no such executor or mode, or the executor takes no number
            of processes; or images are to be kept without a folder.
    """

    out: Annotated[Path | None, Option("Folder for the records.", ("--out", "-o"))] = None
    allow: Annotated[
        tuple[str, ...],
        Option("Name of a preflight check that may fail, such as batch; it becomes a flag. Repeatable.", recorded=True),
    ] = ()
    keep_adversarial: Annotated[
        int,
        Option("Number of samples whose adversarial images are kept beside the record of an attack; 0: none.", least=0),
    ] = 0
    fresh: Annotated[bool, Option("Evaluate and audit again even if records exist.", ("--fresh",))] = False
    seed: Annotated[int, Option("Seed of all randomness, an integer.", least=0, most=2**63 - 1, recorded=True)] = 0
    batch_size: Annotated[
        int | None,
        Option(
            "Batch size of the model, in images; part of the record. By default 64, or fewer if per-pixel logits "
            "exceed 256 MiB; on a GPU up to 4096 for small models, as its memory allows.",
            least=1,
            most=65_536,
            recorded=True,
        ),
    ] = None
    frost_folder: Annotated[
        Path | None,
        Option(
            "Folder of the original frost images (frost1.png to frost5.jpg); by default frost images are generated.",
            ("--frost",),
            recorded=True,
        ),
    ] = None
    workers: Annotated[
        int | None,
        Option(
            "Number of processes that load and corrupt images while the model runs; 0: this process. By default as "
            "many as the model needs in order not to wait, as measured on the first batches.",
            least=0,
        ),
    ] = None
    processes: Annotated[
        int | None,
        Option(
            "Number of processes that evaluate parts of the data at once, with one thread each (docs/run_at_scale.md). "
            "By default 1; with --executor processes one for each core or CUDA device, with ray one for each core or "
            "GPU of the cluster. The outcomes equal those of one process with one thread.",
            least=1,
            most=1024,
        ),
    ] = None
    executor: Annotated[
        str | None,
        Option(
            "Who evaluates: serial (this process), processes (of this machine), ray (a cluster of Ray that is started "
            "for the run) or ray:ADDRESS (an existing one, such as ray:auto; docs/run_at_scale.md). By default "
            "processes if --processes is above 1, else serial."
        ),
    ] = None
    part: Annotated[
        str | None,
        Option(
            "Make a part of the work, such as 3/16. Start one process for each part with the same command and folder. "
            "The last process makes the record (docs/run_at_scale.md)."
        ),
    ] = None
    device: Annotated[
        str | None, Option("Device, such as cpu or cuda; by default cuda if available.", recorded=True)
    ] = None
    compile: Annotated[
        str | None,
        Option(
            "Compile models with torch.compile in this mode: default, reduce-overhead (CUDA graphs) or max-autotune. "
            "The mode changes the last bits of logits and is part of the record.",
            recorded=True,
        ),
    ] = None
    tf32: Annotated[
        bool,
        Option("Allow TF32 products on a CUDA device: faster, less exact, and recorded.", ("--tf32",), recorded=True),
    ] = False

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            _require_range(name, option, getattr(self, name))
        if self.compile is not None and self.compile not in COMPILED:
            raise BadInputError(f"compile = '{self.compile}'", expected=" or ".join(COMPILED))
        kind, address = self.engine
        if kind not in EXECUTORS or (address and kind != "ray"):
            raise BadInputError(f"executor '{self.executor}'", expected="serial, processes, ray or ray:ADDRESS")
        if kind == "serial" and (self.processes or 1) > 1:
            raise BadInputError(
                f"{self.processes} processes with executor 'serial'",
                expected="executor processes or ray",
                fix="leave the executor out",
            )
        self._require_part()
        if self.keep_adversarial and self.out is None:
            raise BadInputError(
                f"images of {self.keep_adversarial} samples to keep", expected="a number, and a folder for records"
            )

    def _require_part(self) -> None:
        most = OPTIONS["processes"].most or 1
        number, of = self.share
        if not 1 <= number <= of <= most:
            raise BadInputError(f"part '{self.part}'", expected="a number of a number, such as 3/16")
        if self.part is not None and (self.executor or self.processes or self.fresh or self.out is None):
            raise BadInputError(
                f"part {self.part} with executor, processes or fresh, or without out",
                expected="parts that share a folder, each one process",
            )

    @property
    def share(self) -> tuple[int, int]:
        """The number of the part, and of how many; (0, 0) if it is not written so."""
        number, _, of = (self.part or "1/1").partition("/")
        return (int(number), int(of)) if number.isdecimal() and of.isdecimal() else (0, 0)

    @property
    def engine(self) -> tuple[str, str]:
        """The executor that is meant, and the address of its cluster, if one is given."""
        if self.executor is None:
            return "processes" if (self.processes or 1) > 1 else "serial", ""
        kind, _, address = self.executor.partition(":")
        return kind, address


_HINTS = {name: get_args(hint) for name, hint in get_type_hints(RunOptions, include_extras=True).items()}
TYPES = {name: hint[0] for name, hint in _HINTS.items()}
"""The type of each field on the command line."""
OPTIONS = {
    name: replace(option, flags=option.flags or (f"--{name.replace('_', '-')}",))
    for name, (_, option) in _HINTS.items()
}
"""The option of each field, with its names on the command line."""
DEFAULTS = {field.name: field.default for field in dataclasses.fields(RunOptions)}


def run_options(settings: Mapping[str, Any]) -> tuple[RunOptions, dict[str, Any]]:
    """Split keywords into the options of a run and the others; folders may be texts, and `allow` a list.

    Raises:
        BadInputError: see `RunOptions`.
    """
    chosen = {name: value for name, value in settings.items() if name in OPTIONS}
    chosen |= {name: Path(chosen[name]) for name in ("out", "frost_folder") if chosen.get(name) is not None}
    chosen["allow"] = tuple(chosen.get("allow", ()))
    return RunOptions(**chosen), {name: value for name, value in settings.items() if name not in OPTIONS}


def _require_range(name: str, option: Option, value: Any) -> None:
    """Refuse a number that is none, or out of the range of its field."""
    least, most = option.least, math.inf if option.most is None else option.most
    if least is None or (value is None and DEFAULTS[name] is None):
        return
    if type(value) is not int or not least <= value <= most:
        expected = f"an integer of at least {least}" if most == math.inf else f"an integer from {least} to {most:,}"
        raise BadInputError(f"{name} = {value!r}", expected=expected)
