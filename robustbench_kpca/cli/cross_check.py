"""`rbk cross-check`: compare a native attack, or native corruptions, with those of another library."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli import _console, _options
from robustbench_kpca.cli._evaluating import given_options, refuse_others, require_names, split_settings, usable_device

if TYPE_CHECKING:
    from robustbench_kpca.protocols.scenario import Corruption
    from robustbench_kpca.records.record import Record
    from robustbench_kpca.verification.cross_check import Agreement
    from robustbench_kpca.verification.pictures import Gap

_IMAGES = 8  # of every cell, where pictures are compared
_OF_PICTURES = ("model", "protocol", "data", "split", "limit", "seed", "set_", "quiet")


def cross_check(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Model: a name of `rbk list models`, timm:NAME or module.path:factory. Corruptions need none.",
            show_default=False,
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            "-p",
            help="Attack or corruption protocol: a name of `rbk list protocols`, or a TOML file; by default three "
            "attacks and four corruptions in seconds.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set: a name of `rbk list data`, NAME:FOLDER for a stored one, or a folder of images; by default "
            "that of the model's family, and for corruptions photos.",
            show_default=False,
        ),
    ] = None,
    split: _options.Split = None,
    size: _options.Size = None,
    crop: _options.Crop = None,
    checkpoint: _options.Checkpoint = None,
    set_: _options.Settings = [],  # noqa: B006 (typer reads the default)
    limit: _options.Limit = None,
    seed: _options.Seed = 0,
    batch_size: _options.BatchSize = 64,
    device: _options.Device = None,
    quiet: _options.Quiet = False,
) -> int:
    """Compare an attack or corruptions of this package with those of another library; exit 1 if they do not agree.

    The attack of this package must not be weaker: its robust accuracy may be at most 0.5 percentage points higher. For
    corruptions, such as -p common-corruptions-19, the command compares pictures with those of imagecorruptions 1.1.2,
    cell by cell, on 8 images unless you give --limit. With the same seed, mode exact must give the same bytes, and mode
    fast and impulse noise must have the same distribution. The command needs the extra `reference`, which `make demo`
    installs.
    """
    arguments = locals()
    if protocol is None:
        if set(given_options(cross_check, arguments)) - {"quiet"}:
            raise BadInputError(
                "a comparison without a protocol",
                expected="rbk cross-check MODEL -p PROTOCOL, or rbk cross-check alone",
            )
        return _at_a_glance(quiet=quiet)
    from robustbench_kpca._core.strict import parse_assignments

    options, overrides = split_settings(parse_assignments(set_))
    require_names(models=[] if model is None else [model], protocols=[protocol], overrides=overrides, data=[data])
    from robustbench_kpca.evaluation.options import RunOptions
    from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest, how_shown
    from robustbench_kpca.verification import cross_check as checking
    from robustbench_kpca.verification.pictures import corruption_protocol

    corruption = corruption_protocol(protocol, overrides)
    if corruption is not None:
        refuse_others(given_options(cross_check, arguments), "corruptions", _OF_PICTURES)
        if model is not None:
            raise BadInputError(f"model '{model}' with corruptions", expected="no model: pictures are compared")
        return _check_pictures(corruption, data or "photos", split, limit or _IMAGES, seed, quiet=quiet)
    if model is None:
        raise BadInputError("an attack without a model", expected="rbk cross-check MODEL -p PROTOCOL")
    named = ModelRequest.of(model, checkpoint, options=options).named()
    samples = DataRequest(data, split, limit, size=size, crop=crop).of([model]).load_for(named.model)
    _console.note(how_shown(samples, named.model), quiet=quiet)
    run = RunOptions(seed=seed, batch_size=batch_size, device=usable_device(device))
    with _console.screen(quiet=quiet) as on_screen:
        agreement = checking.cross_check(
            named, samples.in_order(), protocol, overrides, run, progress=on_screen.start(model)
        )
    _show(agreement)
    return 0 if agreement.as_strong else 1


def _at_a_glance(*, quiet: bool) -> int:
    from robustbench_kpca.verification.at_a_glance import DATA, IMAGES, look

    with _console.screen(quiet=quiet) as on_screen:
        glance = look(on_screen.start("beside other libraries"))
    _console.say(
        "PGD-20 and C&W beside torchattacks, AutoAttack (20 steps, 500 queries) beside pyautoattack, on "
        f"{IMAGES} {DATA}: verdicts differing: {glance.differing} of {glance.verdicts}. "
        f"Corruptions beside imagecorruptions: {glance.other_pictures} of {glance.corruptions} differ."
    )
    return 0 if glance.agrees else 1


def _check_pictures(protocol: "Corruption", data: str, split: str | None, limit: int, seed: int, *, quiet: bool) -> int:
    from robustbench_kpca.data.load import load_data
    from robustbench_kpca.verification.pictures import compare_pictures, pictures_of

    images = pictures_of(load_data(data, split, limit))
    with _console.screen(quiet=quiet) as on_screen:
        cells = compare_pictures(protocol, images, seed, on_screen.start("cells"))
    agree = all(cell.agrees for cell in cells)
    rows = [
        (cell.corruption, cell.severity, _gap(cell.exact), _gap(cell.fast), "" if cell.agrees else "DIFFERENT")
        for cell in cells
    ]
    _console.show_table("", ("Corruption", "Severity", "Exact", "Fast", ""), rows)
    _console.out().print()
    differing = sum(not cell.agrees for cell in cells)
    result = "as the library's" if agree else f"DIFFERENT from the library's in {differing} cells"
    _console.say(f"{result}: {len(cells)} cells on {len(images)} images of {data}")
    return 0 if agree else 1


def _gap(gap: "Gap") -> str:
    if gap.kind == "statistics":
        return f"distribution, {gap.value:.2f} of the limit"
    return "equal" if gap.value == 0 else f"{100 * gap.value:.2g} % of values, by {gap.levels}"


def _show(agreement: "Agreement") -> None:
    header = ("Program", "Robust %", "95 % interval", "Forwards", "Backwards", "Seconds")
    records = agreement.native, agreement.reference
    _console.show_table("", header, [_row("native", records[0]), _row(_programs(records[1]), records[1])])
    _console.out().print()
    rows = [
        ("broken by native", agreement.both, agreement.only_native),
        ("not broken by native", agreement.only_reference, agreement.neither),
    ]
    _console.show_table("", ("Images", "broken by reference", "not broken by reference"), rows)
    _console.out().print()
    native, other = (record.metrics["robust_accuracy"].value for record in records)
    result = "as strong as the reference" if agreement.as_strong else "WEAKER than the reference"
    _console.out().print(
        f"{result}: robust accuracy {100 * native:.1f} % against {100 * other:.1f} %, "
        f"McNemar's exact p = {agreement.p_value:.2g}",
        markup=False,
    )


def _row(who: str, record: "Record") -> tuple[Any, ...]:
    estimate, passes = record.metrics["robust_accuracy"], record.passes
    interval = f"[{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
    return who, f"{100 * estimate.value:.1f}", interval, passes.forwards, passes.backwards, f"{record.seconds:.1f}"


def _programs(record: "Record") -> str:
    return ", ".join(dict.fromkeys(stage["attack"] for stage in record.spec.protocol.resolved["stage"]))
