"""The audit raises no flag on honest models, and every planted fake that changes a verdict is caught."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from fakes import BASES, FAKES, fake, refusal
from stand_ins import Flat, posing_as
from torch import nn

from robustbench_kpca import attack, evaluate, load_data, load_model, load_record
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.audit import preflight as preflighting
from robustbench_kpca.audit import run as auditing
from robustbench_kpca.audit.checks import CHECKS
from robustbench_kpca.audit.context import AuditContext
from robustbench_kpca.audit.limits import samples_allowed
from robustbench_kpca.audit.model_identity import subject_of
from robustbench_kpca.audit.run import audit
from robustbench_kpca.cli.main import main
from robustbench_kpca.models import bundled
from robustbench_kpca.models.mixing import densities, rpc_layers
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.records.audit import Audit, AuditFile, Check, load_audit
from robustbench_kpca.records.audit_versions import fault, inactive, summary
from robustbench_kpca.records.record import find_records
from robustbench_kpca.tasks import task_named

ADVERSARIAL = sorted(name for name in bundled() if name.endswith("_adv"))
PLAIN = sorted(name for name in bundled() if name.endswith("_digits"))
pytestmark = pytest.mark.usefixtures("few_resamples")
LINF = Threat("linf", 8 / 255)
FLAGGED = [(base, kind, strength) for base in BASES for kind in ("block", "nan", "quantise") for strength in range(3)]
FLAGGED += [(BASES[0], kind, strength) for kind in ("saturate", "shatter", "straight-through") for strength in range(3)]
FLAGGED += [(BASES[1], "saturate", 1), (BASES[1], "saturate", 2)]
TOO_WEAK = [*((base, "shatter", 0) for base in BASES), (BASES[1], "saturate", 0)]
FAINT = (BASES[0], "saturate", 0)  # hides a tenth of the images: too few of 24 to be told from chance, not of 64


@pytest.fixture(scope="module")
def data():
    return load_data("digits", limit=24)


@pytest.fixture
def cheap(monkeypatch):
    """A third of the black boxes' queries."""
    few = {
        "square": ("square-linf-8_255", {"queries": 100}),
        "spsa": ("spsa-linf-8_255", {"steps": 4, "samples": 16}),
        "noise": ("noise-linf-8_255", {"restarts": 3}),
    }
    for name, attack_of_few in few.items():
        monkeypatch.setitem(task_named("classification").compute.audit.attacks, name, attack_of_few)


def flags(done: Audit) -> list[str]:
    return [check.name for check in done.flags]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ADVERSARIAL, *PLAIN])
@pytest.mark.usefixtures("cheap")
def test_no_flag_is_raised_on_honest_models(name, data):
    assert flags(audit(load_model(name), data, batch_size=24)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("base", "kind", "strength"), sorted({*FLAGGED} - {*TOO_WEAK, FAINT}))
@pytest.mark.usefixtures("cheap")
def test_fakes_that_the_audit_flags(base, kind, strength, data):
    model = fake(base, kind, strength)
    assert refusal(model, *data.tensors()) == ""
    assert flags(audit(model, data, batch_size=24)) != []


TELLING = {
    "batch": "preflight",
    "block": "slope",
    "nan": "finite",
    "noise": "preflight",
    "quantise": "gradients",
    "saturate": "other-loss",
    "scale": "preflight",
    "shatter": "slope",
    "straight-through": "slope",
}
"""Kind of fake -> a check that flags it."""


@pytest.mark.parametrize("kind", sorted(FAKES))
@pytest.mark.usefixtures("cheap")
def test_each_kind_of_fake_is_flagged(kind, data):
    few = data.take(range(12))
    level = "full" if kind == "saturate" else "quick"  # only a comparison of attacks sees it
    done = audit(fake(BASES[0], kind, 1), few, batch_size=len(few), level=level)
    assert TELLING[kind] in flags(done)


@pytest.mark.slow
def test_a_faint_fake_needs_more_images():
    assert flags(audit(fake(*FAINT), load_data("digits"), limit=64)) == ["other-loss"]


@pytest.mark.parametrize(("base", "kind", "strength"), TOO_WEAK)
def test_fakes_that_hide_nothing(base, kind, strength, data):
    claimed, known = (
        int((~attack(model, *data.tensors(), "pgd20-linf-8_255").broken).sum())
        for model in (fake(base, kind, strength), load_model(base))
    )
    assert claimed <= known + samples_allowed(len(data))


class Counter(Flat):
    """A linear model that counts its passes in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x):
        self.passes += 1
        return super().forward(x)


class Crash(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x):
        if torch.is_grad_enabled():
            raise RuntimeError("no gradients\nhere")
        return self.inner(x)


@pytest.mark.usefixtures("tiny")
def test_models_that_change_or_crash_under_attack_are_flagged(data):
    done = audit(Counter(), data)
    assert "untouched" in flags(done)
    assert next(check for check in done.flags if check.name == "untouched").values == {"parameters and buffers": 1}
    done = audit(Crash(load_model("vit_digits")), data)
    runs = next(check for check in done.flags if check.name == "runs")
    assert {"pgd", "apgd", "fgsm", "slope", "ascent"} <= set(runs.values)
    assert "(RuntimeError: test_audit.py, line " in runs.saw


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_audit_of_a_model_without_finite_answers_is_refused_in_one_line(bad, data):
    """Also where the first batch is finite."""

    class Broken(Flat):
        def forward(self, x):
            return torch.where((x[:, 0, 0] == last).all(1)[:, None], bad, super().forward(x))

    images, labels = data.tensors()
    last = images[-1, 0, 0]
    images[:-1, 0, 0, 0] = 1 - last[0]
    with pytest.raises(BadInputError, match="on 1 of 24 clean images"):
        audit(Broken(), images, labels, batch_size=8)


def test_logits_that_are_nan_in_other_company_are_an_infinite_change(data):
    class Lonely(Flat):
        def forward(self, x):
            return super().forward(x) * (1 if bool((x[0] != x[-1]).any()) else float("nan"))

    images, labels = (part[:8] for part in data.tensors())
    model, task = Lonely(), task_named("classification")
    context = AuditContext(task, model, Runner(model, 8, torch.device("cpu")), images, labels, "8/255", LINF, 0)
    context.runner.batch_size = 1
    check = CHECKS["neighbours"](context)
    assert check.flag
    assert max(check.values.values()) == 1e30


@pytest.mark.usefixtures("tiny")
def test_a_model_that_says_it_is_stochastic_is_flagged_and_not_asked(data, tmp_path):
    model = load_model("vit_digits")
    model.stochastic = True
    done = audit(model, data, name="m", out=tmp_path)
    assert flags(done) == ["preflight"]
    assert done.subject.gradient_sha256 == "not repeatable"
    assert AuditFile.of(done).read(tmp_path) == done


@pytest.mark.usefixtures("tiny")
def test_few_classes_images_and_right_answers_are_no_failure(data, linear):
    images, _ = data.tensors()
    done = audit(Flat(), images, (Flat()(images).argmax(1) + 1) % 10)
    assert "runs" not in flags(done)
    assert "gradients" not in flags(done)
    images, _ = data.tensors()
    model = linear(torch.ones(3 * 32 * 32), -float(images.flatten(1).sum(1).median())).eval()
    labels = model(images).argmax(1)
    assert "runs" not in flags(audit(model, images, labels))
    assert "runs" not in flags(audit(model, images[:1], labels[:1]))


@pytest.mark.usefixtures("tiny")
def test_an_audit_is_repeatable_and_found_again(data, tmp_path, monkeypatch):
    monkeypatch.setattr(auditing, "revision", lambda: "a")
    model = Flat()
    first = audit(model, data, name="m", out=tmp_path)
    assert audit(model, data, name="m", out=tmp_path) == first
    path = AuditFile.of(first).path(tmp_path)
    assert load_audit(path) == first
    assert {preflighting.REPEATED, preflighting.BATCH_MATES, preflighting.ROUNDING, preflighting.LOST} <= {
        *first.plan.limits.values()
    }
    path.write_bytes(path.read_bytes()[:-100])
    assert audit(model, data, name="m", out=tmp_path).checks == first.checks
    assert audit(model, data, name="m", out=tmp_path, eps="4/255").plan_digest != first.plan_digest
    assert len(list(tmp_path.rglob("*.audit.json"))) == 3, "the damaged one, too"


class Blind(nn.Module):
    """The same weights and the same answers, and no gradient."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.eval()

    def state_dict(self, *args, **kwargs):
        return self.inner.state_dict(*args, **kwargs)

    def forward(self, x):
        return self.inner(x.detach()) + 0 * x.flatten(1).sum(1, keepdim=True)


@pytest.mark.usefixtures("tiny")
def test_a_model_that_hides_its_gradients_does_not_inherit_an_audit(data, tmp_path):
    honest, masked = Flat(), Blind(Flat())
    images, _ = data.tensors()
    shown = images, honest(images).argmax(1)
    first = audit(honest, *shown, name="m", out=tmp_path)
    own = audit(masked, *shown, name="m", out=tmp_path)
    for same in ("parameters_sha256", "probe_sha256", "data_digest"):
        assert getattr(own.subject, same) == getattr(first.subject, same)
    assert own.subject.gradient_sha256 != first.subject.gradient_sha256
    assert "gradients" in flags(own)
    evaluate(masked, *shown, protocol="fgsm-linf-8_255", audit=own)
    with pytest.raises(BadInputError, match="another model"):
        evaluate(masked, *shown, protocol="fgsm-linf-8_255", audit=first)


class Unsteady(nn.Module):
    """Gradients that are other ones at every pass; the answers are not."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.passes = inner, 0
        self.eval()

    def forward(self, x):
        self.passes += 1
        return self.inner(x.detach() + (x - x.detach()) * self.passes)


@pytest.mark.parametrize(("wrapper", "text"), [(Crash, "cannot be taken"), (Unsteady, "not repeatable")])
def test_what_has_no_gradient_of_its_own_is_identified_all_the_same(wrapper, text, data):
    model = wrapper(load_model("vit_digits"))
    samples = task_named("classification").compute.audited(data, 8)
    subject = subject_of(Runner(model, 8, torch.device("cpu")), model, "m", samples, samples.tensors()[0])
    assert subject.gradient_sha256 == text
    assert len(subject.probe_sha256) == 64


def test_a_kept_audit_is_renewed_on_request_and_for_other_code(data, tmp_path, monkeypatch):
    model = Flat()
    monkeypatch.setattr(auditing, "run_checks", lambda bench: [])
    monkeypatch.setattr(auditing, "revision", lambda: "a")
    path = audit(model, data, name="m", out=tmp_path).save(tmp_path)

    path.write_text(re.sub(r'"seconds": [\d.]+', '"seconds": 777.0', path.read_text()))
    assert audit(model, data, name="m", out=tmp_path).seconds == 777
    assert audit(model, data, name="m", out=tmp_path, fresh=True).seconds != 777
    for what, other in (("revision", lambda: "b"), ("version", lambda package: "9")):
        with monkeypatch.context() as patch:
            patch.setattr(auditing, what, other)
            renewed = audit(model, data, name="m", out=tmp_path)
            assert audit(model, data, name="m", out=tmp_path) == renewed == AuditFile.of(renewed).read(tmp_path)
        assert renewed.seconds != 777
        assert getattr(renewed, what) in ("b", "9")


def test_a_fresh_evaluation_renews_the_audit(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(auditing, "run_checks", lambda bench: asked.append(bench) or [])
    monkeypatch.setattr(auditing, "revision", lambda: "a")
    command = ["eval", "-m", "stand_ins:Flat", "--data", "digits", "-p", "fgsm-linf-8_255", "--limit", "8", "-q"]
    command += ["-o", str(tmp_path)]
    for more, times in (([], 1), ([], 1), (["--fresh"], 2)):
        assert main([*command, *more]) == 0
        assert len(asked) == times


@pytest.mark.usefixtures("tiny")
def test_an_rpc_model_is_compared_with_smoother_copies_of_itself(data):
    model = load_model("rpc_symvit_digits")
    pursuits = [layer.pursuit for layer in rpc_layers(model)]
    surrogate = next(check for check in audit(model, data, limit=1).checks if check.name == "surrogate")
    assert set(surrogate.values) == {"0 iterations", "2 iterations"}
    assert [layer.pursuit for layer in rpc_layers(model)] == pursuits


@pytest.mark.parametrize(("lam", "acts"), [(4.0, False), (0.2, True)])
def test_an_audit_marks_what_the_pursuit_changes(lam, acts, data):
    few, (images, _) = data.take(range(8)), data.take(range(8)).tensors()
    model, plain = (load_model("rpc_symvit_digits", lam=value) for value in (lam, float("inf")))
    done = audit(model, few, batch_size=8, level="quick")
    mark = next(check for check in done.checks if check.name == "mechanism")
    with torch.no_grad():
        changed = model(images).argmax(1) != plain(images).argmax(1)
    assert (mark.values["predictions on clean images"], mark.values["changed on clean images"]) == (8, changed.sum())
    assert [mark.values["density in iteration 4"]] == pytest.approx(densities(model, images))
    assert (mark.flag, mark.limit, fault(done)) == (False, None, None)
    assert inactive([done]) == ("" if acts else "mechanism is inactive: switched off, it changes 0 of 16 predictions")


def test_flags_follow_from_numbers():
    with pytest.raises(BadInputError, match="flag"):
        Check(name="n", values={"a": 2}, limit=1, flag=False, saw="", why="")


@pytest.mark.parametrize(
    ("images", "flags", "said"),
    [(2, (), "too few images to flag anything"), (3, (), "no flags"), (2, ("one", "two"), "one, two")],
)
def test_an_audit_of_too_few_images_does_not_say_that_nothing_is_wrong(images, flags, said):
    named = [SimpleNamespace(name=name) for name in flags]
    found = posing_as(Audit, flags=named, plan=SimpleNamespace(images=images))
    assert summary(found) == said


@pytest.mark.parametrize(("n", "allowed"), [(1, 2), (32, 2), (60, 2), (64, 3), (100, 4), (1000, 49)])
def test_how_many_samples_may_answer_badly(n, allowed):
    assert samples_allowed(n) == allowed


@pytest.mark.usefixtures("tiny")
def test_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    common = ["-m", "stand_ins:Flat", "-p", "clean", "-p", "fgsm-linf-8_255"]
    common += ["--data", "digits", "--limit", "8", "-q"]
    assert main(["eval", *common, "-o", "bare", "--audit", "none"]) == 0
    assert not list(tmp_path.rglob("*.audit.json"))
    for _ in range(2):
        assert main(["eval", *common, "-o", "runs"]) == 0
    assert len(list(tmp_path.rglob("*.audit.json"))) == 1
    audited = {record.spec.protocol.name: record.audit for record in map(load_record, find_records("runs"))}
    assert audited["clean"] is None
    assert audited["fgsm-linf-8_255"].plan.images == 8
    capsys.readouterr()
    code = main(["audit", "stand_ins:Flat", "--data", "digits", "--limit", "8", "--json", "-o", "kept"])
    shown = json.loads(capsys.readouterr().out)
    assert code == int(any(check["flag"] for check in shown["checks"]))
    assert shown["plan"]["attacks"]["pgd-doubled"]["protocol"] == "pgd20-linf-8_255+eps=8_255+steps=2"
    assert main(["audit", "vit_digits", "--device", "foo"]) == 2
    assert capsys.readouterr().err.startswith("rbk: error: device 'foo'")
    assert main(["audit", "vit_digits", "--set", "eps=1/255"]) == 2
    assert "model.KEY=VALUE" in capsys.readouterr().err
    assert main(["eval", "-m", "fakes:fake", "--set", "model.base=vit_digits",
                 "--set", "model.kind=scale", "--set", "model.strength=1",
                 "--data", "digits", "-p", "fgsm-linf-8_255", "--limit", "8", "-o", "refused", "-q"]) == 2  # fmt: skip
    assert "meaningless" in capsys.readouterr().err
    assert not (tmp_path / "refused").exists()
