"""Match what a board asks for with records: which record fills which cell.

One name on two networks is a model that was trained again, or had other options; a row that mixed them would be of
neither.
"""

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import from_here
from robustbench_kpca._core.strict import load_toml, validate
from robustbench_kpca.metrics import Mean, answers, metric_for
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.presets import Shelf, board_folder, board_path, find, name_on_shelf
from robustbench_kpca.protocols.scenario import Attack, Certificate, Corruption
from robustbench_kpca.records.record import SUFFIX, Record
from robustbench_kpca.records.spot_check import FILE, SpotCheck, load_spot_check
from robustbench_kpca.report.board import OTHER_DATA, OTHER_NETWORK, Board, Run
from robustbench_kpca.report.board_spec import BoardSpec, Column, Evaluation
from robustbench_kpca.report.breaks import by_model
from robustbench_kpca.report.consistency import load_consistent
from robustbench_kpca.report.contradictions import only_one, require_no_contradiction
from robustbench_kpca.report.entries import entries_of, of_these_data, with_rows
from robustbench_kpca.report.proofs import furthest
from robustbench_kpca.tasks.titles import misnamed

KEPT = 3_000_000
"""Rows of outcomes that are kept in memory; tables beyond them are read again where they are needed."""
Key = tuple[Any, ...]
"""Model, data, split, protocol and seed of a record."""


def load_board(name: str, records: Iterable[Path] | None = None) -> Board:
    """Read a board and match it with records (by default those beside its `board.toml`).

    A record fills a cell only if model, data, split and seed are the board's and its protocol digest is that of the
    protocol as it reads today. Where the board states a digest of its data, they must be of these, too. All records of
    one model must be of one network, that of the newest of them. Every metric that the board shows is computed again
    from the outcomes of its records.
    """
    path = board_path(name)
    spec = load_spec(path)
    entries = entries_of(spec, path)
    entered = [file for entry in entries.values() for file in entry.records]
    files = [*_own_records(name, path), *entered] if records is None else list(records)
    words = name_of(path)
    loaded = read(files, only=shown_metrics(column.metric for column in spec.column))
    if spec.entries is not None:
        spec, loaded = with_rows(spec, entries.values()), of_these_data(spec, loaded)
    remake, missing = (f"rbk board {verb} {words}" for verb in ("render", "plan"))
    board = fill(path.parent.name, spec, loaded, str(path), remake=remake, missing=missing)
    return replace(board, spot_check=_spot_check(name, path), entries=entries)


def load_spec(path: Path) -> BoardSpec:
    """Read a `board.toml`, without the rows of its entries.

    Raises:
        BadInputError: it is not as `BoardSpec` says, or a question has a family, which a board without a pack lacks.
    """
    spec = validate(BoardSpec, load_toml(path), f"board {path}").located(path.parent)
    if family := next((question.family for question in spec.question if question.family is not None), None):
        raise BadInputError(
            f"board {path}: a question of the family '{family}', which nothing adjusts here",
            expected="families in packs alone, since they hold over several tables",
        )
    return spec


def shown_metrics(columns: Iterable[str]) -> frozenset[str]:
    """Return the metrics that tables with columns of these metrics show: these, and without the attack in figures."""
    named = frozenset(columns)
    return named | {metric for name in named if (metric := metric_for(name).unattacked) is not None}


def _spot_check(name: str, path: Path) -> SpotCheck | None:
    """Return the spot check beside a `board.toml`, or where one of this board is kept; None if there is none."""
    for folder in (board_folder(name), path.parent):
        if (folder / FILE).is_file():
            return load_spot_check(folder / FILE)
    return None


def _own_records(name: str, path: Path) -> list[Path]:
    """Return the records beside a `board.toml`, and those that were made for it where new ones belong."""
    folders = dict.fromkeys(folder / "records" for folder in (path.parent, board_folder(name)))
    return [file for folder in folders for file in sorted(folder.rglob(f"*{SUFFIX}"))]


def name_of(path: Path, shelf: Shelf = "leaderboards") -> str:
    """Return what a command calls the board or pack at this path: its name where that finds it, else its folder."""
    name = name_on_shelf(path)
    return name if find(shelf).get(name) == path else shlex.quote(str(from_here(path.parent)))


def fill(
    name: str,
    spec: BoardSpec,
    records: Sequence[Record],
    where: str,
    remake: str,
    missing: str,
    weights: Mapping[str, str] | None = None,
) -> Board:
    """Match what a board asks for with records; errors begin with `where`. For `remake` and `missing` see `Board`.

    `weights` are the digests of weights at hand, by model: other records of these models fill no cell.

    Raises:
        BadInputError: a column that cannot mean anything, or records that do not belong on one board.
    """
    for column in spec.column:
        _require_metric(spec, column, where)
        if column.proven is not None:
            _require_metric(spec, column.proven, where)
            _require_bracket(spec, column, column.proven, where)
    records_by_key: dict[Key, list[Record]] = {}
    for record in records:
        records_by_key.setdefault(_key(record), []).append(record)
    resolved = {evaluation: evaluation.resolve() for evaluation in spec.evaluations}
    protocols = {evaluation: (label, scenario.digest()) for evaluation, (label, scenario) in resolved.items()}
    candidates = {
        (model, evaluation): _candidates(spec.seed, model, evaluation, protocols[evaluation], records_by_key)
        for model in spec.all_models
        for evaluation in spec.evaluations_of(model)
    }
    leading = leading_records(spec, [record for records, _ in candidates.values() for record in records], weights or {})
    by_cell = {cell: of_network(records, leading.get(cell[0])) for cell, (records, _) in candidates.items()}
    sizes = _sizes(by_cell)
    runs = [_run(*cell, by_cell[cell], sizes.get(cell[1].samples, 0), state) for cell, (_, state) in candidates.items()]
    imported, stale = by_model(records, leading)
    theirs = [record for same in imported.values() for record in same]
    require_no_contradiction([*(run.record for run in runs if run.record), *theirs], spec.rows)
    by_samples: dict[Key, list[Record]] = {}
    for run in runs:
        if run.record:
            by_samples.setdefault(run.evaluation.samples, []).append(run.record)
    for records in by_samples.values():
        _require_one_data_set(records)
    _require_one_task(spec, where, [run.record for run in runs if run.record])
    remarks = (*of_other_networks(runs, leading, weights or {}), *stale)
    return Board(name, spec, tuple(runs), remake, missing, others=remarks, imported=imported)


def read(
    files: Iterable[Path],
    cache: dict[tuple[Path, int], Record] | None = None,
    only: Collection[str] | None = None,
) -> list[Record]:
    """Load and check records; those in `cache`, by path and time of change, are not read again.

    `only` the metrics of these names are computed again, where names are given. What `cache` has of files that changed
    since is removed from it.
    """
    records = {} if cache is None else cache
    keys = [(file, file.stat().st_mtime_ns) for file in files]
    paths, current = {path for path, _ in keys}, set(keys)
    for old in [key for key in records if key[0] in paths and key not in current]:
        del records[old]
    rows = sum(len(record.outcomes) for record in records.values() if record.held)
    for key in keys:
        if key not in records:
            records[key] = record = load_consistent(key[0], only)
            if rows + len(record.outcomes) > KEPT:
                record.release()
            else:
                rows += len(record.outcomes)
    return [records[key] for key in keys]


def _require_bracket(spec: BoardSpec, column: Column, proven: Column, where: str) -> None:
    """Refuse a certificate that says nothing of the attacks beside it, since some of them go further."""
    for certificate in (needed.resolve()[1] for needed in spec.needed(proven)):
        for attack in (needed.resolve()[1] for needed in spec.needed(column)):
            assert isinstance(certificate, Certificate)
            if isinstance(attack, Attack) and furthest(certificate, attack) > certificate.radius:
                raise BadInputError(
                    f"board {where}: column '{column.title}': a certificate within {certificate.threat} "
                    f"beside an attack within {attack.threat}",
                    expected="an attack within the same, or less",
                )


def _require_metric(spec: BoardSpec, column: Column, where: str) -> None:
    metric = metric_for(column.metric)
    if wrong := misnamed(column.title, [needed.resolve()[1] for needed in spec.needed(column)]):
        raise BadInputError(f"board {where}: column '{column.title}': {wrong}", fix="give it another title")
    for needed in spec.needed(column):
        scenario = needed.resolve()[1]
        protocol, kind, objection = needed.protocol, scenario.kind, metric.objection(scenario)
        if objection or not answers(metric, kind):
            raise BadInputError(
                f"board {where}: column '{column.title}': protocol '{protocol}' ({kind}) has no {column.metric}"
                + (f", since {objection}" if objection else ""),
                fix="" if objection else "see: rbk list metrics",
            )
        if (kind == "ood") != (column.against is not None):
            raise BadInputError(
                f"board {where}: column '{column.title}': against = {column.against!r} with protocol '{protocol}'",
                expected="`against` where images of no known class are to be detected, and only there",
            )
    if column.corruption is not None and not _has(column):
        raise BadInputError(
            f"board {where}: column '{column.title}': corruption = '{column.corruption}'",
            expected=f"a corruption of '{column.protocol}'",
        )
    if metric.needs_reference and column.reference is None:
        raise BadInputError(
            f"board {where}: column '{column.title}': {column.metric} without a reference",
            fix="name one of the models: reference = 'MODEL'",
        )
    if len(column.protocols) > 1 and (not isinstance(metric, Mean) or metric.lower_is_better or column.reference):
        raise BadInputError(
            f"board {where}: column '{column.title}': no worst case of {column.metric} is defined",
            fix="name one protocol",
        )


def _has(column: Column) -> bool:
    """Whether every protocol of a column has its corruption."""
    scenarios = [load_scenario(protocol)[1] for protocol in column.protocols]  # only attacks have an eps
    return all(isinstance(scenario, Corruption) and column.corruption in scenario.names for scenario in scenarios)


def _require_one_data_set(records: list[Record]) -> None:
    """Refuse to rank numbers that were not made on the same images."""
    sizes = Counter(record.spec.data.digest for record in records)
    for record in records:
        if len(sizes) > 1 and record.spec.data.digest != sizes.most_common(1)[0][0]:
            raise BadInputError(
                f"record {record.spec.stem()} is of other images than the rest (n = {record.spec.data.n})",
                fix="evaluate every model on the same images",
            )


def _require_one_task(spec: BoardSpec, where: str, records: list[Record]) -> None:
    """Refuse metrics of several tasks, or of another task than the data's."""
    tasks = {record.spec.data.task for record in records}
    for column in spec.column:
        tasks.add(metric_for(column.metric).task)
        if len(tasks) > 1:
            raise BadInputError(
                f"board {where}: column '{column.title}': {column.metric} beside {' and '.join(sorted(tasks))}",
                expected="metrics of one task, that of the data",
                fix="see: rbk list metrics",
            )


def _candidates(
    seed: int,
    model: str,
    evaluation: Evaluation,
    protocol: tuple[str, str],
    records: Mapping[Key, list[Record]],
) -> tuple[list[Record], str]:
    """Return the records that can fill a cell, and what state it has if none of them does."""
    label, digest = protocol
    wanted = [(model, name, evaluation.split, label, seed) for name in evaluation.recorded_data]
    named = [
        record
        for key in wanted
        for record in records.get(key, ())
        if evaluation.limit in (None, record.spec.data.known or record.spec.data.n)
    ]
    of_data = [record for record in named if evaluation.digest in (None, record.spec.data.digest)]
    current = [record for record in of_data if record.spec.protocol.digest == digest]
    return current, OTHER_NETWORK if current else "stale" if of_data else OTHER_DATA if named else "missing"


def _sizes(by_cell: Mapping[tuple[str, Evaluation], Sequence[Record]]) -> dict[Key, int]:
    """Return, by samples, the largest number of which every run that has records has one; else the largest of all."""
    sizes_by: dict[Key, list[set[int]]] = {}
    for (_, evaluation), records in by_cell.items():
        if records:
            sizes_by.setdefault(evaluation.samples, []).append({record.spec.data.n for record in records})
    return {samples: max(set.intersection(*sizes) or set.union(*sizes)) for samples, sizes in sizes_by.items()}


def _run(model: str, evaluation: Evaluation, candidates: Sequence[Record], size: int, otherwise: str) -> Run:
    """Fill a cell by a record of `size` samples; otherwise by that of the most samples."""
    if not candidates:
        return Run(model, evaluation, otherwise, None)
    most = max((record.spec.data.n == size, record.spec.data.n) for record in candidates)
    same = [record for record in candidates if (record.spec.data.n == size, record.spec.data.n) == most]
    return Run(model, evaluation, "ready", only_one(same))


def _key(record: Record) -> Key:
    spec = record.spec
    return spec.model.name, spec.data.name, spec.data.split, spec.protocol.name, spec.seed


def leading_records(spec: BoardSpec, records: Iterable[Record], weights: Mapping[str, str]) -> dict[str, Record]:
    """Return, by name, the record that says which network a model is on this board.

    It is the newest one with the options that the board states, and of the weights at hand where there are some.

    Args:
        weights: digests of the weights at hand, by model.
    """
    leading: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: record.created):
        model = record.spec.model
        allowed_digests = (None, model.parameters_sha256)
        if model.agrees(spec.described(model.name).options) and weights.get(model.name) in allowed_digests:
            leading[model.name] = record
    return leading


def of_network(records: Iterable[Record], leading: Record | None) -> list[Record]:
    """Return the records that are of the network of the leading one."""
    return [
        record for record in records if leading is not None and record.spec.model.network == leading.spec.model.network
    ]


def of_other_networks(
    runs: Iterable[Run], leading: Mapping[str, Record], weights: Mapping[str, str]
) -> tuple[str, ...]:
    """Say of which models some runs have records of another network only, and what to do."""
    counts = Counter(run.model for run in runs if run.state == OTHER_NETWORK)
    remarks = []
    for model, count in counts.items():
        if model in weights:
            wanted = "the weights at hand: they are to be evaluated again."
        elif model in leading:
            record = leading[model]
            named = f"{record.spec.stem()}{SUFFIX} of {record.created}"
            wanted = f"its newest record, {named}: evaluate it again, or move its newer records away."
        else:
            wanted = "the board asks for: evaluate it again."
        what = f"Records of {count} runs of {model} are of another network (other weights or options)"
        remarks.append(f"{what} than {wanted}")
    return tuple(remarks)
