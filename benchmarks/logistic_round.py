"""A FedLap round of UCI-Credit size: fedlap against an eager PyTorch loop and a hand-written numba loop.

    pip install -e .[benchmark] && python benchmarks/logistic_round.py

10 clients (5 of 36 and 5 of 67 points), 42 features, two logits, batch 4, 10 local epochs of Adam. All three do the
same arithmetic on the same minibatches from the same start, and their answers are compared first. Then 27 runs
(3 seeds × 9 values of δ) as one batch of fedlap, against one run. With `--clients 10 100 1000` rounds of so many
clients of 20 rows instead, in one vmap, against numba; both use one core.
"""

import argparse
import os
import statistics

import jax
import numpy as np
from timing import interleave, show

import fedlap
from fedlap.engines import batch as grid

DELTA, EPOCHS, BATCH, RATE = 1.0, 10, 4, 1e-3


def federation(sizes=(36,) * 5 + (67,) * 5):
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(n, 42)).astype(np.float32), rng.integers(0, 2, n)) for n in sizes]
    return fedlap.Federation.from_arrays(clients=clients, test=clients[0])


def torch_round(data, rows, w_g, v):
    """What people write: a module, an optimiser and a loop; the dual and the prox are added to the gradient."""
    import torch

    torch.set_num_threads(1)
    inputs, labels = torch.tensor(data.inputs), torch.tensor(data.labels, dtype=torch.long)
    sizes, shares = data.sizes, data.sizes / data.sizes.sum()
    batches = [[torch.tensor(r[r >= 0].astype(np.int64)) for r in of_client if (r >= 0).any()] for of_client in rows]
    centre, duals = torch.tensor(w_g), torch.tensor(v)

    def work():
        new = duals.clone()
        for k, of_client in enumerate(batches):
            model = torch.nn.Linear(42, 2, bias=False)
            with torch.no_grad():
                model.weight.copy_(centre)
            optimiser = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
            scale = DELTA / float(sizes[k])
            for batch in of_client:
                optimiser.zero_grad(set_to_none=True)
                loss = torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
                loss.backward()
                with torch.no_grad():
                    model.weight.grad.add_(duals[k] + model.weight - centre, alpha=scale)
                optimiser.step()
            new[k] += float(shares[k]) * (model.weight.detach() - centre)
        return new.sum(0).numpy()

    return work


def numba_round(data, rows, w_g, v):
    """The limit: scalar loops, compiled."""
    import numba

    @numba.njit(fastmath=True, cache=False)
    def loop(inputs, labels, rows, sizes, shares, centre, duals):
        features = inputs.shape[1]
        answer = np.zeros((2, features), np.float32)
        gradient = np.zeros_like(centre)
        for k in range(len(rows)):
            w, m, s = centre.copy(), np.zeros_like(centre), np.zeros_like(centre)
            scale, step = np.float32(DELTA) / sizes[k], 0
            for i in range(rows.shape[1]):
                count = 0
                for row in rows[k, i]:
                    count += row >= 0
                if count == 0:
                    break
                step += 1
                for c in range(2):
                    for j in range(features):
                        gradient[c, j] = scale * (duals[k, c, j] + w[c, j] - centre[c, j])
                for row in rows[k, i]:
                    if row < 0:
                        continue
                    a = np.float32(0)
                    b = np.float32(0)
                    for j in range(features):
                        a += w[0, j] * inputs[row, j]
                        b += w[1, j] * inputs[row, j]
                    p = np.float32(1) / (np.float32(1) + np.exp(b - a))
                    e = (p - np.float32(labels[row] == 0)) / np.float32(count)
                    for j in range(features):
                        gradient[0, j] += e * inputs[row, j]
                        gradient[1, j] -= e * inputs[row, j]
                first = np.float32(1 / (1 - 0.9**step))
                second = np.float32(1 / (1 - 0.999**step))
                for c in range(2):
                    for j in range(features):
                        g = gradient[c, j]
                        m[c, j] = np.float32(0.9) * m[c, j] + np.float32(0.1) * g
                        s[c, j] = np.float32(0.999) * s[c, j] + np.float32(0.001) * g * g
                        w[c, j] -= np.float32(RATE) * m[c, j] * first / (np.sqrt(s[c, j] * second) + np.float32(1e-8))
            answer += duals[k] + shares[k] * (w - centre)
        return answer

    sizes, shares = data.sizes.astype(np.float32), (data.sizes / data.sizes.sum()).astype(np.float32)
    return lambda: loop(data.inputs, data.labels, rows, sizes, shares, w_g, v)


class Round:
    """The second round of a federation, by fedlap and by others."""

    def __init__(self, data):
        solver = fedlap.adam(epochs=EPOCHS, batch=BATCH, learning_rate=RATE)
        algorithm, model = fedlap.FedLap(delta=DELTA), fedlap.logistic()
        self.run = fedlap.Simulation.of(algorithm, data, model, solver=solver, engine="vectorised")
        self.state = self.run.step(self.run.init())  # so that the duals are not zero
        self.plan = self.run.plan(1)
        w_g = np.asarray(self.state.server.w.flat).reshape(2, 42)
        v = np.asarray(self.state.clients.factor.v.rows).reshape(-1, 2, 42)
        self.problem = data, self.plan.batches.rows, w_g, v

    def ours(self):
        return jax.block_until_ready(self.run.step(self.state, self.plan))

    def drawn_and_ours(self):
        """As `simulate` does it: the next round's minibatches are drawn while this one is at work."""
        state = self.run.step(self.state, self.plan)
        self.run.plan(1)
        return jax.block_until_ready(state)

    def compare(self, name, other):
        answer = np.asarray(self.ours().server.w.flat).reshape(2, 42)
        print(f"largest difference from {name}: {np.abs(answer - other).max():.1e}")


def many_clients(counts, repeats):
    """Rounds of more and more clients, each with 20 rows; the column of medians divided by them is a client's time."""
    for count in counts:
        of_all = Round(federation((20,) * count))
        numba = numba_round(*of_all.problem)
        of_all.compare("numba", numba())
        drawn = "fedlap, the next minibatches drawn meanwhile"
        contestants = {"fedlap": of_all.ours, drawn: of_all.drawn_and_ours, "numba": numba}
        seconds = interleave(contestants, repeats, warm_up=2)
        show(f"{count:,} clients", seconds, "numba")
        each = {name: 1e6 * statistics.median(values) / count for name, values in seconds.items()}
        print("microseconds a client: " + ", ".join(f"{name} {value:.2f}" for name, value in each.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--clients", type=int, nargs="+", help="rounds of so many clients of 20 rows instead")
    arguments = parser.parse_args()
    repeats = arguments.repeats
    print(f"load {os.getloadavg()[0]:.1f}")
    if arguments.clients:
        return many_clients(arguments.clients, repeats)
    data, seeds = federation(), [0, 1, 2]
    this = Round(data)
    ours, solver = this.ours, this.run.solver
    pytorch, numba = torch_round(*this.problem), numba_round(*this.problem)
    this.compare("PyTorch", pytorch())
    this.compare("numba", numba())

    contestants = {
        "fedlap, compiled round": ours,
        "fedlap, the next minibatches drawn meanwhile": this.drawn_and_ours,
        "numba": numba,
    }
    fast = interleave(contestants, repeats * 10, warm_up=3)
    slow = interleave({**contestants, "PyTorch, eager": pytorch}, max(5, repeats // 3))
    show("one round, small repeats together with PyTorch", slow, "fedlap, compiled round")
    show("one round", fast, "fedlap, compiled round")

    settings = [(fedlap.FedLap(delta=delta), solver) for delta in np.geomspace(0.01, 100, 9)]
    many = whole_grid(settings, data, seeds)
    show(
        "27 runs (3 seeds x 9 settings) as one batch, against one run",
        interleave({"one run": ours, "27 runs": many}, repeats, warm_up=2),
        "one run",
    )


def whole_grid(settings, data, seeds):
    """One round of 27 runs, as `simulate_grid` does it."""
    runs = [
        [fedlap.Simulation.of(a, data, fedlap.logistic(), solver=s, seed=seed) for a, s in settings] for seed in seeds
    ]
    prepared = grid.prepare(runs)
    plans = [of_seed[0].plan(0) for of_seed in runs]
    return lambda: jax.block_until_ready(grid.advance(prepared, prepared.states, plans))


if __name__ == "__main__":
    main()
