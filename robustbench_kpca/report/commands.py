"""The commands that make the runs of a board."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from robustbench_kpca._core.strict import assignment
from robustbench_kpca.records.audit_versions import default_level
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.board import Run
from robustbench_kpca.report.board_spec import BoardSpec

BATCH = 64
"""Batch size of `rbk eval` where none is given."""


def command(spec: BoardSpec, runs: Sequence[Run], out: Path | str | None = None, presets: str | None = None) -> str:
    """Return the command that makes runs which `together` put into one group.

    Args:
        runs: what is to be made: of every model under every protocol.
        out: folder of the records, if the command is to name one.
        presets: folder for `--presets`, where protocols of the user's own are needed.
    """
    wanted, model = runs[0].evaluation, spec.described(runs[0].model)
    models = list(dict.fromkeys(run.model for run in runs))
    protocols = list(dict.fromkeys(run.evaluation.protocol for run in runs))
    sources = [spec.described(name).source or name for name in models]
    words = [
        "rbk",
        *(["--presets", presets] if presets else []),
        "eval",
        *(word for source in sources for word in ("--model", source)),
    ]
    words += ["--name", model.name] if model.needs_name else []
    words += [] if model.checkpoint is None else ["--checkpoint", model.checkpoint]
    words += ["--data", wanted.data, "--split", wanted.split]
    words += [] if wanted.against is None else ["--against", wanted.against]
    words += ["--seed", str(spec.seed), *(["--out", str(out)] if out else [])]
    words += [] if wanted.limit is None else ["--limit", str(wanted.limit)]
    settings = wanted.overrides | {f"model.{key}": value for key, value in model.options.items()}
    words += [word for key, value in settings.items() for word in ("--set", assignment(key, value))]
    words += [word for record in [runs[0].record] if record for word in _as_recorded(record)]
    return shlex.join(words + [word for protocol in protocols for word in ("--protocol", protocol)])


def _as_recorded(record: Record) -> list[str]:
    """Return the options with which a record was made, where they are not those of `rbk eval`."""
    batch = [] if record.spec.batch_size == BATCH else ["--batch-size", str(record.spec.batch_size)]
    level = "none" if record.audit is None else record.audit.plan.level
    by_default = record.kind != "attack" or level == default_level(record.spec.data.n)
    return [*batch, *([] if by_default else ["--audit", level])]


def together(spec: BoardSpec, runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs that one command makes: on the same samples, under the same protocols with the same fields replaced.

    A model that needs options of its own shares no command with others.
    """
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        key = (run.model, *run.evaluation.samples, *run.evaluation.overrides.items())
        groups.setdefault(key, []).append(run)
    merged: dict[tuple[object, ...], list[Run]] = {}
    for (name, *samples_and_fields), group in groups.items():
        model = spec.described(str(name))
        alone = name if model.needs_name else None
        merged.setdefault((alone, *samples_and_fields, *(run.evaluation.protocol for run in group)), []).extend(group)
    return list(merged.values())
