"""The command that remakes a record: written from the requests, and read back.

One table lists the options in both directions, so that what is written can be read. `rbk eval` understands the same
words.
"""

import os
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import assignment, parse_assignments
from robustbench_kpca.evaluation.options import OPTIONS, RunOptions, run_options
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
from robustbench_kpca.protocols import presets
from robustbench_kpca.protocols.scenario import Override
from robustbench_kpca.records.audit import Level

START = ("rbk", "eval")
MOST = 2_000
"""Words of a command."""
_MODEL, _DATA = (
    {name: f"--{name.replace('_', '-')}" for name in names.split()}
    for names in ("model checkpoint name", "data split limit against size crop classes")
)
_RUN = {name: option.flags[0] for name, option in OPTIONS.items() if option.recorded}
_KINDS = {"limit": int, "size": int, "crop": float, "classes": int, "seed": int, "batch_size": int}
_FLAGS = ("tf32",)


@dataclass(frozen=True)
class Command:
    """What one record was asked with.

    Attributes:
        model: the model.
        data: the data.
        protocol: name or TOML file.
        overrides: fields replaced in the protocol.
        audit: how thoroughly the model is audited; None: as the number of samples suggests.
        options: of the run; folder, workers and `fresh` are no part of the command, since they change no outcome.
        presets: folder of the user's own protocols.
    """

    model: ModelRequest
    data: DataRequest
    protocol: str
    overrides: Mapping[str, Override] = field(default_factory=dict)
    options: RunOptions = field(default_factory=RunOptions)
    audit: Level | Literal["none"] | None = None
    presets: str | None = field(default_factory=lambda: os.environ.get(presets.ENVIRONMENT_VARIABLE))

    def words(self) -> tuple[str, ...]:
        """Return the command as a list of words; what has its default is left out."""
        presets = ["--presets", self.presets] if self.presets else []
        subject = (*_words(self.model, _MODEL, ModelRequest("")), *_words(self.data, _DATA, DataRequest("")))
        written = [START[0], *presets, START[1], *subject]
        written += _words(self.options, _RUN, RunOptions())  # what has its default is left out, but for the seed
        settings = {f"model.{key}": value for key, value in self.model.settings.items()} | dict(self.overrides)
        written += ["--protocol", str(self.protocol)]
        written += [word for key, value in settings.items() for word in ("--set", assignment(key, value))]
        written += [] if self.audit is None else ["--audit", self.audit]
        return tuple(written)

    def at_batch_size(self, size: int) -> "Command":
        """Return the command with the batch size that was used, whatever the default will be."""
        return replace(self, options=replace(self.options, batch_size=size))


def _words(request: object, table: Mapping[str, str], usual: object) -> list[str]:
    words: list[str] = []
    for name, option in table.items():
        value = getattr(request, name)
        if name == "seed" or value != getattr(usual, name):
            values = value if isinstance(value, tuple) else (value,)
            words += [option] if value is True else [word for each in values for word in (option, str(each))]
    return words


def parse(words: Sequence[str]) -> Command:
    """Read a command that `Command.words` wrote.

    Raises:
        BadInputError: it is no such command.
    """
    presets = None
    if tuple(words[:2]) == (START[0], "--presets") and len(words) > 2:
        presets, words = words[2], [START[0], *words[3:]]
    if tuple(words[: len(START)]) != START:
        raise BadInputError("the record does not say which command made it", fix="evaluate again with rbk eval")
    if len(words) > MOST:  # the parser's time is quadratic
        raise BadInputError(f"the command of the record has {len(words):,} words", expected=f"at most {MOST:,}")
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, option in (_MODEL | _DATA | _RUN).items():
        if name in _FLAGS:
            parser.add_argument(option, dest=name, action="store_true")
        elif name != "allow":
            parser.add_argument(option, dest=name, type=_KINDS.get(name, str))
    parser.add_argument("--protocol")
    parser.add_argument("--audit", choices=("full", "quick", "none"))
    for option in ("--set", "--allow"):
        parser.add_argument(option, action="append", default=[])
    try:
        parsed, unknown = parser.parse_known_args(list(words[len(START) :]))
    except ArgumentError as error:
        raise BadInputError(
            f"the command of the record cannot be read (at {error.argument_name})", fix="evaluate again"
        ) from None
    if unknown or None in (parsed.model, parsed.data, parsed.protocol):
        raise BadInputError(
            f"the command of the record cannot be read ({' '.join(unknown) or 'a word is missing'})",
            fix="upgrade robustbench-kpca, or evaluate again",
        )
    return _command(parsed, presets)


def _command(parsed: Namespace, presets: str | None) -> Command:
    settings = parse_assignments(parsed.set)
    options = {key.removeprefix("model."): value for key, value in settings.items() if key.startswith("model.")}
    return Command(
        ModelRequest.of(**_stated(parsed, _MODEL), options=options),
        DataRequest(**_stated(parsed, _DATA)),
        parsed.protocol,
        {key: value for key, value in settings.items() if not key.startswith("model.")},
        options=run_options(_stated(parsed, _RUN))[0],
        audit=parsed.audit,
        presets=presets,
    )


def _stated(parsed: Namespace, table: Mapping[str, str]) -> dict[str, Any]:
    return {name: getattr(parsed, name) for name in table if getattr(parsed, name) is not None}


def call(model: str, data: str, protocol: str, **arguments: Any) -> tuple[str]:
    """Return a call from Python in short: names in place of objects, and the arguments that change outcomes."""
    listed = "".join(f", {name}={value!r}" for name, value in arguments.items() if value not in (None, ()))
    return (f"evaluate({model}, {data}, protocol={str(protocol)!r}{listed})",)
