"""What a reader of records accepts, every renderer survives: a changed record is shown, or refused in one line."""

import copy
import json
import random
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from robustbench_kpca._core.errors import BenchmarkError
from robustbench_kpca.cli.records_show import show
from robustbench_kpca.metrics import measure
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records.collection import Records
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.report.compare import Rule, annotations, comment, compare, junit, table
from robustbench_kpca.report.consistency import load_all
from robustbench_kpca.report.export import export
from robustbench_kpca.report.inferred import infer
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.report.render import write_board, write_report

BOARDS = Path(__file__).parents[2] / "leaderboards"
MUTANTS = 25
"""Of each record."""
SEEDS = (
    "digits-attacks/records/rpc_symvit_digits__digits-test__autoattack-linf-8_255__*",
    "league-plugin/records/deit_tiny_softmax__*__patches-1__*",
    "league-plugin/records/deit_tiny_temperature2__*__clean__*",
    "imagenet-real/records/deit_tiny__*__teo2024-cut-off__*",
    "imagenet-real/records/deit_tiny__*__imagenet-c-generated__*",
    "grammar/records/identity_lm_tiny__*__random-swap-words-1.5__*",
    "shapes/records/symvit_shapes__*__seg-pgd20-linf-4_255__*",
    "teo2024/records/rpc_symvit_digits__digits-against-photos-test__ood__*",
    "shapes/records/rpc_symvit_shapes__*__segmentation__*",
    "teo2024/records/symvit_shapes__*__shapes-c__*",
)
"""Small committed records of every task and kind of protocol."""
ODD = (0, -1, 1, 2, 10**30, 0.0, -0.0, 1e-320, 1e308, float("nan"), float("inf"), "", " ", "0", "nan", "x" * 300,
       "a|b", "<script>", "[x](y)", "../x", "\n", "{}", "{0}", "%s", "\\", "clean", None, True, False, [], {},
       [[]])  # fmt: skip


def leaves(value, path=()):
    """Yield the path of everything in a JSON document."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))


def mutate(content, rng):
    """Change one to three places, and let the digests follow, as a forger would."""
    made = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        *above, key = rng.choice(list(leaves(made)))
        place = made
        for step in above:
            place = place[step]
        kind = rng.randrange(6)
        if kind == 0:
            del place[key]
        elif kind == 1 and isinstance(place, list):
            place.insert(0, place[key])
        elif kind == 1 and isinstance(key, str):
            place[rng.choice(("", "a|b", "<b>", "x" * 300, "0"))] = place[key]
        elif kind == 2 and isinstance(place[key], int | float):
            place[key] = rng.choice((-place[key], place[key] * 1e6, place[key] + 1, place[key] / 3))
        else:
            place[key] = rng.choice(ODD)
    with suppress(Exception):
        scenario = parse_scenario(dict(made["spec"]["protocol"]["resolved"]), "mutant")
        made["spec"]["protocol"]["digest"] = scenario.digest()
    return made


def renderers(records, folder, honest, board, to):
    """Return every renderer of the records of a folder, in every format."""
    shown = (BOARDS / board / "board.toml").is_file()
    rules = [Rule.parse(f"{name}:-2pp") for name in ("clean_accuracy", "robust_accuracy")]
    return [
        lambda: show([folder]),
        lambda: shown and write_board(load_board(board, find_records(folder)), to),
        lambda: write_report(infer(records, title="T", command="C")[0], to),
        lambda: records._repr_html_() + repr(records[0]),
        *(partial(comparison, records, honest, rule) for rule in rules),
        *(partial(export, records, form) for form in ("csv", "json")),
        lambda: export(records, "csv", "sample"),
    ]


def comparison(records, honest, rule):
    found = compare(records, honest, [rule], partial=True)
    return junit(found), comment(found), table(found), annotations(found, Path("baseline"))


def seed_of(pattern):
    """Return the path of a committed record, and its content with the metrics that few resamples give."""
    (path,) = BOARDS.glob(f"{pattern}.record.json")
    record = load_record(path)
    scenario = parse_scenario(dict(record.spec.protocol.resolved), pattern)
    made = record.model_copy(update={"metrics": measure(record.outcomes, scenario)})
    return path, json.loads(path.read_text()) | {"metrics": json.loads(made.model_dump_json())["metrics"]}


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize(
    "pattern",
    [pytest.param(one, marks=[pytest.mark.slow] * (one != SEEDS[0])) for one in SEEDS],
    ids=lambda text: "-".join(text.split("__")[::2]),
)
def test_every_renderer_survives_what_the_reader_accepts(pattern, tmp_path):
    path, content = seed_of(pattern)
    folder, honest = tmp_path / "records", tmp_path / "honest"
    for place in (folder, honest):
        place.mkdir()
        shutil.copy(path.parent / content["outcomes_file"]["file"], place)
        if (audit := content.get("audit")) is not None:
            (place / "audits").mkdir()
            shutil.copy(path.parent / "audits" / audit["file"], place / "audits")
        (place / path.name).write_text(json.dumps(content))
    honest, read = load_all([honest]), 0
    rng = random.Random(pattern)
    for number in range(MUTANTS):
        (folder / path.name).write_text(json.dumps(mutate(content, rng) if number else content))
        with suppress(BenchmarkError):
            records = Records(load_all([folder]))
            read += 1
            for render in renderers(records, folder, honest, pattern.partition("/")[0], tmp_path / "page"):
                with suppress(BenchmarkError):
                    render()
    assert read > 1
