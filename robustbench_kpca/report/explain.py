"""Sentences about a board: its columns, and how its numbers were made."""

from collections.abc import Collection, Iterable

from robustbench_kpca._core.web.marks import unquoted
from robustbench_kpca.evaluation.caveats import caution, in_full
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.protocols.agreement import agreement_of
from robustbench_kpca.protocols.scenario import Attack, Corruption, Inference, parse_scenario
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.spot_check import lines
from robustbench_kpca.report.best_known import who
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Column, Evaluation


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
        notes.append(f"a cell [certified, attacked] has what `{column.certificate}` proves, and what the attack left")
    if column.corruption is not None:
        notes.append(f"under {column.corruption} alone")
    records = [record for model in board.spec.all_models for record in board.records(model, column)]
    if column.imported:
        notes.append(f"best known: images found by others count, too ({who(records) or 'there are none yet'})")
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
    scenario = parse_scenario(dict(record.spec.protocol.resolved), protocol)
    text = f"{unquoted(scenario.title)} (`{unquoted(protocol)}`, digest {record.spec.protocol.digest[:12]})"
    if isinstance(scenario, Attack):
        stages = "; ".join(
            unquoted(f"{stage.name} ") + ", ".join(unquoted(f"{key} = {value}") for key, value in stage.options.items())
            for stage in scenario.stage
        )
        budget = _budget(scenario, {one.spec.model.pixel_std for one in records})
        text += f"; {budget}{'; ' if stages else ''}{stages.strip()}"
    agreement = agreement_of(protocol, scenario)
    text += "" if agreement is None else f"; {in_full(agreement)}"
    text += f"; {told}" if (told := caution(scenario)) else ""
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
    parts += [f"scales {', '.join(f'{scale:g}' for scale in inference.scales)}"] if inference.scales != (1.0,) else []
    return ", ".join([*parts, "mirrored, too"] if inference.flip else parts)


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
    shown = " to ".join(f"{255 * value:.3g}/255" if levels else f"{value:.3g}" for value in ends)
    if len(stds) == 1:
        return f"{text}, {shown} in {'normalised' if pixel else 'pixel'} space, by channel"
    if pixel:
        return f"{text}, {shown} in normalised space, by model and channel"
    return f"{text}, {shown} in pixel space, by model and channel: the models normalise otherwise, so budgets differ"


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
