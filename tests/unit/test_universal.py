"""A universal perturbation: the best one of a linear model in closed form, a transcription, and what is refused."""

import pytest
import torch
from attack_checks import USUAL, rand

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.follow import PlainQuery, WholeBatches
from robustbench_kpca.attacks.universal import Universal, _read, fit
from robustbench_kpca.protocols.threat import Threat

EPS = Threat("linf", 0.05)


def fitted(model, x, y, file, threat=EPS, **how):
    settings = {"epochs": 3, "step_size": threat.eps / 4, "batch": 8} | how
    return fit(PlainQuery(WholeBatches(model)), x, y, threat, file, **settings)


def test_of_a_linear_model_it_is_the_sign_of_the_weight(linear, tmp_path):
    """All labels are 1: no single perturbation of this size lowers more scores than -eps sign(w)."""
    weight = rand(0, 3, 4, 4, dtype=torch.float32) - 0.5
    x = 0.3 + 0.4 * rand(1, 24, 3, 4, 4, dtype=torch.float32)
    bias = 0.03 - float((x.flatten(1) @ weight.flatten()).min())
    model, y = linear(weight, bias), torch.ones(24, dtype=torch.long)
    digest = fitted(model, x[:16], y[:16], tmp_path / "d.safetensors")
    delta, digests = _read(str(tmp_path / "d.safetensors"), digest)
    assert torch.allclose(delta, -0.05 * weight.sign(), atol=1e-7)
    assert len(digests) == 16
    state = Universal(file=str(tmp_path / "d.safetensors"), sha256=digest).start(x[16:], y[16:], EPS, y[16:])
    assert torch.allclose(state["x"], x[16:] - 0.05 * weight.sign(), atol=1e-6)


def test_it_equals_a_transcription(tmp_path):
    model, (x, y) = load_model("vit_digits"), load_data("digits", limit=20).tensors()
    digest = fitted(model, x, y, tmp_path / "d.safetensors", epochs=2)
    delta = torch.zeros(3, 32, 32)
    for _ in range(2):
        for rows in (slice(0, 8), slice(8, 16), slice(16, 20)):
            shown = (x[rows] + delta).clamp(0, 1).requires_grad_()
            torch.nn.functional.cross_entropy(model(shown), y[rows]).backward()
            delta = torch.clip(delta + 0.0125 * torch.sign(shown.grad.sum(0)), -0.05, 0.05)
    assert torch.allclose(_read(str(tmp_path / "d.safetensors"), digest)[0], delta, atol=1e-6)


def protocol(folder, file, digest, eps="16/255"):
    text = USUAL.replace('"8/255"', f'"{eps}"')
    stage = f'[[stage]]\nattack = "universal"\nrestarts = 1\nfile = "{file}"\nsha256 = "{digest}"\n'
    (folder / "p.toml").write_text(f"{text}\n{stage}")
    return folder / "p.toml"


def test_it_is_scored_on_other_images_only(tmp_path, few_resamples):
    model, data = load_model("vit_digits"), load_data("digits", limit=96)
    part, rest = data.take(range(64)), data.take(range(64, 96))
    threat, file = Threat("linf", 16 / 255), tmp_path / "d.safetensors"
    digest = fitted(model, *part.tensors(), file, threat, epochs=6)
    how = {"audit": False, "batch_size": 32}
    record = evaluate("vit_digits", rest, protocol=protocol(tmp_path, file, digest), **how)
    zero = fitted(model, *part.tensors(), tmp_path / "zero", threat, epochs=0)
    clean = evaluate("vit_digits", rest, protocol=protocol(tmp_path, tmp_path / "zero", zero), **how)
    assert record.metrics["robust_accuracy"].value < clean.metrics["robust_accuracy"].value - 0.2
    assert record.outcomes["forwards"].max() == 1
    with pytest.raises(BadInputError, match=r"images that .* was fitted on"):
        evaluate("vit_digits", data, protocol=protocol(tmp_path, file, digest), **how)
    with pytest.raises(BadInputError, match="with changes up to"):
        evaluate("vit_digits", rest, protocol=protocol(tmp_path, file, digest, "8/255"), **how)
    with pytest.raises(BadInputError, match="as the protocol says"):
        evaluate("vit_digits", rest, protocol=protocol(tmp_path, file, "0" * 64), **how)


def test_what_does_not_fit_is_refused(tmp_path, linear):
    x, y = rand(1, 4, 3, 4, 4, dtype=torch.float32), torch.ones(4, dtype=torch.long)
    model, file = linear(rand(0, 3, 4, 4, dtype=torch.float32), 0.0), tmp_path / "d.safetensors"
    for threat, said in ((Threat("l2", 0.5), "norm = "), (Threat("linf", 0.1, targeted=True), "target")):
        with pytest.raises(BadInputError, match=said):
            fitted(model, x, y, file, threat)
    digest = fitted(model, x, y, file)
    with pytest.raises(BadInputError, match="an image"):
        Universal(file=str(file), sha256=digest).start(x[:, :1], y, EPS, y)
    with pytest.raises(BadInputError, match=r"there is no|cannot be read"):
        Universal(file=str(tmp_path / "none"), sha256=digest).start(x, y, EPS, y)
