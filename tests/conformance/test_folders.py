"""Every file in a registry folder keeps its room's promises, so a new file arrives tested."""

import copy
import importlib
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tiny_language_model import TinyLanguageModel, some_text

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.registry import Family
from robustbench_kpca._core.strict import load_toml, validate
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.corruptions import ALL, CORRUPTIONS, corrupt, corruption_for
from robustbench_kpca.data import DATASETS
from robustbench_kpca.data.load import kind_of
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.scenes import Scenes
from robustbench_kpca.data.text import Text
from robustbench_kpca.metrics import METRICS
from robustbench_kpca.models import create_model, place
from robustbench_kpca.models.altered import altered, off_switch
from robustbench_kpca.models.sources import SOURCES
from robustbench_kpca.protocols import presets
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.report.board_spec import BoardSpec
from robustbench_kpca.study.diagnostics import CLAIMS
from robustbench_kpca.tasks import TASKS
from robustbench_kpca.types import Attack, Corruption
from robustbench_kpca.verification.conformance import check_member, corruption
from robustbench_kpca.verification.conformance.attack import Case, keeps_ball_and_state

FAMILIES: list[Family] = [ATTACKS, ATTENTIONS, *ALL, DATASETS, METRICS, CLAIMS, TASKS, SOURCES]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_every_member_imports_and_says_what_it_is(family):
    assert family.names()
    for name in family.names():
        assert family.get(name) is not None
        assert len(family.summary(name)) > 20, f"{name}: the first line of the docstring"


def test_every_protocol_resolves():
    for name in presets.protocols():
        label, scenario = load_scenario(name)
        assert label == name
        assert scenario.title, name
        if scenario.kind == "attack":
            assert scenario.citations, name
            for stage in scenario.stage:
                assert isinstance(validate(ATTACKS.get(stage.attack), stage.options, name), Attack), name
        if scenario.kind == "corruption":
            for corruption in scenario.names if scenario.mode != "stored" else ():
                assert scenario.profile in corruption_for(corruption).parameters, name


def test_every_board_reads_and_every_attack_is_documented_with_its_source():
    for name, path in presets.find("leaderboards").items():
        for evaluation in validate(BoardSpec, load_toml(path), name).evaluations:
            evaluation.resolve()
    for name in ATTACKS.names():
        assert "arXiv:" in importlib.import_module(f"robustbench_kpca.attacks.{name}").__doc__, name


SMALL = {"pathfinder": "side=12,contour=2,distractors=0,test=20"}  # a thousand pictures of the usual size take a minute
LOOPS = {"queries": 40, "steps": 10, "binary_steps": 2, "samples": 8}


def distinct_stages():
    """Every stage of every protocol by its attack: many protocols share theirs. Loops are `LOOPS` long at most."""
    found = {}
    for name in presets.find("attacks"):
        _, scenario = load_scenario(name)
        for stage in getattr(scenario, "stage", ()):
            cut = {key: min(value, LOOPS[key]) for key, value in stage.options.items() if key in LOOPS}
            stage = stage.model_copy(update={"options": stage.options | cut})
            same = (json.dumps(stage.options, sort_keys=True), scenario.norm, scenario.clip)
            found.setdefault(stage.attack, {}).setdefault(same, (scenario.threat, stage))
    return {attack: list(stages.values()) for attack, stages in found.items()}


STAGES = distinct_stages()


@pytest.mark.parametrize("attack", STAGES)
def test_every_attack_keeps_state_per_sample_and_stays_in_its_ball(attack):
    """In single precision under every norm and option; the first stage in double precision, too."""
    for number, (threat, stage) in enumerate(STAGES[attack]):
        for dtype in (torch.float32, torch.float64)[: 2 - (number > 0)]:
            keeps_state_per_sample_and_stays_in_its_ball(threat, stage, dtype)


def keeps_state_per_sample_and_stays_in_its_ball(threat, stage, dtype):
    if threat.norm == "words":
        model = TinyLanguageModel(vocab_size=12, dtype=dtype)
        case = Case(model, *some_text(5, 16, 12, dtype), torch.arange(5), threat)
    else:
        threat = replace(
            threat.on_tokens(2), **({"eps": 4 - 3 * (threat.corners == "anywhere")} if threat.counted else {})
        )  # images are tiny
        weight = torch.randn(48, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
        x = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=dtype)
        case = Case(lambda images: images.flatten(1) @ weight, x, torch.arange(5) % 2, torch.arange(5), threat)
    keeps_ball_and_state(partial(build_attack, stage), case)


PROFILES = ("imagenet_c", "imagecorruptions", "cifar_c")


@pytest.mark.parametrize("name", CORRUPTIONS.names())
def test_every_corruption(name, frost_folder):
    """Fast forms under every profile; exact ones, which are compared with their library elsewhere, under one."""
    assert isinstance(CORRUPTIONS.get(name), Corruption)
    assert set(CORRUPTIONS.get(name).parameters) == {*PROFILES}
    assert all(len(values) == 5 for values in CORRUPTIONS.get(name).parameters.values())
    for profile, mode in (*((profile, "fast") for profile in PROFILES), ("imagenet_c", "exact")):
        how = {"profile": profile, "mode": mode, "frost": frost_folder if mode == "exact" else "generated"}
        for promise in corruption.PROMISES.values():
            promise(lambda image, severity, seed, how=how: corrupt(image[None], name, severity, seed, **how)[0])


@pytest.mark.parametrize("name", CORRUPTIONS.names())
def test_no_corrupted_picture_depends_on_its_batch(name):
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 40, 3), dtype=np.uint8)
    images[1], images[2] = 0, 255
    whole, part = corrupt(images, name, 3, seed=3), corrupt(images[1:], name, 3, seed=3, ids=["1", "2"])
    assert np.array_equal(part, whole[1:])


def test_as_many_tokens_are_outliers_as_the_severity_says():
    images = np.zeros((400, 32, 32, 3), np.uint8)
    for severity in (1, 5):
        squares = corrupt(images, "outlier_tokens", severity).reshape(400, 4, 8, 4, 8, 3).transpose(0, 1, 3, 2, 4, 5)
        hit = squares.reshape(400, 16, -1).any(-1)
        assert (hit.sum(1) == severity).all()
        assert np.abs(hit.mean(0) - severity / 16).max() < 0.1  # each square as often: 4 standard errors
        assert squares[hit.reshape(400, 4, 4)].mean() == pytest.approx(127.5, abs=1)


def broken(findings):
    return [finding for finding in findings if finding.broken]


@pytest.mark.parametrize("name", ATTENTIONS.names())
def test_every_attention_keeps_its_promises(name, fork):
    assert broken(check_member(name)) == []


def without_s(base):
    """Four iterations of the pursuit as they are written, where S is zero: M = K - U."""

    class Twin(base):
        def attend(self, q, k, v):
            dual = torch.zeros_like(k)
            for _ in range(4):
                m = k - dual
                left = m if self.symmetric else q
                low_rank = (left @ m.mT / k.shape[-1] ** 0.5).softmax(-1) @ v
                dual = dual + k - low_rank
            return low_rank

    return Twin


TWINS = {
    **dict.fromkeys(("pro", "twicing", "neutreno", "temperature"), "softmax"),
    **dict.fromkeys(("robust_kde", "median_of_means"), "kde"),
    "rpc": without_s(ATTENTIONS.get("symmetric")), "rpc_asymmetric": without_s(ATTENTIONS.get("softmax")),
}  # fmt: skip
"""Attention whose class says how its mechanism is switched off -> what it then is."""


@pytest.mark.parametrize("name", [name for name in ATTENTIONS.names() if getattr(ATTENTIONS.get(name), "off", "")])
def test_without_its_mechanism_an_attention_is_its_plain_twin(name, fork):
    options = {"lam": 0.05} if name.startswith("rpc") else {}
    model, images = create_model("vit_digits", attention=name, **options).double(), torch.rand(2, 3, 32, 32).double()
    twin = place(copy.deepcopy(model), TWINS[name])
    with torch.no_grad(), altered(model, off_switch(model)):
        assert torch.allclose(model(images), twin(images), atol=1e-12)
    assert not torch.allclose(model(images), twin(images), atol=1e-6)


ASKED = [name for name in METRICS.names() if {"clean", "attack"} & {*METRICS.get(name).kinds}]


@pytest.mark.parametrize("name", [name for name in ASKED if METRICS.get(name).task == "classification"])
def test_every_metric_keeps_its_promises(name, few_resamples):
    assert broken(check_member(name)) == []


IN = {"imagenet-100": "imagenet", "pixels": "cifar10", "wikitext103": "wikitext103/wiki.test.tokens"}
"""What of RBK_DATA a set needs, where that is no folder of its name."""


@pytest.mark.parametrize("name", DATASETS.names())
def test_every_data_set(real_data, name, monkeypatch):
    load, request, needed = DATASETS.get(name), Request(SMALL.get(name, "")), IN.get(name, name)
    try:
        with monkeypatch.context() as patch:
            patch.delenv("RBK_DATA", raising=False)
            data = load(request)
    except BadInputError as error:
        if "RBK_DATA" not in str(error) and f"give {needed}:FOLDER" not in str(error):
            raise
        real_data(needed)
        data = load(request)
    assert isinstance(data, kind_of(name)), "what load declares is what it returns"
    images = [data.form.tensor(data.image(index)) for index in range(5)]
    for index, image in enumerate(images):
        assert image.dtype == torch.float32
        data.form.check(image[None])
        assert data.size(index) == image.shape[1:]
        assert torch.equal(data.form.tensor(data.form.array(data.image(index))), image), "there and back again"
    if isinstance(data, Scenes):
        assert data.take(range(5)).mask(4).tolist() == data.mask(4).tolist()
        assert len(data.class_names) == data.classes
    elif isinstance(data, Text):
        assert (data.take([4]).image(0) == data.image(4)).all()
        assert len(data.vocabulary) == data.classes
    elif data.classes:
        assert data.take(range(5)).tensors()[1].tolist() == data.labels[:5]
    else:
        with pytest.raises(BadInputError, match="has no labels"):
            assert data.labels
    assert data.digest() == data.take(range(len(data) - 1, -1, -1)).digest()
    assert data.digest() != data.take(range(len(data) - 1)).digest()
