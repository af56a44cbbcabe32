"""How often the test between two recipes tells equal ones apart, simulated; it aims at `--level`.

    python benchmarks/seeds.py [--trainings 3] [--samples 1000] [--repeats 5000] [--level 0.05]

Scores are x_{s,i} = a_s + e_{s,i}: what all trainings share about a sample cancels. The spread of a_s between the
trainings of each recipe is in units of the standard error that e gives the mean of one training.
"""

import argparse

import numpy as np

from robustbench_kpca.records.trainings import recipes_differ

SPREADS = ((0, 0), (0.5, 0.5), (1, 1), (2, 2), (0, 1), (0, 2), (0, 4), (1, 4))


def rejected(spreads: tuple[float, float], trainings: int, samples: int, repeats: int, level: float) -> float:
    """Return the share of repeats in which p is below the level."""
    rng, found, unit = np.random.default_rng(0), 0, 1 / np.sqrt(samples)
    for _ in range(repeats):
        chance = [rng.normal(0, 1, (trainings, samples)) for _ in spreads]
        pairs = zip(chance, spreads, strict=True)
        numbers = [(one.mean(1) + rng.normal(0, spread * unit, trainings)).tolist() for one, spread in pairs]
        error = np.std(chance[0].mean(0) - chance[1].mean(0), ddof=1) * unit
        found += recipes_differ(*numbers, float(error)) < level
    return found / repeats


def main() -> None:
    """Print one line for each pair of spreads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, usual in (("trainings", 3), ("samples", 1000), ("repeats", 5000)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--level", type=float, default=0.05)
    asked = parser.parse_args()
    for spreads in SPREADS:
        share = rejected(spreads, asked.trainings, asked.samples, asked.repeats, asked.level)
        print(f"spread {spreads[0]:g} and {spreads[1]:g}: {100 * share:.1f} % told apart")


if __name__ == "__main__":
    main()
