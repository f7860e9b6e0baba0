"""A regression over ten sites beside statsmodels on the pooled rows, turn by turn in one run; and memory.

    python benchmarks/regression.py [--rows 100000] [--repeats 7]      the time of both
    python benchmarks/regression.py --memory 1000000                   a fit of so many rows in a process of its own

Both get the same arrays; the formula's work is part of ours, and statsmodels' summary numbers are part of theirs.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

import fedlap

SITES, COLUMNS = 10, 30  # the intercept is one of the columns


def federation(rows: int) -> dict[str, dict[str, np.ndarray]]:
    """Sites with as many rows each, of columns on different scales."""
    rng = np.random.default_rng(0)
    slopes, scales = rng.normal(0, 0.3, COLUMNS - 1), 10.0 ** rng.integers(-2, 3, COLUMNS - 1)
    sites = {}
    for k in range(SITES):
        x = rng.normal(size=(rows // SITES, COLUMNS - 1))
        chance = 1 / (1 + np.exp(-(x @ slopes)))
        columns = {f"x{j}": x[:, j] * scales[j] for j in range(COLUMNS - 1)}
        sites[f"site_{k}"] = {"y": (rng.random(len(x)) < chance).astype(np.float64), **columns}
    return sites


FORMULA = "y ~ " + " + ".join(f"x{j}" for j in range(COLUMNS - 1))


def compare(rows: int, repeats: int) -> None:
    """Print the times of both, their ratio, and how far the answers are apart."""
    import statsmodels.api as sm

    sites = federation(rows)
    pooled = {name: np.concatenate([frame[name] for frame in sites.values()]) for name in sites["site_0"]}
    x = np.column_stack([np.ones(rows // SITES * SITES), *(pooled[f"x{j}"] for j in range(COLUMNS - 1))])
    ours, theirs, ratios = [], [], []
    fit = whole = None
    for _ in range(repeats):
        began = time.perf_counter()
        fit = fedlap.glm(FORMULA, sites, family="binomial")
        _ = fit.bse, fit.llf
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        whole = sm.GLM(pooled["y"], x, family=sm.families.Binomial()).fit()
        _ = whole.bse, whole.llf
        theirs.append(time.perf_counter() - began)
        ratios.append(ours[-1] / theirs[-1])
    assert fit is not None and whole is not None
    print(f"{rows:,} rows, {COLUMNS} columns, {SITES} sites, binomial, {repeats} turns")
    for name, times in (("fedlap.glm", ours), ("statsmodels, pooled", theirs)):
        print(f"  {name:<20} median {statistics.median(times):.3f} s   fastest {min(times):.3f} s")
    print(f"  ratio (median of turns) {statistics.median(ratios):.2f}; {fit.rounds} rounds")
    apart = np.abs(fit.params.to_numpy() / whole.params - 1).max(), np.abs(fit.bse.to_numpy() / whole.bse - 1).max()
    print(f"  largest relative difference: coefficients {apart[0]:.1e}, standard errors {apart[1]:.1e}")


def remember(rows: int) -> None:
    """Print the memory that a fit of so many rows needs, its data included."""
    sites = federation(rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    began = time.perf_counter()
    fit = fedlap.glm(FORMULA, sites, family="binomial")
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{rows:,} rows: {seconds:.1f} s, {fit.rounds} rounds; at most {peak:.2f} GB, {before:.2f} before the fit")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory is None:
        compare(arguments.rows, arguments.repeats)
    elif arguments.alone:
        remember(arguments.memory)
    else:
        subprocess.run([sys.executable, __file__, "--memory", str(arguments.memory), "--alone"], check=True)
