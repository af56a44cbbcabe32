"""The attack algorithms, one file each. The TOML files in `/attacks` set every parameter of an evaluated attack."""

from robustbench_kpca._core.registry import Family

ATTACKS = Family("attack", __name__, "ATTACK", needs=("start", "step"))
