"""The command `rbk`: run a subcommand; print errors as one line and return an exit code. Help does not import torch."""

import contextlib
import errno
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Any

import typer

from robustbench_kpca.cli import (
    _interruption,
    audit,
    board_index,
    board_plan,
    board_render,
    board_spot_check,
    check,
    clean,
    corrupt,
    demo,
    diagnose,
    doctor,
    evaluate,
    launch,
    listing,
    picture,
    records_card,
    records_curve,
    records_export,
    records_recheck,
    records_rerun,
    records_show,
    records_submit,
    records_view,
    report,
    reproduce,
    status,
    sweep,
    train,
    verify,
)
from robustbench_kpca.cli._examples import with_examples
from robustbench_kpca.early_exit import refuse_early_exit
from robustbench_kpca.errors import BenchmarkError, printable

app = typer.Typer(
    name="rbk",
    help="The adversarial-robustness benchmark for kernel-machine attention.\n\n"
    "Exit codes: 0 success; 1 `check` found a regression, `audit` raised a flag, `verify` found the native attack "
    "weaker, or `records rerun`, `records recheck` or `board spot-check` found a difference; 2 bad input or usage; 3 "
    "an evaluation could not finish, or was interrupted (Ctrl-C, SIGTERM, SIGHUP): the last line says how it goes on.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(asked: bool) -> bool:
    if asked:
        print(f"robustbench-kpca {metadata.version('robustbench-kpca')}")
        raise typer.Exit
    return asked


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _add(group: typer.Typer, name: str, command: Callable[..., Any], prefix: str = "") -> None:
    short = (command.__doc__ or "").strip().splitlines()[0]
    group.command(name, help=with_examples(prefix + name, command), short_help=short)(command)


_add(app, "demo", demo.demo)
_add(app, "eval", evaluate.evaluate)
_add(app, "sweep", sweep.sweep)
_add(app, "audit", audit.audit)
_add(app, "diagnose", diagnose.diagnose)
_add(app, "check", check.check)
_add(app, "verify", verify.verify)
_add(app, "report", report.report)
_add(app, "reproduce", reproduce.reproduce)
_add(app, "train", train.train)
_add(app, "list", listing.listing)
_add(app, "corrupt", corrupt.corrupt)
_add(app, "status", status.status)
_add(app, "clean", clean.clean)
_add(app, "doctor", doctor.doctor)
app.add_typer(picture.app, name="picture")

_records = typer.Typer(help="Print, check, export and view records, and make them again.", rich_markup_mode=None)
_add(_records, "show", records_show.show, "records ")
_add(_records, "curve", records_curve.curve, "records ")
_add(_records, "rerun", records_rerun.rerun, "records ")
_add(_records, "recheck", records_recheck.recheck, "records ")
_add(_records, "view", records_view.view, "records ")
_add(_records, "export", records_export.export, "records ")
_add(_records, "submit", records_submit.submit, "records ")
_add(_records, "card", records_card.card, "records ")
app.add_typer(_records, name="records")

_launch = typer.Typer(
    help="Print what Slurm or Kubernetes needs to run an evaluation or a training.", rich_markup_mode=None
)
_add(_launch, "slurm", launch.slurm, "launch ")
_add(_launch, "kubernetes", launch.kubernetes, "launch ")
app.add_typer(_launch, name="launch")

_board = typer.Typer(
    help="Render a board, list its missing runs, check it at random, or index all boards.", rich_markup_mode=None
)
_add(_board, "render", board_render.render, "board ")
_add(_board, "plan", board_plan.plan, "board ")
_add(_board, "spot-check", board_spot_check.spot_check, "board ")
_add(_board, "index", board_index.index, "board ")
app.add_typer(_board, name="board")


_BAD_PATHS = (errno.ENAMETOOLONG, errno.ELOOP)
_INTERRUPTED = 130  # typer's exit code for Ctrl-C


def run() -> None:
    """Entry point of `rbk` and `robustbench-kpca`."""
    _interruption.listen()
    refuse_early_exit()  # to the end of the process: what runs at exit must not end it with another code
    sys.exit(main(sys.argv[1:]))


def main(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = app(arguments or ["--help"], standalone_mode=False, prog_name="rbk")
    except BenchmarkError as error:
        return _fail(str(error), error.exit_code)
    except typer.Abort:
        code = _INTERRUPTED
    except Exception as error:  # noqa: BLE001
        if isinstance(error, OSError) and error.errno in _BAD_PATHS:
            return _fail(f"{str(error.filename)[:80]!r} cannot be used as a path ({error.strerror})", 2)
        if hasattr(error, "format_message"):  # a usage error of click
            return _fail(f"{error.format_message()} (see: rbk --help)", 2)
        traceback.print_exc()  # a bug: its report needs the traceback
        return _fail("this is a bug of robustbench-kpca: please report the lines above", 3)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or _is_of_the_command_line(error):
            raise
        return _fail(f"code of a model or of data left the program ({type(error).__name__}); nothing was finished", 3)
    if code == _INTERRUPTED:
        return _fail(_interruption.said(arguments), _interruption.CODE)
    return code if isinstance(code, int) else 0


def _is_of_the_command_line(error: BaseException) -> bool:
    """Tell whether the command line left the program: a script for completion was printed, or a pipe was closed."""
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    return str(last.f_globals.get("__name__")).split(".")[0] in ("typer", "click", "rich")


def _fail(message: str, code: int) -> int:
    with contextlib.suppress(OSError):  # after SIGHUP there may be no terminal
        print(f"rbk: error: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code
