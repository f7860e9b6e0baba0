"""How often a federated Newton method ends at the pooled optimum, over drawn problems that are hard on numbers.

    python benchmarks/full_covariance.py                    in float32: predictions within 1e-3
    JAX_ENABLE_X64=1 python benchmarks/full_covariance.py   in float64: weights within 1e-8

FedLap-Cov with full covariances, ρ = 1 and Newton's method: 15 federations of each of five kinds with four priors, δ
from 1e-8 to 10, are 300 problems; `tests/pooling.py` draws them and knows the answer.
"""

import argparse
import sys
from pathlib import Path

import jax
import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import pooling

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--federations", type=int, default=15, help="of each kind")
parser.add_argument("--rounds", type=int, default=20)
arguments = parser.parse_args()

precise = jax.config.jax_enable_x64
goal, tolerance = ("weights", 1e-8) if precise else ("predictions", 1e-3)
print(f"{'float64' if precise else 'float32'}, {goal} within {tolerance:g} of the pooled optimum\n")
heads = ("problems", "failed", "no number", "median error", "rounds: median", "most")
print(f"{'kind':18} " + " ".join(f"{head:>14}" for head in heads))
for kind in pooling.KINDS:
    problems = pooling.problems(kind, arguments.federations)
    found = [pooling.Errors.of(problem, pooling.federated(problem, arguments.rounds)[1]) for problem in problems]
    curves = [getattr(each, goal) for each in found]
    rounds = [pooling.settled(curve, tolerance) for curve in curves]
    good = [each for each in rounds if each is not None]
    last = np.array([curve[-1] for curve in curves])
    print(
        f"{kind:18} {len(curves):14} {len(curves) - len(good):14} {np.sum(~np.isfinite(last)):14} "
        f"{np.median(last):14.0e} {np.median(good) if good else np.nan:14.0f} {max(good, default=0):14}"
    )
