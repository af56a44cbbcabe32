"""The commands that make the runs of a board."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from robustbench_kpca.records.record import Record
from robustbench_kpca.report.board import Run
from robustbench_kpca.report.board_spec import BoardSpec

BATCH = 64
"""Batch size of `rbk eval` where none is given."""


def command(spec: BoardSpec, runs: Sequence[Run], out: Path | str | None = None, presets: str | None = None) -> str:
    """Return the command that makes runs of one model on the same samples under the same budget.

    Args:
        spec: of the board.
        runs: what is to be made.
        out: folder of the records, if the command is to name one.
        presets: folder for `--presets`, where protocols of the user's own are needed.

    """
    wanted, model = runs[0].evaluation, spec.described(runs[0].model)
    words = ["rbk", "eval", "--model", model.source or model.name]
    words += ["--name", model.name] if model.needs_name else []
    words += [] if model.checkpoint is None else ["--checkpoint", model.checkpoint]
    words += ["--data", wanted.data, "--split", wanted.split]
    words += [] if wanted.against is None else ["--against", wanted.against]
    words += ["--seed", str(spec.seed), *(["--out", str(out)] if out else [])]
    words += [] if wanted.limit is None else ["--limit", str(wanted.limit)]
    settings = wanted.overrides | {f"model.{key}": value for key, value in model.options.items()}
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    words += [word for record in [runs[0].record] if record for word in _as_recorded(record)]
    words += ["--presets", presets] if presets else []
    return shlex.join(words + [word for run in runs for word in ("--protocol", run.evaluation.protocol)])


def _as_recorded(record: Record) -> list[str]:
    """Return the options with which a record was made, where they are not those of `rbk eval`."""
    batch = [] if record.spec.batch_size == BATCH else ["--batch-size", str(record.spec.batch_size)]
    return [*batch, *(["--audit", "none"] if record.kind == "attack" and record.audit is None else [])]


def together(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs of one model on the same samples under the same budget: one command makes them."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.model, *run.evaluation.samples, run.evaluation.eps), []).append(run)
    return list(groups.values())
