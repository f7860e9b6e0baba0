"""The predictive distribution beside laplax's, another library of linearised Laplace approximations in JAX.

    pip install "fedlap[benchmark]"
    python benchmarks/predictive_oracle.py

For fits of the bundled hospitals it prints how far the means and covariances of the outputs are from laplax's, relative
to the largest of them, and how far three closed forms of the class probabilities are from draws: the probit of each
output alone (laplax's mean field 0, laplace-torch's "probit"), that of every pair (mean field 2), and fedlap's of each
class against the rest. Then, for a network of 178,110 weights, the seconds that either takes, compiled, best of three.
All in double precision.
"""

import os
import time

os.environ["JAX_ENABLE_X64"] = "1"

import jax
import jax.numpy as jnp
import numpy as np
from laplax.curv.cov import set_posterior_fn
from laplax.eval.predictives import mean_field_0_predictive, mean_field_2_predictive
from laplax.eval.pushforward import lin_pred_cov, lin_pred_mean, lin_setup, set_lin_pushforward

import fedlap
from fedlap.algebra.vector import Vector
from fedlap.engines.parties import Task
from fedlap.engines.predictive import Posterior
from fedlap.models.likelihood import categorical

MODELS = {"logistic": fedlap.logistic(bias=True), "mlp, 20 units": fedlap.mlp((20,), "tanh")}
IMAGES = 200


def of_laplax(model, w, S):
    """A compiled function from inputs to means and covariances of the outputs, by laplax."""
    curvature = S - (np.eye(len(S)) if S.ndim == 2 else 1)  # laplax adds the prior's precision itself: 1
    push = set_lin_pushforward(
        model_fn=lambda input, params: model.apply(params, input[None])[0],
        mean_params=w.tree,
        posterior_fn=set_posterior_fn("full" if S.ndim == 2 else "diagonal", jnp.asarray(curvature), layout=w.tree),
        prior_arguments={"prior_prec": 1.0},
        pushforward_fns=[lin_setup, lin_pred_mean, lin_pred_cov],
    )
    compiled = jax.jit(jax.vmap(push))

    def run(inputs):
        found = jax.block_until_ready(compiled(inputs))
        return np.asarray(found["pred_mean"]), np.asarray(found["pred_cov"])

    return run


def off(ours, theirs):
    """The largest difference, relative to the largest number."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def seconds(run, inputs):
    """The best of three, after one that compiles."""
    run(inputs)
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        run(inputs)
        took.append(time.perf_counter() - begin)
    return min(took)


def hospitals():
    """Means, covariances and class probabilities of four fits."""
    federation = fedlap.data.heart()
    inputs = federation.test_inputs
    for name, model in MODELS.items():
        for covariance in ("diagonal", "full"):
            algorithm = fedlap.FedLapCov(delta=1.0, covariance=covariance)
            solver = fedlap.newton() if name == "logistic" else fedlap.adam(learning_rate=0.01, epochs=20)
            history = fedlap.simulate(algorithm, federation, model, solver=solver, rounds=5)
            ours = history.predictive(inputs)
            mean, covariances = of_laplax(history.fit.task.model, history.fit.w, history.precision)(jnp.asarray(inputs))
            print(
                f"{name}, {covariance}: {history.final.w.size} weights, {len(inputs)} rows; mean off by "
                f"{off(ours.mean, mean):.1e}, covariance by {off(ours.covariance, covariances):.1e}"
            )
            drawn = history.predict(inputs, posterior=True, link="samples", samples=100_000)
            forms = {
                "each output alone": jax.vmap(mean_field_0_predictive)(
                    mean, np.diagonal(covariances, axis1=1, axis2=2)
                ),
                "pairs": jax.vmap(mean_field_2_predictive)(mean, covariances),
                "each class against the rest": history.predict(inputs, posterior=True),
            }
            errors = {form: np.abs(np.asarray(p) - drawn) for form, p in forms.items()}
            told = ", ".join(f"{form} {each.mean():.4f} (at most {each.max():.4f})" for form, each in errors.items())
            print(f"  probabilities off from 100,000 draws, on average: {told}")


def network():
    """How long either takes for a network that is not small."""
    model, rng = fedlap.mlp(), np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(IMAGES, 784)))
    w = Vector(model.init(jax.random.key(0), inputs, 10))
    S = rng.uniform(1, 100, w.size)
    ours = Posterior.of(Task(model, categorical, fedlap.GaussNewton()), w, S).predictive
    theirs = of_laplax(model, w, S)
    print(
        f"mlp, diagonal: {w.size:,} weights, {IMAGES} rows; covariance off by "
        f"{off(ours(inputs).covariance, theirs(inputs)[1]):.1e}"
    )
    times = seconds(ours, inputs), seconds(theirs, inputs)
    print(f"  fedlap {times[0]:.3f} s, laplax {times[1]:.3f} s: {times[1] / times[0]:.1f} times as long")


if __name__ == "__main__":
    hospitals()
    network()
