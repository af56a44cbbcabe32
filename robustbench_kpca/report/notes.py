"""The sentences of a board: what its numbers are of, what is bold, ranks, rows of several trainings, its columns."""

from collections.abc import Collection, Iterable
from typing import Any

from robustbench_kpca._core.web import asset
from robustbench_kpca._core.web.marks import quoted, unquoted
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.metrics.shared.power import ALPHA
from robustbench_kpca.protocols.agreement import agreement_of
from robustbench_kpca.protocols.scenario import Attack, Corruption, Inference
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.spot_check import lines
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Column, Evaluation
from robustbench_kpca.report.table import board_unit, common_flags, without_numbers
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.caveats import in_full
from robustbench_kpca.tasks.titles import title_of

_CAPTION = "{values} of {samples}; {intervals}; evaluated with seed {seed}. ↓: lower is better."
_BOLD = (
    "Bold: better than every other row{kind} in that column by a paired test on the same {resampled} ({tests}, p below "
    "{alpha} divided by the number of those rows); no bold, no clear winner."
)
_SHOWN = "Wilson for proportions, bootstrap over {resampled} for everything else"
_OF_TRAININGS = "Student's t over trainings and {resampled}; of single trainings: "
_TESTS = "McNemar exact, sign flips or bootstrap"
_BLOCKS = "Student's t over trainings with seeds as blocks"
_KIND = " of its kind (of several trainings, or of one)"
_APART = ", those of several trainings first"
_RANKING = (
    "Place: the places that a row can have{kind} in the column {rank_by}. The first is 1 + the rows that are clearly "
    "better, the last leaves out those that are clearly worse, by the test that decides what is bold. Where the "
    "range of a row with a worse value begins earlier, this range begins there, too. Rows are sorted by value{apart}."
)
_UNRANKED = "No place: rows are sorted by their value in the column {rank_by}, in which they are not compared."
_PIECES = (
    "Rows are not compared in {columns}: the images of no known class are {pieces}, and tests or intervals over them "
    "say nothing of other pictures."
)
_BY_VALUE = "Place: 1 + the rows{kind} with better values in the column {rank_by}; there are too many to test."
_TRAININGS = " ".join(asset("report", "trainings.txt").split())
"""How rows of several trainings are shown and compared."""


def caption(board: Board) -> str:
    """Say what the numbers are of, and what is bold."""
    over, (single, several) = resampled(board), _kinds(board)
    intervals = f"with 95 % intervals ({_OF_TRAININGS if several else ''}{_SHOWN})".format(resampled=over)
    text = _CAPTION.format(values=values_of(board), samples=samples(board), seed=board.spec.seed, intervals=intervals)
    text = " ".join([text, *_untested(board)])
    if not _compares(board):
        return text
    tests = "; ".join([_TESTS] * single + [_BLOCKS] * several)
    bold = _BOLD.format(kind=_KIND if single and several else "", resampled=over, alpha=ALPHA, tests=tests)
    return f"{text} {bold}"


def ranking(board: Board) -> str:
    """Say what a rank is, or why there is none; empty where no two rows are compared."""
    column = next(column for column in board.spec.column if column.title == board.spec.rank_by)
    if column.untested:
        return _UNRANKED.format(rank_by=quoted(column.title))
    if not _compares(board):
        return ""
    text = _BY_VALUE if board.ranking.by_value else _RANKING
    both = all(_kinds(board))
    return text.format(kind=_KIND * both, apart=_APART * both, rank_by=quoted(board.spec.rank_by))


def _kinds(board: Board) -> tuple[bool, bool]:
    """Whether the board has rows of one training, and of several."""
    planned = {board.planned(row.title) > 1 for row in board.spec.rows}
    return False in planned, True in planned


def _untested(board: Board) -> list[str]:
    """Say of columns that they are `Column.untested`: one sentence for all with the same pictures."""
    untested: dict[str, list[str]] = {}
    for column in board.columns:
        untested.setdefault(column.untested, []).append(quoted(column.title))
    return [_PIECES.format(columns=_listed(titles), pieces=pieces) for pieces, titles in untested.items() if pieces]


def _compares(board: Board) -> bool:
    """Whether any two rows are compared."""
    return any(len(group) > 1 for groups in board.compared.values() for group in groups)


def trainings(board: Board) -> str:
    """Say how rows of several trainings are shown and compared; empty where there are none."""
    return _TRAININGS.format(resampled=resampled(board)) if _kinds(board)[1] else ""


def flagged(board: Board) -> str:
    """Name the columns in which every number has the same flag, which is then shown beside none."""
    titles = [quoted(column.title) for column in board.columns if common_flags(board, column)]
    where = f" in {_listed(titles)}" if 0 < len(titles) < len(board.columns) else ""
    return f"⚑ Every number{where} has a flag: see “Flags” below." if titles else ""


def without(board: Board) -> str:
    """Name the rows that the table leaves out, since they have no number; empty where there are none."""
    titles = [quoted(title) for title in without_numbers(board)]
    return f"Not in the table, since no column has a number of them: {_listed(titles)}." if titles else ""


def values_of(board: Board) -> str:
    """Name what the table shows."""
    unit = board_unit(board)
    return unit.name.capitalize() if unit and unit.name else "Values"


def samples(board: Board) -> str:
    """Describe the samples: `360 `digits` images (test)`; of several sets, each with the titles of its columns.

    The set of most columns comes last, and its columns are not named where all others are.
    """
    sets: dict[tuple[Any, ...], list[Column]] = {}
    for column in board.spec.column:
        sets.setdefault(board.spec.needed(column)[0].samples, []).append(column)
    described = [(text, columns) for wanted, columns in sets.items() if (text := _described(board, wanted))]
    if not described:
        return f"`{board.spec.data}` images ({board.spec.split})"
    if len(sets) == 1:
        return described[0][0]
    *few, (most, columns) = sorted(described, key=lambda pair: len(pair[1]))
    parts = [f"{text} in {_named(those)}" for text, those in few]
    rest = few and len(described) == len(sets) and len(columns) > 1
    return "; ".join([*parts, f"{most} in {'all other columns' if rest else _named(columns)}"])


def _described(board: Board, wanted: tuple[Any, ...]) -> str:
    """Describe one set of samples, as its first record names it; empty without a record."""
    record = next((run.record for run in board.runs if run.record and run.evaluation.samples == wanted), None)
    if record is None:
        return ""
    data, (_, split, _, against) = record.spec.data, wanted
    data_name = data.name if against is None else data.name.rpartition("-against-")[0]
    size = data.n if data.known is None else data.known
    text = f"{size:,} `{unquoted(data_name)}` {task_named(data.task).pages.samples} ({split})"
    return text + ("" if against is None else f" and {data.n - size:,} of `{against.partition(':')[0]}`")


def _named(columns: list[Column]) -> str:
    """Name columns by their titles, which may hold commas."""
    return _listed([quoted(column.title) for column in columns])


def _listed(titles: list[str]) -> str:
    return titles[0] if len(titles) == 1 else f"{', '.join(titles[:-1])} and {titles[-1]}"


def resampled(board: Board) -> str:
    """Name what intervals resample and paired tests pair, such as `images`."""
    tasks = dict.fromkeys(run.record.spec.data.task for run in board.runs if run.record)
    return " or ".join(dict.fromkeys(task_named(task).pages.resampled for task in tasks)) or "images"


def explain(board: Board, column: Column) -> str:
    """Explain a column: its metric, and what its protocol does."""
    metric = metric_for(column.metric)
    notes = [f"`{metric.name}`, {metric.title}"]
    if column.reference is not None:
        instead = "" if metric.needs_reference else ", not AlexNet's"
        notes.append(f"divided by the errors of `{column.reference}` (taken as exact){instead}")
    if column.against is not None:
        notes.append(f"against `{column.against}`")
    if column.certificate is not None:
        notes.append(
            f"a cell [certified, attacked] has what `{column.certificate}` proves, and what the attack left; none of "
            "models that are certified in another norm"
        )
    if column.corruption is not None:
        notes.append(f"under {column.corruption} alone")
    records = [record for model in board.spec.all_models for record in board.records(model, column)]
    if column.imported:
        notes.append("best known: images found by others count, too")
    if metric.chance is not None and records:
        notes.append(f"chance {metric.unit.number(metric.chance(records[0].outcomes))}")
    what = f"{'; '.join(notes)}: "
    if isinstance(column.protocol, str):
        return what + _explain_protocol(board, board.spec.needed(column)[0])
    return what + f"the worst case, image by image, of {', '.join(f'`{name}`' for name in column.protocol)}"


def _explain_protocol(board: Board, evaluation: Evaluation) -> str:
    records = [run.record for run in board.runs if run.evaluation == evaluation and run.record]
    record = next(iter(records), None)
    if record is None:
        return f"`{evaluation.protocol}`{' with ' if evaluation.replaced else ''}{evaluation.replaced} (no record)"
    protocol = record.spec.protocol.name
    scenario = record.spec.protocol.scenario
    title, digest = unquoted(title_of(protocol, scenario)), record.spec.protocol.digest[:12]
    text = f"{title} (`{unquoted(protocol)}`, digest {digest})"
    if isinstance(scenario, Attack):
        stages = "; ".join(
            unquoted(f"{stage.name} ") + ", ".join(unquoted(f"{key} = {value}") for key, value in stage.options.items())
            for stage in scenario.stage
        )
        budget = _budget(scenario, {each.spec.model.pixel_std for each in records})
        text += f"; {budget}{'; ' if stages else ''}{stages.strip()}"
    code = {(name, digest[:12]) for each in records for name, digest in each.spec.code.items() if name != "model"}
    text += "".join(f"; code from outside: {unquoted(name)}, SHA-256 {digest}" for name, digest in sorted(code))
    agreement = agreement_of(protocol, scenario)
    text += "" if agreement is None else f"; {in_full(agreement)}"
    inference = getattr(scenario, "inference", None)
    if inference is not None:
        text += f"; {_windows(inference)}"
    if isinstance(scenario, Corruption) and scenario.of_images:
        text += f"; pictures {scenario.made}, profile {scenario.profile}, mode {scenario.mode}, frost {scenario.frost}"
    return text


def _windows(inference: Inference) -> str:
    """Describe the windows in which images are shown to a model."""
    side = f"windows of {inference.window} px" if inference.window else "windows of the model's own size"
    parts = [side, f"stride {inference.stride}" if inference.stride else "side by side"]
    parts += ["short side resized to a window's"] if inference.resize == "short-side" else []
    return ", ".join(parts)


def _budget(scenario: Attack, stds: Collection[tuple[float, ...]]) -> str:
    """Write eps in the protocol's space and, if the models' normalisations are known, in the other one."""
    if scenario.threat.counted:
        return scenario.budget
    text = scenario.budget
    if not all(stds):
        return text
    pixel = scenario.space == "pixel"
    values = sorted({scenario.eps / part if pixel else scenario.eps * part for std in stds for part in std})
    ends = dict.fromkeys((values[0], values[-1]))
    levels = not pixel and scenario.norm != "l1" and values[-1] <= 1
    extent = " to ".join(f"{255 * value:.3g}/255" if levels else f"{value:.3g}" for value in ends)
    if len(stds) == 1:
        return f"{text}, {extent} in {'normalised' if pixel else 'pixel'} space, by channel"
    if pixel:
        return f"{text}, {extent} in normalised space, by model and channel"
    return f"{text}, {extent} in pixel space, by model and channel: the models normalise otherwise, so budgets differ"


def provenance(board: Board) -> list[str]:
    """Say how the numbers were made, as items of a list."""
    records: list[Record] = [run.record for run in board.runs if run.record]
    if not records:
        return ["- no records yet"]

    def distinct(values: Iterable[object]) -> str:
        return ", ".join(sorted({unquoted(str(value)) for value in values}))

    where = [record.environment for record in records]
    data = distinct(record.spec.data.digest[:16] for record in records)
    batch = distinct(record.spec.batch_size for record in records)
    torch, timm = (
        distinct(environment.packages.get(name, "unknown") for environment in where) for name in ("torch", "timm")
    )
    processor = distinct(environment.processor for environment in where)
    device = distinct(environment.device for environment in where)
    forwards, backwards = (
        sum(getattr(record.passes, kind) for record in records) for kind in ("forwards", "backwards")
    )
    seconds = sum(record.seconds for record in records)
    said = lines(board.spot_check, records)
    return [
        *([f"- {board.plan}"] if board.plan else []),
        f"- Command: `{board.remake}`, from {len(records)} records; each record names its revision.",
        f"- Data digest: {data}; batch size {batch}.",
        f"- Processor: {processor}; device {device}; torch {torch}; timm {timm}.",
        f"- Passes: {forwards:,} forward, {backwards:,} backward; {seconds:.0f} s in all.",
        *(f"- {line}" for line in said),
        *(
            ["- A spot check is a statement of its maker: rbk records verify --board NAME --fresh makes your own."]
            if said
            else []
        ),
    ]
