"""The three commonest uses of each command, shown first by its `--help`."""

from collections.abc import Callable
from inspect import cleandoc
from typing import Any

EXAMPLES = {
    "eval": (
        "rbk eval -m symvit_digits -p clean -p pgd20-linf-2_255 -o runs",
        "rbk eval -m symvit_digits -p pgd20-linf-1_255 --curve 1/255,2/255,4/255 -o runs",
        "rbk eval -m my_model.py:build --data my_photos/ -p autoattack-linf-8_255 --processes 8 -o runs",
    ),
    "audit": (
        "rbk audit symvit_digits_adv",
        "rbk audit symvit_digits_adv --quick",
        "rbk audit my_model.py:build --data my_photos/ --eps 4/255 -o runs",
    ),
    "diagnose": (
        "rbk diagnose rpc_symvit_digits --images 20 -o diagnosis",
        "rbk diagnose timm:deit_tiny_patch16_224 --checkpoint deit_tiny.safetensors --data my_photos/ -o diagnosis",
        "rbk diagnose --compare one --compare other -o both",
    ),
    "check": (
        "rbk check runs --baseline old --fail robust_accuracy:-2pp",
        "rbk check runs --baseline old --fail robust_accuracy:-2pp --junit report.xml",
        "rbk check runs --baseline old --partial --fail robust_accuracy:-2pp --markdown comment.md",
    ),
    "cross-check": (
        "rbk cross-check",
        "rbk cross-check symvit_digits_adv -p pgd20-linf-8_255",
        "rbk cross-check symvit_digits_adv -p fgsm-linf-8_255 --limit 64",
        "rbk cross-check -p common-corruptions-19",
    ),
    "board report": (
        "rbk board report runs",
        "rbk board report runs --metric robust_accuracy",
        "rbk board report runs --to latex --intervals",
    ),
    "reproduce": (
        "rbk reproduce teo2024 --plan",
        "rbk reproduce teo2024 --table 2 --limit 16 --audit none",
        "rbk reproduce teo2024 --data imagenet:DIR --budget 2h",
    ),
    "train": (
        "rbk train symvit_digits -o runs",
        "rbk train symvit_digits --seeds 0,1,2 -o runs",
        "rbk train rpc_symvit_tiny --data imagenet -o runs --resume",
    ),
    "records status": ("rbk records status runs", "rbk records status runs --json"),
    "doctor": (
        "rbk doctor my_attack.py:MyAttack",
        "rbk doctor my_attack.py:MyAttack --set steps=40",
        "rbk doctor my_attention.py:MyAttention",
    ),
    "list": ("rbk list models", "rbk list protocols --json", "rbk list machine"),
    "records show": ("rbk records show runs", "rbk records show runs --json", "rbk records show runs/NAME.record.json"),
    "records verify": (
        "rbk records verify runs/NAME.record.json",
        "rbk records verify runs/NAME.record.json --samples 24",
        "rbk records verify --board digits --samples 48",
    ),
    "records export": (
        "rbk records export runs --to csv -o runs.csv",
        "rbk records export runs --by sample -o samples.csv",
        "rbk records export runs --to json",
        "rbk records export runs --to robustbench",
    ),
    "board enter": (
        "rbk board enter entry.toml -o submissions/NAME --plan",
        "rbk board enter entry.toml -o submissions/NAME",
        "rbk board enter --check submissions/NAME",
    ),
    "board break": (
        "rbk board break vit_digits --board digits --images x_adv.npz --by 'A. Finder'",
        "rbk board break runs/OWN.record.json --images x_adv.pt --by 'A. Finder' --method MALT -o runs",
    ),
    "board render": ("rbk board render digits", "rbk board render my_board/", "rbk board render digits -o page"),
}


def with_examples(name: str, command: Callable[..., Any]) -> str:
    """Return the help of a command: its examples, then its docstring."""
    docstring = cleandoc(command.__doc__ or "")
    if name not in EXAMPLES:
        return docstring
    return "\n".join(["\b", *EXAMPLES[name], "", docstring])
