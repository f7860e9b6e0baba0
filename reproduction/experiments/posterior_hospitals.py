"""Does it pay to average over the posterior? The bundled hospitals, with all their patients and with 20 each.

    python -m reproduction.experiments.posterior_hospitals

FedLap-Cov, δ = 1, nothing tuned, on the standard preset; the scores are those of the 254 test patients. The logistic
model is solved by Newton's method in 10 rounds, the network of 20 tanh units by Adam in 20. A seed draws the 20
patients of each hospital and the network's start and batches. The picture is docs/images/posterior.png.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

import fedlap
from fedlap.experiments.plots import pyplot, save

SEEDS = (62, 63, 64, 65, 66)
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "posterior.png"
METHODS = {
    "logistic": (fedlap.logistic(bias=True), fedlap.newton(), 10),
    "network": (fedlap.mlp((20,), "tanh"), fedlap.adam(learning_rate=0.01, epochs=10, batch=16), 20),
}
SCORES = ("accuracy", "nll", "brier", "ece", "auc")
COLUMN = 7  # ST depression under exercise


def hospitals(patients, seed):
    """The hospitals with so many patients each, or with all."""
    federation = fedlap.data.heart()
    if patients is None:
        return federation
    rng = np.random.default_rng(seed)
    return replace(federation, rows=tuple(rng.choice(rows, patients, replace=False) for rows in federation.rows))


def fitted(name, covariance, patients, seed):
    """A history."""
    model, solver, rounds = METHODS[name]
    algorithm = fedlap.FedLapCov(delta=1.0, covariance=covariance)
    return fedlap.simulate(algorithm, hospitals(patients, seed), model, solver=solver, rounds=rounds, seed=seed)


def compare(name, covariance, patients):
    """Print the scores by point, by the probit and by draws, mean and deviation over seeds."""
    test = fedlap.data.heart()
    sure = name == "logistic" and patients is None  # nothing is drawn
    histories = [fitted(name, covariance, patients, seed) for seed in (SEEDS[:1] if sure else SEEDS)]
    for how, asked in {
        "point": {},
        "probit": {"posterior": True},
        "samples": {"posterior": True, "link": "samples"},
    }.items():
        found = np.array([each.evaluate(test.test_inputs, test.test_labels, **asked) for each in histories])
        cells = [f"{mean:.3f} ± {deviation:.3f}" for mean, deviation in zip(found.mean(0), found.std(0), strict=True)]
        print(
            f"{name:9} {covariance:9} {patients or 'all':>4} {len(histories)} {how:8} " + "  ".join(cells), flush=True
        )


def draw(path):
    """The logistic model with full covariances: test patients with intervals, and one column far outside the data."""
    test, plt = fedlap.data.heart(), pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained", width_ratios=(1, 1, 0.9))
    for axis, patients, colour in ((axes[0], None, "C0"), (axes[1], 20, "C1")):
        history = fitted("logistic", "full", patients, SEEDS[0])
        some = test.test_inputs[::4]
        point = history.predict(some)[:, 1]
        order = np.argsort(point)
        found = history.predict(some[order], posterior=True, interval=0.9)
        places = np.arange(len(order))
        axis.vlines(places, found.lower[:, 1], found.upper[:, 1], color=colour, alpha=0.45, label="90 % interval")
        axis.plot(places, point[order], color="black", linewidth=1, label="point estimate")
        axis.plot(places, found.probability[:, 1], ".", color=colour, markersize=4, label="posterior")
        title = "all 486 patients" if patients is None else f"{patients} patients a hospital"
        axis.set(title=f"fitted to {title}", xlabel="every fourth test patient, in order", ylim=(0, 1))
        far = np.linspace(-2, 12, 100)
        rows = np.zeros((len(far), some.shape[1]))
        rows[:, COLUMN] = far
        beyond = history.predict(rows, posterior=True, interval=0.9)
        axes[2].fill_between(far, beyond.lower[:, 1], beyond.upper[:, 1], color=colour, alpha=0.2)
        axes[2].plot(far, beyond.probability[:, 1], color=colour, label=f"posterior, {title}")
        axes[2].plot(far, history.predict(rows)[:, 1], "--", color=colour, label="its point estimate")
    axes[0].set_ylabel("probability of heart disease")
    for axis in axes:
        axis.grid(alpha=0.3)
    axes[0].legend(loc="upper left", fontsize=8)
    axes[1].legend(loc="upper left", fontsize=8)
    axes[2].axvline(fedlap.data.heart().inputs[:, COLUMN].max(), color="grey", linewidth=0.8)
    axes[2].set(title="beyond the data", xlabel="ST depression in deviations (grey: largest seen)", ylim=(0, 1))
    axes[2].legend(loc="lower right", fontsize=8)
    save(figure, path)


def main():
    print("model, covariance, patients a hospital, seeds, how; then " + ", ".join(SCORES))
    for name, covariance, patients in product(METHODS, ("diagonal", "full"), (None, 20)):
        compare(name, covariance, patients)
    draw(PICTURE)


if __name__ == "__main__":
    main()
