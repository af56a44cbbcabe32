"""What only a CUDA device can show: the same verdicts as on the CPU, however the device is made faster."""

import json

import pytest
import torch

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca.attacks.shared.generators import first_uniforms
from robustbench_kpca.cli.main import main

pytestmark = pytest.mark.cuda
DEVICE = "cuda"


@pytest.fixture(scope="module")
def few():
    digits = load_data("digits").in_order()
    return digits.take(range(0, len(digits), len(digits) // 24))


def attacked(few, name="vit_digits_adv", **how):
    settings = {"protocol": "pgd20-linf-8_255", "eps": "18/255", "steps": 5, "batch_size": 16, "audit": False}
    return evaluate(load_model(name), few, **settings | how)


@pytest.fixture(scope="module")
def on_the_cpu(few):
    return {name: attacked(few, name, device="cpu") for name in ("vit_digits_adv", "rpc_symvit_digits")}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("vit_digits_adv", {}),
        ("rpc_symvit_digits", {}),
        ("vit_digits_adv", {"compile": "default"}),
        ("vit_digits_adv", {"compile": "reduce-overhead"}),
        ("vit_digits_adv", {"tf32": True}),
    ],
)
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of much
def test_pgd_breaks_the_same_images_as_on_the_cpu(name, how, few, on_the_cpu):
    ours, theirs = attacked(few, name, device=DEVICE, **how), on_the_cpu[name]
    differ = int((ours.outcomes["broken_by"] != theirs.outcomes["broken_by"]).sum())
    assert differ <= (1 if name == "vit_digits_adv" else 2)  # rounding may decide where an image is at the boundary
    assert ours.environment.compiled == how.get("compile")
    assert ours.environment.float32 == ("matmul tf32, conv tf32" if "tf32" in how else "matmul ieee, conv ieee")
    assert ours.environment.device == torch.cuda.get_device_name()


def test_starts_have_the_bits_of_the_host():
    keys = torch.tensor([0, 5, 2**63 - 1])
    drawn = first_uniforms(keys, 1001, torch.device(DEVICE)).cpu()
    assert torch.equal(drawn, first_uniforms(keys, 1001, keys.device))


def test_the_reference_is_broken_in_part(on_the_cpu):
    assert all(0 <= record.metrics["robust_accuracy"].value < 1 for record in on_the_cpu.values())
    assert on_the_cpu["vit_digits_adv"].metrics["robust_accuracy"].value > 0


def test_the_command_runs_on_the_device(tmp_path):
    assert not main(
        ["eval", "-m", "vit_digits", "-p", "clean", "--limit", "64", "--device", DEVICE, "-o", str(tmp_path), "-q"]
    )
    (record,) = tmp_path.glob("*.record.json")
    environment = json.loads(record.read_text())["environment"]
    assert environment["device"] == torch.cuda.get_device_name()
    assert environment["float32"] == "matmul ieee, conv ieee"
