"""A sweep of a few seconds, and the same of a network, for the tests of sweeps."""

from fedlap.experiments import sweep as cells
from fedlap.experiments.runner import Finished, carry_out

TABLE = {
    "federation": {"dataset": "heart"},
    "model": {"name": "logistic"},
    "train": {"rounds": 3, "seeds": [1, 2]},
    "solver": {"name": "adam", "batch": 32},
    "algorithms": {"fedavg": {}, "fedlap": {"rho": "evenly"}},
    "sweep": {
        "validation": 0.25,
        "every": {"epochs": [1, 2]},
        "fedlap": {"delta": [0.1, 1.0], "learning_rate": [1e-2]},
    },
}
NETWORK = {**TABLE, "model": {"name": "mlp", "hidden": [800]}}  # 12,802 weights: too many for a compiled batch


def make(table=TABLE, **sweep):
    return cells.make("tiny", {**table, "sweep": {**table["sweep"], **sweep}})


def run(sweep, path, **options):
    events = list(carry_out(sweep, path, **options))
    return events, [result for event in events if isinstance(event, Finished) for result in event.results]
