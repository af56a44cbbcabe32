"""What a command imports: looked at in a process of its own, without timing anything."""

import subprocess
import sys

from robustbench_kpca.protocols import presets

HEAVY = ("torch", "torchvision", "timm", "pandas", "scipy", "sklearn", "matplotlib", "cv2", "accelerate")
PROGRAM = """
import sys
from robustbench_kpca.cli.main import main
codes = [main(command.split()) for command in sys.argv[1:]]
print("IMPORTED", *sorted(sys.modules), file=sys.stderr)
sys.exit(max(codes))
"""


def imported(*commands):
    """The names of the modules that commands have imported when they end."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *commands], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("IMPORTED")[2].split())


def test_lists_and_help_import_nothing_heavy():
    shelves = ("models", "attacks", "corruptions", "data", "protocols", "metrics", "boards", "packs", "recipes")
    commands = ["--help", "eval --help", "check --help", *(f"list {shelf}" for shelf in shelves)]
    assert not imported(*commands) & set(HEAVY)


def test_help_imports_what_it_needs_only():
    """No more than typer and the options: nothing that prints, reads TOML or looks for names."""
    names = imported("--help")
    assert not {name.partition(".")[0] for name in names} & {"rich", "tomllib", "numpy"}
    assert not names & {"importlib.metadata", "robustbench_kpca._core.registry"}


def test_a_list_of_the_machine_imports_torch_only():
    assert imported("list machine") & set(HEAVY) == {"torch"}


UNKNOWN = [
    (["eval", "-m", "vit_digit", "-p", "clean"], "model"),
    (["eval", "-m", "timm:resnet1", "-p", "clean"], "timm model"),
    (["eval", "-m", "nosuch:build", "-p", "clean"], "source or module of models"),
    (["eval", "-m", "vit_digits", "-p", "clen"], "protocol"),
    (["eval", "-m", "vit_digits", "-p", "{protocol}"], "attack"),
    (["eval", "-m", "vit_digits", "-p", "clean", "--data", "digit"], "data set"),
    (["eval", "-m", "vit_digits", "-p", "ood", "--against", "photo"], "data set"),
    (["diagnose", "vit_digit"], "model"),
    (["diagnose", "vit_digits", "--claim", "low_rnk"], "claim"),
    (["diagnose", "vit_digits", "--claim", "low_rank", "--protocol", "saritas2025"], "measurement of saritas2025"),
    (["diagnose", "vit_digits", "--protocol", "saritas"], "protocol of a diagnosis"),
    (["reproduce", "teo2024", "--table", "99"], "item"),
    (["cross-check", "vit_digit", "-p", "clean"], "model"),
    (["images", "draw", "adversarial", "-m", "vit_digit"], "model"),
    (["images", "draw", "segmentation", "-m", "symvit_shapes", "--data", "shape"], "data set"),
    (["train", "vit_digit"], "recipe"),
    (["reproduce", "teo2023"], "pack"),
    (["board", "render", "digit"], "board"),
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


def test_evaluating_a_bundled_model_imports_no_library_of_models(tmp_path):
    names = imported(f"eval -m rpc_fan_digits -p clean --limit 4 -q -o {tmp_path}")
    assert "torch" in names
    assert not names & {"timm", "torchvision", "sklearn", "scipy", "matplotlib", "pandas", "torch.utils.flop_counter"}
