"""The command `rbk`: run a subcommand; print errors as one line and return an exit code. Help does not import torch."""

import contextlib
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca._core.early_exit import end_without_threads, refuse_early_exit
from robustbench_kpca._core.errors import DISK_FULL, BadInputError, BenchmarkError, printable, reason_of, shortened
from robustbench_kpca.cli import _interruption
from robustbench_kpca.cli._examples import with_examples

app = typer.Typer(
    name="rbk",
    help="The adversarial-robustness benchmark for kernel-machine attention.\n\n"
    "Exit code 0 means success. 1: `check` found a regression, `audit` raised a flag, `cross-check` or `records "
    "verify` found a difference, or `doctor` found a broken promise. 2: the input or the usage is wrong. 3: an "
    "evaluation could not finish or was interrupted (Ctrl-C, SIGTERM, SIGHUP), and the last line says how to go on.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(requested: bool) -> bool:
    if requested:
        from importlib import metadata

        print(f"robustbench-kpca {metadata.version('robustbench-kpca')}")
        raise typer.Exit
    return requested


@app.callback()
def _common(
    version: Annotated[  # noqa: ARG001 (its callback prints)
        bool, typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True)
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            help="Module or FILE.py that adds attacks, corruptions, metrics, …; its code is run. Also: RBK_PLUGINS.",
            show_default=False,
        ),
    ] = None,
    presets: Annotated[
        Path | None,
        typer.Option(
            help="Folder with your own attacks/, corruptions/ and leaderboards/, searched before the bundled ones. "
            "Also: RBK_PRESETS.",
            show_default=False,
        ),
    ] = None,
) -> None:
    from robustbench_kpca._core import plugins

    if presets is not None:
        if not presets.is_dir():
            raise BadInputError(f"--presets {presets} is not a folder", fix="name one that has attacks/ or the like")
        from robustbench_kpca.protocols.presets import ENVIRONMENT_VARIABLE

        os.environ[ENVIRONMENT_VARIABLE] = str(presets)

    for name in plugin or ():
        plugins.use(name)


# commands whose file and function have another name
_FILES = {"eval": "evaluate", "list": "listing", "break": "break_row"}


def _add(group: typer.Typer, names: str, room: str = "") -> None:
    """Add the commands of these names, each the function of its name in a file of its own."""
    for name in names.split():
        function = _FILES.get(name, name).replace("-", "_")
        command = getattr(import_module(f"robustbench_kpca.cli.{room}{function}"), function)
        short = (command.__doc__ or "").strip().splitlines()[0]
        help_text = with_examples(f"{room.replace('_', ' ')}{name}", command)
        group.command(name, help=help_text, short_help=short)(command)


_add(app, "eval audit diagnose check cross-check doctor reproduce train list")

_records = typer.Typer(help="Print, verify and export records.", rich_markup_mode=None)
_add(_records, "show verify status export", "records_")
app.add_typer(_records, name="records")

_images = typer.Typer(help="Draw pictures.", rich_markup_mode=None)
_add(_images, "draw", "images_")
app.add_typer(_images, name="images")

_board = typer.Typer(help="Render boards and pages, and list missing runs.", rich_markup_mode=None)
_add(_board, "demo enter render report plan break index", "board_")
app.add_typer(_board, name="board")


_INTERRUPTED = 130  # typer's exit code for Ctrl-C
_NOBODY_READS = 1  # typer's exit code for a closed pipe


def run() -> None:
    """Entry point of `rbk` and `robustbench-kpca`."""
    _interruption.listen()
    refuse_early_exit()  # to the end of the process: what runs at exit must not end it with another code
    code = main(sys.argv[1:])
    _give_up_what_cannot_be_written()
    _interruption.end_with(code)
    end_without_threads(code)
    sys.exit(code)


def _give_up_what_cannot_be_written() -> None:
    """Let Python not complain, as it ends, of output that cannot be written: that was shown, or nobody reads it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = app(arguments or ["--help"], standalone_mode=False, prog_name="rbk")
        sys.stdout.flush()
    except BenchmarkError as error:
        return _fail(str(error), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except BrokenPipeError:
        return _NOBODY_READS
    except OSError as error:
        return _fail(*_of_the_system(error))
    except Exception as error:  # noqa: BLE001
        if hasattr(error, "format_message"):  # a usage error of typer
            from robustbench_kpca.cli._usage import usage_error

            return _fail(str(usage_error(error, arguments[0])), 2)
        if not _interruption.arrived():
            return _fail(_bug(), 3)
        code = _INTERRUPTED
    except BaseException as error:
        if _is_of_the_command_line(error):
            raise
        return _fail(f"code of a model or of data left the program ({type(error).__name__}); nothing was finished", 3)
    if code == _INTERRUPTED:
        return _fail(_interruption.message(arguments), _interruption.CODE)
    return code if isinstance(code, int) else 0


def _of_the_system(error: OSError) -> tuple[str, int]:
    """Return message and exit code of an error that no room foresaw: of a file or, where none is named, the output."""
    named = isinstance(error.filename, str | os.PathLike)
    what = str(error.filename) if named else "the output"
    if error.errno in DISK_FULL:
        return f"{what} cannot be written ({reason_of(error)}); free disk space and run again", 3
    if named:
        return f"{shortened(what)} cannot be used ({reason_of(error)}); check the path", 2
    return _bug(), 3


def _bug() -> str:
    traceback.print_exc()  # its report needs the traceback
    return "this is a bug of robustbench-kpca: please report the lines above"


def _is_of_the_command_line(error: BaseException) -> bool:
    """Tell whether the command line left the program: a script for completion was printed, or a pipe was closed."""
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    return str(last.f_globals.get("__name__")).split(".")[0] in ("typer", "click", "rich")


_LONGEST = 3 * 240
"""Characters of an error: three lines of a wide terminal."""


def _fail(message: str, code: int) -> int:
    line = shortened(printable(" ".join(message.split())), _LONGEST)
    with contextlib.suppress(OSError):  # after SIGHUP there may be no terminal
        print(f"rbk: error: {line}", file=sys.stderr)
    return code
