"""Outcomes change only with a version: small runs of every algorithm give what tests/recorded/outcomes.json holds.

Attacks are driven by hand in double precision, corruptions applied to small pictures, and the loop runs small networks.
Compared are weighted mean changes, up to rounding on other machines, and of the loop what it counts: passes, broken
samples, predictions. What is not run here (options, sizes, other forms of data) can change unseen. Of an attack the
table says, too, within what it searches and with which options: for a new one, write these before the table is made.
"""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from attack_checks import scenario
from tiny_language_model import TinyLanguageModel, some_text

from robustbench_kpca import corrupt, evaluate
from robustbench_kpca._core.randomness import generator
from robustbench_kpca._core.registry import stated_version
from robustbench_kpca._engine import attack_loop
from robustbench_kpca._engine.attack_loop.engine import Engine, build_attack
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attacks.foreign import Foreign
from robustbench_kpca.corruptions import ALL, CORRUPTIONS, PROFILES, SIGNAL_CORRUPTIONS, WORD_CORRUPTIONS
from robustbench_kpca.corruptions._library import LibraryCorruption
from robustbench_kpca.corruptions.words import swapped_words
from robustbench_kpca.evaluation.versions import algorithms
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Stage
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.tasks.language.success import HigherLoss
from robustbench_kpca.verification.conformance.attack import Case
from robustbench_kpca.verification.conformance.watched_query import Wavy, rand

TABLE = Path(__file__).parents[2] / "recorded" / "outcomes.json"
ROWS = json.loads(TABLE.read_text())
COMMAND = "PYTHONPATH=tests python tests/unit/evaluation/test_versions.py"
SHAPE = (3, 6, 6)
THREATS = {
    "linf": Threat("linf", 0.1), "l2": Threat("l2", 1.0), "l1": Threat("l1", 5.0), "l0": Threat("l0", 12),
    "patches": Threat("patches", 2, patch=2, corners="grid"), "words": Threat("words", 0.2, clip=False),
    "unclipped": Threat("linf", 0.1, clip=False),
}  # fmt: skip


def change(before, after):
    """Return the mean change, weighted by where it is."""
    gap = np.abs(np.asarray(after, np.float64) - np.asarray(before, np.float64)).ravel()
    return float((gap * np.linspace(0.5, 1.5, gap.size)).mean())


def driven(threat, name, options):
    """Return how an attack changes each of five samples, and how much it shows the model."""
    if threat.norm == "words":
        model, (x, y) = TinyLanguageModel(12, dtype=torch.float64), some_text(5, 16, 12, torch.float64)
    else:
        model, x = Wavy(SHAPE, dtype=torch.float64), rand(1, 5, *SHAPE)
        y = model(x).argmax(1)
    seen = []
    model.register_forward_pre_hook(lambda _, given: seen.append(change(0, given[0].detach())))
    case, attack = Case(model, x, y, torch.arange(5), threat), build_attack(Stage(attack=name, restarts=1, **options))
    found = case.run(attack, case.begin(attack, case.everything), case.everything)["x"]
    return [*(change(before, after) for before, after in zip(x, found, strict=True)), sum(seen)]


def attacks():
    for name in (*ATTACKS.names(), *(["torchattacks:PGD"] if find_spec("torchattacks") else [])):
        row = ROWS.get(f"attack {name}", {"within": [], "options": {}})
        found = [one for search in row["within"] for one in driven(THREATS[search], name, row["options"])]
        yield f"attack {name}", ATTACKS.get(name).version if name in ATTACKS else Foreign.version, found


def loop():
    """Return what the loop counts, under policies, nested budgets, restarts, and where success is graded."""
    x, model = rand(1, 12, *SHAPE).float(), Wavy(SHAPE, dtype=torch.float32).eval()
    y, found = model(x).argmax(1), []
    for protocol, how in (
        ("pgd20-linf-8_255", {"eps": "4/255", "below": ["1/255", "2/255"]}),
        ("pgd20-linf-8_255", {"eps": "2/255", "policy": "last", "restarts": 2, "draws": 2}),
        ("autoattack-fast-linf-8_255", {"eps": "2/255", "queries": 40}),
        ("autoattack-fast-linf-8_255", {"eps": "2/255", "queries": 40, "policy": "strongest"}),
    ):
        table = evaluate(model, x, y, protocol=protocol, audit=False, quiet=True, batch_size=5, **how).outcomes
        found += [int(table[name].sum()) for name in ("forwards", "backwards", "prediction")]
        found.append(int((table["broken_by"] != "").sum()))
    stage = {"attack": "hotflip", "restarts": 1, "steps": 4, "tries": 3}
    words = scenario([stage], norm="words", space="word", clip=False, policy="strongest", eps=0.2)
    runner, texts = Runner(TinyLanguageModel(12).eval(), 4, torch.device("cpu")), some_text(9, 16, 12)
    seen = []
    Engine(runner, words, HigherLoss(), [str(row) for row in range(9)], 3, seen.append).run(
        iter([(list(range(9)), *texts)])
    )
    return [*found, *(int(sum(getattr(one, name) for one in seen)) for name in ("forwards", "backwards"))]


PICTURE = np.add.outer(np.arange(32) * 2, np.arange(40) * 3)[..., None] + np.array([10, 40, 70])
LINE = "the old men saw their grey sea and a small boat near those rocks"


def corruptions():
    picture, signal, places = PICTURE.astype(np.uint8), np.sin(np.outer([1, 0.3], np.arange(50))), np.arange(1, 60)
    for name in CORRUPTIONS.names():
        apply = partial(corrupt, picture[None], name)
        made = [apply(severity, profile=profile) for profile in PROFILES for severity in range(1, 6)]
        made += [apply(3, mode="exact")] if name != "frost" else []
        yield f"corruption {name}", CORRUPTIONS.get(name).version, [change(picture, one[0]) for one in made]
    if find_spec("imagecorruptions"):
        fog = corrupt(picture[None], "imagecorruptions:fog", 3, mode="exact")[0]
        yield "corruption imagecorruptions:fog", LibraryCorruption.version, [change(picture, fog)]
    lines = [*LINE.split() * 5, "<eos>"] * 9
    vocabulary = sorted({*lines, "AAA", "<unk>"})
    text = np.array([vocabulary.index(word) for word in lines], np.int32)
    for family in ALL[1:]:
        for name in family.names():
            member, made = family.get(name), []
            for parameter in next(iter(member.parameters.values())):
                if family is WORD_CORRUPTIONS:
                    made.append(
                        change(text, swapped_words(text, vocabulary, vocabulary.index("<eos>"), name, parameter, 0))
                    )
                else:
                    given = signal if family is SIGNAL_CORRUPTIONS else places
                    made.append(change(given, member.fast(given, parameter, generator(7))))
            yield f"{family.kind} {name}", member.version, made


def test_a_file_states_the_version_of_its_member():
    for family in (ATTACKS, *ALL):
        assert {family.version(name) == family.get(name).version for name in family.names()} == {True}
    assert stated_version("robustbench_kpca.attacks.foreign") == Foreign.version
    assert stated_version("robustbench_kpca.corruptions._library") == LibraryCorruption.version
    assert algorithms(load_scenario("fgsm-linf-8_255")[1]).keys() == {"attack fgsm", "attack loop"}
    assert ATTACKS.version("mine.py:Attack") is ATTACKS.version("nobody") is None


def differing(made, **tolerance):
    """Say what gives other outcomes than the table; `made`: algorithms, their versions and their outcomes."""
    for name, version, outcomes in made:
        kept = ROWS.get(name, {"version": 0})
        if kept["version"] != version:
            yield f"{name} has version {version}, not yet in the table; make the table again: {COMMAND}"
        elif outcomes != pytest.approx(kept["outcomes"], **tolerance):
            yield f"{name} gives other outcomes: raise its version, then make the table again: {COMMAND}"


def test_outcomes_change_only_with_versions_of_algorithms():
    assert "\n".join(differing(attacks(), rel=1e-5, abs=1e-9)) == ""
    assert "\n".join(differing(corruptions(), rel=1e-4, abs=1e-2)) == ""


def test_outcomes_of_the_loop_change_only_with_its_version(few_resamples):
    assert "\n".join(differing([("attack loop", attack_loop.VERSION, loop())])) == ""


if __name__ == "__main__":
    made = [*attacks(), *corruptions(), ("attack loop", attack_loop.VERSION, loop())]
    rows = {
        name: ROWS.get(name, {}) | {"version": version, "outcomes": [float(f"{one:.7g}") for one in outcomes]}
        for name, version, outcomes in made
    }
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
