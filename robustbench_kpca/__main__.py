"""`python -m robustbench_kpca` runs the command `rbk`."""

from robustbench_kpca.cli.main import run

if __name__ == "__main__":
    run()
