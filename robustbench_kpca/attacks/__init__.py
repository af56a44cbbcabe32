"""The attack algorithms, one file each; as evaluated, with every number filled in, they are TOML in `/attacks`."""

from robustbench_kpca.registry import Family

ATTACKS = Family("attack", __name__, "ATTACK")
