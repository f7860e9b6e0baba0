"""A run spread over devices: `python spread.py` with as many as XLA_FLAGS forces, or a process of several.

    python spread.py ADDRESS COUNT NUMBER

prints one line of JSON: how many devices and processes there are, and the weights of some runs.
"""

import json
import sys

import jax
import numpy as np

ROUNDS = 3
RUNS = {  # of each kind of sum: what lasts and what does not, labels, all clients and some of them
    "fedlap_cov, all": ("fedlap_cov", 1.0),
    "fedlap_cov, three": ("fedlap_cov", 3),
    "fedavg, three": ("fedavg", 3),
    "fedlap_func, three": ("fedlap_func", 3),
}


def federation():
    import fedlap

    rng = np.random.default_rng(5)
    clients = [(rng.normal(size=(n, 3)), rng.integers(0, 3, n)) for n in (3, 9, 5, 12, 4, 7, 6)]
    return fedlap.Federation.from_arrays(clients=clients, test=clients[0], classes=3)


def run(name, participation, engine):
    """The weights after some rounds."""
    from methods import after, simulation

    state = after(simulation(name, federation(), participation=participation, engine=engine), ROUNDS)
    return np.asarray(state.server.w).tolist()


def main():
    jax.config.update("jax_enable_x64", True)
    if sys.argv[1:]:
        address, count, number = sys.argv[1:]
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, int(count), int(number))
    found = {name: run(*what, "sharded") for name, what in RUNS.items()}
    print(json.dumps({"devices": jax.device_count(), "processes": jax.process_count(), "weights": found}))


if __name__ == "__main__":
    main()
