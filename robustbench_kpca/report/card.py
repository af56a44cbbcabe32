"""A model card from the records of one model: Markdown whose head is Hugging Face metadata with a `model-index`.

The metadata are those of https://huggingface.co/docs/hub/model-cards: each metric of each record is one result.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.web.marks import code, plain
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.spec import Environment
from robustbench_kpca.report.table import spell
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.titles import title_of


def card(records: Sequence[Record], task: str | None = None) -> str:
    """Return the card of one model.

    Args:
        records: of one model, with the same weights and options.
        task: Hugging Face's name of the task, such as `text-classification`; None: that of images.

    Raises:
        BadInputError: no record, or records of several models.
    """
    models = {(record.spec.model.name, *record.spec.model.network) for record in records}
    if len(models) != 1:
        names = ", ".join(sorted(name for name, *_ in models)) or "none"
        raise BadInputError(f"records of {len(models)} models ({names})", expected="records of one model")
    hub_task = task or task_named(records[0].spec.data.task).pages.hub_task
    head = ["---", *_yaml(metadata(records, hub_task)), "---"]
    return "\n".join([*head, "", *_body(records)]) + "\n"


def metadata(records: Sequence[Record], task: str) -> dict[str, Any]:
    """Return the metadata: tags, task and the `model-index` with one result for each data set."""
    results: dict[tuple[str, str], dict[str, Any]] = {}
    for record in records:
        data, protocol = record.spec.data, record.spec.protocol.name
        result = results.setdefault(
            (data.name, data.split),
            {
                "task": {"type": task},
                "dataset": {"type": data.name, "name": data.name, "split": data.split},
                "metrics": [],
            },
        )
        result["metrics"] += [
            {
                "type": name,
                "value": estimate.value,
                "name": f"{metric_for(name).title} ({protocol})",
                "args": {"protocol": protocol, "n": estimate.n, "low": estimate.low, "high": estimate.high},
            }
            for name, estimate in record.metrics.items()
        ]
    index = {"name": records[0].spec.model.name, "results": list(results.values())}
    return {
        "library_name": "robustbench-kpca",
        "pipeline_tag": task,
        "tags": ["adversarial-robustness", "robustbench-kpca"],
        "model-index": [index],
    }


def _body(records: Sequence[Record]) -> list[str]:
    model = records[0].spec.model
    lines = [
        f"# {plain(model.name)}",
        "",
        f"{model.parameters:,} parameters, from {plain(model.source)}; SHA-256 {code(model.parameters_sha256)}.",
        "",
        "## Robustness",
        "",
        "Measured with robustbench-kpca. Brackets are 95 % intervals.",
        "",
        "| data | n | protocol | metric | value | audit |",
        "|---|---|---|---|---|---|",
    ]
    for record in records:
        data, audit = record.spec.data, record.audit_words or "–"
        for name, estimate in record.metrics.items():
            metric = metric_for(name)
            cells = (
                f"{data.name} {data.split}",
                str(estimate.n),
                record.spec.protocol.name,
                metric.unit.label(metric.title),
                spell(estimate, metric.unit),
                audit,
            )
            lines.append(f"| {' | '.join(map(plain, cells))} |")
    protocols = {record.spec.protocol.name: record for record in records}
    lines += ["", "## Protocols", ""]
    for name, record in protocols.items():
        scenario = parse_scenario(dict(record.spec.protocol.resolved), name)
        title, digest = plain(title_of(name, scenario)), record.spec.protocol.digest[:12]
        lines.append(f"- {plain(name)}: {title}; digest {plain(digest)}, seed {record.spec.seed}")
    lines += [f"- flag: {plain(flag)}" for flag in _distinct(flag for record in records for flag in record.flags)]
    lines += ["", "## How it was measured", "", *_distinct(_where(record.environment) for record in records)]
    citations = _distinct(citation for record in records for citation in record.citations)
    return lines + (["", "## Citations", "", *(f"- {plain(text)}" for text in citations)] if citations else [])


def _where(environment: Environment) -> str:
    versions = ", ".join(f"{plain(name)} {plain(version)}" for name, version in environment.packages.items())
    return f"On {plain(environment.device)} with {versions}."


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _yaml(value: Mapping[str, Any], indent: str = "") -> list[str]:
    """Write a mapping as block YAML; texts are quoted as in JSON, which YAML reads alike."""
    lines = []
    for key, content in value.items():
        if isinstance(content, Mapping):
            lines += [f"{indent}{key}:", *_yaml(content, f"{indent}  ")]
        elif isinstance(content, list) and content and isinstance(content[0], Mapping):
            lines.append(f"{indent}{key}:")
            for item in content:
                first, *rest = _yaml(item, f"{indent}  ")
                lines += [f"{indent}- {first.strip()}", *rest]
        else:
            lines.append(f"{indent}{key}: {json.dumps(content)}")
    return lines
