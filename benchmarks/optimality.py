"""Searches for the closest adversarial image in L2 at equal passes: ours, torchattacks, foolbox, the AutoAttack port.

`python benchmarks/optimality.py runs` evaluates two bundled networks on 32 digits, each search at about 60 and about
200 passes an image, into folders of `runs`, and prints local and global optimality. It needs the extra `reference`.
C&W gives up early, and so do DeepFool and the port's FAB: passes are those that records count.
"""

import argparse
from pathlib import Path

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca.cli.main import main as rbk
from robustbench_kpca.protocols.presets import load_protocol
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.verification.equivalents import to_toml

MODELS = ("vit_digits", "vit_digits_adv")
EPS = 5.0  # no search is to fail for want of room


def stages(passes: int) -> dict[str, dict[str, object]]:
    """Return the searches with options that cost about so many passes an image, forward and backward."""
    steps, each, run = passes // 2, passes // 10, max(passes // 9, 1)
    carlini = {"lr": 0.05, "binary_steps": 5, "initial_const": 0.01, "confidence": 0.0}
    fab = {"alpha_max": 0.1, "eta": 1.05, "beta": 0.9, "random_start": False}
    return {
        "fmn": {"steps": steps, "step_size": 1.0, "gamma": 0.05},
        "ddn": {"steps": steps, "gamma": 0.05, "init_norm": 1.0},
        "cw": {"steps": 2 * each, **carlini},
        "fab": {"steps": run, "targets": 3, **fab},
        "torchattacks:CW": {"steps": steps, "lr": 0.05},
        "foolbox:DDNAttack": {"steps": steps},
        "foolbox:L2CarliniWagnerAttack": {"steps": 2 * each, "stepsize": 0.05, "binary_search_steps": 5},
        "foolbox:L2DeepFoolAttack": {},
        "pyautoattack:fab-t": {"n_iter": 3 * run, "n_target_classes": 3},
    }


def main() -> None:
    """Evaluate, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=32)
    asked = parser.parse_args()
    data = load_data("digits", limit=asked.images)
    for passes in (60, 200):
        folder = asked.out / f"{passes}-passes"
        folder.mkdir(parents=True, exist_ok=True)
        for attack, options in stages(passes).items():
            stated = load_protocol("fmn-l2-2")[1] | {"title": f"{attack}, L2", "eps": EPS, "citations": []}
            stated["stage"] = [{"attack": attack, "restarts": 1, **options}]
            protocol = folder / f"{attack.replace(':', '-')}.toml"
            protocol.write_text(to_toml(parse_scenario(stated, attack)))
            for name in MODELS:
                evaluate(load_model(name), data, protocol=protocol, name=name, out=folder, audit=False, quiet=True)
        print(f"\nabout {passes} passes\n", flush=True)
        rbk(["records", "attacks", str(folder)])


if __name__ == "__main__":
    main()
