"""fedlap by its public interface: `Simulation.of`, then `step`."""

import jax
import numpy as np

import fedlap
from benchmarks.peers.workloads import federation, network, to_flat, to_tree


def play(work, variant, turns):
    jax.config.update("jax_enable_x64", work.inputs.dtype == np.float64)
    run = simulation(work)
    plan, state = run.plan(0), run.init()
    plan = plan._replace(batches=plan.batches.all()._replace(rows=work.rows, steps=work.steps))
    while True:
        after = jax.block_until_ready(run.step(state, plan))
        if turns.over(lambda after=after: to_flat(after.server.w.tree)):
            return


def simulation(work):
    """A run that begins with the weights given."""
    ends = np.cumsum(work.sizes).tolist()
    parts = [slice(end - size, end) for size, end in zip(work.sizes.tolist(), ends, strict=True)]
    data = federation([(work.inputs[part], work.labels[part]) for part in parts])
    layers = network(work.model)
    like = jax.eval_shape(lambda: layers.init(jax.random.key(0), work.inputs[:1], data.classes))
    model = fedlap.Model(lambda key, inputs: to_tree(work.weights, like), layers.apply)
    method = fedlap.FedAvg() if work.algorithm == "FedAvg" else fedlap.FedProx(alpha=work.alpha)
    solver = fedlap.adam(epochs=work.epochs, batch=work.rows.shape[-1], learning_rate=work.rate)
    return fedlap.Simulation.of(method, data, model, solver=solver)
