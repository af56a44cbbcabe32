"""`rbk show`: a record for human eyes, its metrics remade from its outcomes."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json


def show(
    record: Annotated[Path, typer.Argument(help="A *.record.json file.")],
    json: Json = False,
) -> None:
    """Show a record, and check that its metrics follow from its per-sample outcomes."""
    from robustbench_kpca.errors import BadInputError
    from robustbench_kpca.metrics import measure
    from robustbench_kpca.record import load_record
    from robustbench_kpca.scenario import Attack, parse_scenario

    loaded = load_record(record)
    remade = measure(loaded.outcomes)
    for name, stated in loaded.metrics.items():
        if name not in remade or abs(remade[name].value - stated.value) > 1e-12:
            raise BadInputError(
                f"{record}: {name} = {stated.value} does not follow from its outcomes ({remade.get(name)})",
                fix="evaluate again",
            )
    if json:
        _console.show_json(loaded.model_dump(mode="json"))
        return
    spec, environment = loaded.spec, loaded.environment
    scenario = parse_scenario(dict(spec.protocol.resolved), str(record))
    rows = [
        (
            "model",
            f"{spec.model.name} ({spec.model.parameters:,} parameters, sha256 {spec.model.parameters_sha256[:16]})",
        ),
        ("data", f"{spec.data.name} {spec.data.split}, n = {spec.data.n}, digest {spec.data.digest[:16]}"),
        ("protocol", f"{spec.protocol.name}: {scenario.title}, digest {spec.protocol.digest[:16]}"),
        *([("threat", f"{scenario.threat} in pixel space")] if isinstance(scenario, Attack) else []),
        ("seed, batch", f"{spec.seed}, {spec.batch_size}"),
        *((name, f"{estimate} ({estimate.method})") for name, estimate in loaded.metrics.items()),
        ("passes", f"{loaded.passes.forwards:,} forward, {loaded.passes.backwards:,} backward"),
        ("outcomes", f"{loaded.outcomes_file.file}, {loaded.outcomes_file.rows} rows; metrics remade from them: equal"),
        ("made", f"{loaded.created} in {loaded.seconds:.1f} s on {environment.processor}, {environment.device}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in environment.packages.items())),
        ("revision", environment.revision or "installed package"),
        *(("flag", flag) for flag in loaded.flags),
        *(("cite", citation) for citation in loaded.citations),
    ]
    _console.show_table("", ("", ""), rows)
