"""`rbk reproduce`: run the tables and figures of a paper, and write their pages."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import require_file, require_writable
from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Audited, Json, Quiet, with_run_options

if TYPE_CHECKING:
    from robustbench_kpca.evaluation.options import RunOptions
    from robustbench_kpca.study.reproduction.pack import Item, ScaleName
    from robustbench_kpca.study.reproduction.roles import Roles
    from robustbench_kpca.study.reproduction.steps import Planned

_OF_RUN = ("processes", "executor", "device")
_OF_A_PACK = ("allow", "batch_size", *_OF_RUN)
_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


@with_run_options(*_OF_A_PACK)
def reproduce(
    pack: Annotated[str, typer.Argument(help="Pack: a name of `rbk list packs`, or a folder with a pack.toml.")],
    table: Annotated[list[str], typer.Option(help="Only this table, such as 2. Repeatable.")] = [],  # noqa: B006
    figure: Annotated[list[str], typer.Option(help="Only this figure, such as 1. Repeatable.")] = [],  # noqa: B006
    item: Annotated[list[str], typer.Option(help="Only this item, such as table-2. Repeatable.")] = [],  # noqa: B006
    data: Annotated[
        list[str],
        typer.Option(help="NAME:FOLDER: folder of a data set. With data, the scale is that of the paper. Repeatable."),
    ] = [],  # noqa: B006
    checkpoint: Annotated[list[str], typer.Option(help="MODEL=FILE: weights of a model of the pack. Repeatable.")] = [],  # noqa: B006
    scale: Annotated[
        str, typer.Option(help="embedded: models and data of the package; paper: models and data of the paper.")
    ] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Largest number of samples of every set.")] = None,
    budget: Annotated[
        str,
        typer.Option(
            help="Time, such as 30min or 2h: the most valuable steps come first. When the time ends, a training stops "
            "after its epoch and an evaluation within a batch, and both go on next time."
        ),
    ] = "",
    train: Annotated[
        bool, typer.Option("--train/--trained", help="Train what is missing, or evaluate only what is trained.")
    ] = True,
    together: Annotated[
        bool, typer.Option("--together", help="Train the seeds of an arm in one pass: for small models on a GPU.")
    ] = False,
    pages: Annotated[bool, typer.Option("--pages", help="Run nothing; write the pages of the results so far.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Run nothing; say what is done, open or absent.")] = False,
    statements: Annotated[
        bool,
        typer.Option("--statements", help="Run nothing; write the paper's statements beside what was measured."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder of results; by default reproduced/PACK, with --limit N reproduced/PACK-limitN."
        ),
    ] = None,
    audited: Audited = None,
    json: Json = False,
    quiet: Quiet = False,
    *,
    options: "RunOptions",
) -> None:
    """Make the tables and figures of a paper, as its authors ran them and corrected, and write their pages.

    Without --data, every table and figure uses the small models and data of the package. Finished steps are kept, so
    the same command goes on where it was stopped. Several of these commands may share a folder: each takes what no
    other has begun. --processes N also trains N networks at once, each on a GPU of its own. To train each network on
    all processes: accelerate launch -m robustbench_kpca reproduce PACK.
    """
    if _only_follows(train=train and not (pages or plan or statements)):
        return
    from robustbench_kpca.protocols.presets import pack_path

    pack_path(pack)
    from robustbench_kpca.study.reproduction.pack import load_pack

    name, content, everything = load_pack(pack)
    wanted = [*item, *(f"table-{number}" for number in table), *(f"figure-{number}" for number in figure)]
    items = _chosen(everything, wanted)
    from robustbench_kpca._core.registry import unknown_name
    from robustbench_kpca._core.web.document import README
    from robustbench_kpca.cli._evaluating import reporting, usable_device
    from robustbench_kpca.report.matching import name_of
    from robustbench_kpca.study.reproduction.roles import Roles, data_of, default_folder
    from robustbench_kpca.study.reproduction.steps import most_valuable_first
    from robustbench_kpca.study.reproduction.steps import plan as plan_steps
    from robustbench_kpca.study.reproduction.tables import metrics_of

    folders = {key: Path(value) for key, value in _pairs(data, ":", "--data", "NAME:FOLDER").items()}
    missing = next((folder for folder in folders.values() if not folder.is_dir()), None)
    if missing is not None:
        raise BadInputError(f"--data: there is no folder {missing}", fix="correct the path")
    usable = data_of(content) if folders else set()
    for data_set in folders:
        if data_set not in usable:
            raise unknown_name(f"data set (of {name})", data_set, sorted(usable))
    files = {key: Path(value) for key, value in _pairs(checkpoint, "=", "--checkpoint", "MODEL=FILE").items()}
    for file in files.values():
        require_file(file, "checkpoint")
    roles = Roles(
        name,
        content,
        _scale(scale, folders),
        out or default_folder(name, limit),
        folders=folders,
        checkpoints=files,
        limit=limit,
        called=name_of(pack_path(pack), "packs"),
        metrics=metrics_of(everything.values()),
    )
    names = roles.names if files else set()
    for model in files:
        if model not in names:
            raise unknown_name(f"model (of {name})", model, sorted(names))
    if statements:
        _console.say(str(_write_statements(pack, roles)))
        return
    options, seconds = replace(options, device=usable_device(options.device)), _parse_time(budget)
    steps = plan_steps(items, roles)
    steps = steps if seconds is None else most_valuable_first(steps)
    if plan:
        _show(steps, roles, options, json=json)
        return
    from robustbench_kpca.study.reproduction.pages import STATEMENTS, write_pages
    from robustbench_kpca.study.reproduction.statements import load_statements
    from robustbench_kpca.study.reproduction.states import reasons

    require_writable(roles.out)
    after = steps
    if not pages:
        from robustbench_kpca.study.reproduction.run import Settings, run  # a training's libraries take seconds

        settings = Settings(seconds, train, together, audited != "none" and (audited or True), options)
        with reporting(quiet=quiet or json) as reporter:
            after = run(steps, roles, settings, reporter)
    has_statements = load_statements(pack) is not None
    whole = _states_of(plan_steps(everything, roles), after) if wanted else after
    with_statements = has_statements and (not wanted or (roles.out / STATEMENTS / README).is_file())
    page, unmade = write_pages(everything, whole, roles, wanted, statements=with_statements)
    if has_statements and not wanted:
        _write_statements(pack, roles)
    if json:
        _console.show_json([_row(planned) for planned in after])
    else:
        _console.out().print(f"{sum(planned.state == 'done' for planned in after)} of {len(after)} steps are done.")
        _console.show_table("", ("Not run", "Steps"), reasons(after))
        _console.say(str(page))
    _require_made(after, {name: unmade[name] for name in wanted if name in unmade})


def _only_follows(*, train: bool) -> bool:
    """Tell whether another process of a launch does all but the trainings; if it trains, train with it."""
    world, rank = (os.environ.get(name) for name in ("WORLD_SIZE", "RANK"))
    if world in (None, "1") or rank == "0":
        return False
    if train:
        from robustbench_kpca.training.at_once import follow

        follow()
    return True


def _require_made(after: "Sequence[Planned]", unmade: Mapping[str, str]) -> None:
    """Say what failed, and which of the items that were asked for cannot be made."""
    from robustbench_kpca._core.errors import EvaluationError

    failed = [planned for planned in after if planned.state == "failed"]
    if failed:
        others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise EvaluationError(f"{failed[0].step}: {failed[0].why}{others}")
    if unmade:
        raise EvaluationError("; ".join(f"{name} cannot be made: {why}" for name, why in unmade.items()))


def _states_of(whole: "Sequence[Planned]", after: "Sequence[Planned]") -> "list[Planned]":
    """Return all steps of a pack; those that a run was about have the state that it left them in, and its reason.

    A reason that only the whole pack knows stays: a training may be needed by other items.
    """
    from dataclasses import replace

    states_after = {planned.step: planned for planned in after}
    pairs = ((old, states_after.get(old.step, old)) for old in whole)
    return [
        replace(old, state=now.state, why=now.why or (old.why if now.state == old.state else "")) for old, now in pairs
    ]


def _write_statements(pack: str, roles: "Roles") -> Path:
    from robustbench_kpca.study.reproduction.evidence import Results
    from robustbench_kpca.study.reproduction.pack import load_pack
    from robustbench_kpca.study.reproduction.statements import load_statements
    from robustbench_kpca.study.reproduction.statements_page import write_statements

    statements = load_statements(pack)
    if statements is None:
        raise BadInputError(f"pack {pack} has no statements.toml", expected="a pack of a paper with statements")
    require_writable(roles.out)
    return write_statements(statements, Results(load_pack(pack)[2], roles))


def _chosen(items: "dict[str, Item]", wanted: Sequence[str]) -> "dict[str, Item]":
    from robustbench_kpca._core.registry import unknown_name

    for name in wanted:
        if name not in items:
            raise unknown_name("item", name, items)
    return {name: item for name, item in items.items() if not wanted or name in wanted}


def _pairs(texts: Sequence[str], separator: str, option: str, form: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, sign, value = text.partition(separator)
        if not (key and sign and value):
            raise BadInputError(f"{option} {text}", expected=form)
        pairs[key] = value
    return pairs


def _scale(requested: str, folders: object) -> "ScaleName":
    if requested == "paper" or (not requested and folders):
        return "paper"
    if requested in ("", "embedded"):
        return "embedded"
    raise BadInputError(f"--scale {requested}", expected="embedded or paper")


def _parse_time(text: str) -> float | None:
    """Parse `90s`, `30min` or `2h` into seconds; None for the empty text."""
    if not text:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)", text.strip(), re.ASCII)
    if match is None:
        raise BadInputError(f"--budget {text}", expected="a number with s, min, h or d, such as 30min or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def _row(planned: "Planned") -> dict[str, object]:
    return {"step": str(planned.step), "items": planned.items, "state": planned.state, "why": planned.why}


def _show(steps: "Sequence[Planned]", roles: "Roles", options: "RunOptions", *, json: bool) -> None:
    from robustbench_kpca._core.progress import spell
    from robustbench_kpca.evaluation.engines import processes_of
    from robustbench_kpca.study.reproduction.estimate import Estimator, decision
    from robustbench_kpca.study.reproduction.states import reasons

    estimator = Estimator(roles, options)
    seconds = [0.0 if planned.state == "done" else estimator.seconds(planned.step) for planned in steps]
    if json:
        _console.show_json([_row(planned) | {"seconds": most} for planned, most in zip(steps, seconds, strict=True)])
        return
    rows = [
        (str(planned.step), ", ".join(planned.items), planned.state, "" if planned.state == "done" else spell(most))
        for planned, most in zip(steps, seconds, strict=True)
        if planned.state != "absent"
    ]
    _console.show_table("", ("Step", "For", "State", f"At most, on one {estimator.device}"), rows)
    _console.show_table("", ("Not at hand", "Steps"), reasons(step for step in steps if step.state == "absent"))
    if roles.remarks:
        _console.show_table("", ("Data", "Remark"), roles.remarks)
    _console.say(f"{decision(steps, seconds, estimator, processes_of(options))} (audits and diagnoses aside)")
