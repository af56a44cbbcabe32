"""What a command imports: looked at in a process of its own, without timing anything."""

import os
import subprocess
import sys

import pytest

from robustbench_kpca.protocols import presets

HEAVY = ("torch", "torchvision", "timm", "pandas", "scipy", "sklearn", "matplotlib", "cv2", "accelerate")
PROGRAM = """
import sys
from robustbench_kpca.cli.main import main
code = main(sys.argv[1:])
print("IMPORTED", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


def imported(*arguments, **environment):
    """The names of the modules that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("IMPORTED")[2].split())


@pytest.mark.parametrize(
    "command",
    [
        ["--help"], ["eval", "--help"], *(["list", what] for what in (
            "models", "attacks", "corruptions", "data", "protocols", "metrics", "boards", "packs", "recipes"
        )),
    ],
    ids=" ".join,
)  # fmt: skip
def test_lists_and_help_import_nothing_heavy(command):
    assert not imported(*command) & set(HEAVY)


def test_help_imports_what_it_needs_only():
    """No more than typer and the options: nothing that prints, reads TOML or looks for names."""
    assert not [name for name in imported("--help") if name.partition(".")[0] in ("rich", "tomllib")]
    assert not imported("--help") & {"importlib.metadata", "robustbench_kpca._core.registry"}


def test_a_list_of_the_machine_imports_torch_only():
    assert imported("list", "machine") & set(HEAVY) == {"torch"}


UNKNOWN = [
    (["eval", "-m", "vit_digit", "-p", "clean"], "model"),
    (["eval", "-m", "timm:resnet1", "-p", "clean"], "timm model"),
    (["eval", "-m", "torchvision:resnet1", "-p", "clean"], "torchvision classifier"),
    (["eval", "-m", "nosuch:build", "-p", "clean"], "source or module of models"),
    (["eval", "-m", "vit_digits", "-p", "clen"], "protocol"),
    (["eval", "-m", "vit_digits", "-p", "{protocol}"], "attack"),
    (["eval", "-m", "vit_digits", "-p", "clean", "--data", "digit"], "data set"),
    (["eval", "-m", "vit_digits", "-p", "ood", "--against", "photo"], "data set"),
    (["audit", "vit_digits", "--sibling", "vit_digit"], "model"),
    (["diagnose", "vit_digit"], "model"),
    (["diagnose", "vit_digits", "--claim", "low_rnk"], "claim"),
    (["diagnose", "vit_digits", "--claim", "low_rank", "--protocol", "saritas2025"], "measurement of saritas2025"),
    (["diagnose", "vit_digits", "--protocol", "saritas"], "protocol of a diagnosis"),
    (["reproduce", "teo2024", "--table", "99"], "item"),
    (["cross-check", "vit_digit", "-p", "clean"], "model"),
    (["images", "draw", "adversarial", "-m", "vit_digit"], "model"),
    (["images", "draw", "segmentation", "-m", "vit_digit"], "model"),
    (["train", "vit_digit"], "recipe"),
    (["reproduce", "teo2023"], "pack"),
    (["board", "render", "digit"], "board"),
    (["board", "plan", "digit"], "board"),
    (["images", "corrupt", "a", "b", "--corruption", "frog"], "corruption"),
]


def test_an_unknown_name_is_told_before_torch_is_imported(tmp_path):
    """All in one process, which has imported nothing heavy at its end."""
    protocol = tmp_path / "mine.toml"
    protocol.write_text(presets.protocols()["pgd20-linf-8_255"].read_text().replace('"pgd"', '"pdg"'))
    calls = [[word.format(protocol=protocol) for word in words] for words, _ in UNKNOWN]
    program = f"import sys\nfrom robustbench_kpca.cli.main import main\ncodes = [main(words) for words in {calls}]\n"
    program += "print(*codes, *({'torch', 'timm', 'torchvision', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2"] * len(UNKNOWN), done.stderr
    for line, (_, kind) in zip(done.stderr.splitlines(), UNKNOWN, strict=True):
        assert f"there is no {kind} named" in line
        assert len(line) < 400


@pytest.mark.parametrize("model", ["vit_digits", "rpc_fan_digits"])
def test_evaluating_a_bundled_model_imports_no_library_of_models(tmp_path, model):
    names = imported("eval", "-m", model, "-p", "clean", "--limit", "4", "-q", "-o", str(tmp_path))
    assert "torch" in names
    assert not names & {"timm", "torchvision", "sklearn", "scipy", "matplotlib", "pandas", "torch.utils.flop_counter"}
