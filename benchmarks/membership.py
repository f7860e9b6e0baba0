"""A client leaves, joins or goes on: how many rounds the model needs, against training from scratch.

    python benchmarks/membership.py [--dataset heart] [--client va] [--rounds 60] [--seeds 0 1 2] [--hidden 32]

A network is trained, then the members change, and it goes on for as many rounds; beside it the members as they then are
train from scratch, with the same seed. `without`: a client leaves. `join`: it comes later. `update`: the first half of
its rows is replaced by the second, and the run from scratch has both.

The yardstick is the mean loss over all rows that have their say, and the level to reach is that of training from
scratch in its last round, plus 0.005. Shown are the rounds to that level, the mean over seeds with the least and the
most (round 0 is right after the change, from scratch it is 1 at the earliest), how far above scratch's last loss the
model is right after the change, and the test NLL in the last round of both, its mean over seeds and standard deviation.
Nothing was chosen by its test NLL; the learning rate was raised once, from 1e-3, at which scratch was far from done.

The two runs have not had the same work: what the members change had been trained for as many rounds before. And where
scratch needs nearly all its rounds to its own level, it was still getting better, and the level is not an optimum.
"""

import argparse

import numpy as np

import fedlap

NEAR = 0.005
METHODS = (
    fedlap.FedLap(delta=1.0, rho=fedlap.evenly),
    fedlap.FedLapCov(delta=1.0),
    fedlap.FedLapFunc(delta=1.0, rho=fedlap.evenly, memory=2),
)


def changes(everybody, name, rounds):
    """Of each change: the federation before, the one that scratch has, and what is done to a history."""
    inputs, labels = everybody.of(name)
    half = len(labels) // 2
    second = inputs[half:], labels[half:]
    early, others = everybody.with_data(name, (inputs[:half], labels[:half])), everybody.without(name)
    return {
        "without": (everybody, others, lambda history: history.without(name, rounds=rounds)),
        "join": (others, everybody, lambda history: history.join(name, (inputs, labels), rounds=rounds)),
        "update": (early, everybody, lambda history: history.update(name, second, rounds=rounds)),
    }


def compared(method, change, seed, options):
    """Rounds to the level after the change and from scratch, the gap right after it, and both last test NLLs."""
    before, then, act = change
    rows = np.concatenate(then.rows)
    shared = {"solver": fedlap.adam(epochs=5, batch=16, learning_rate=1e-2), "rounds": options.rounds, "seed": seed}
    shared["watch"] = {"rows": (then.inputs[rows], then.labels[rows])}
    model = fedlap.mlp(hidden=(options.hidden,))
    scratch, after = (
        fedlap.simulate(method, then, model, **shared),
        act(fedlap.simulate(method, before, model, **shared)),
    )
    ours, theirs = (history.watched["rows"].nll for history in (after, scratch))
    level = theirs[-1] + NEAR
    return reached(ours, level), reached(theirs, level) + 1, ours[0] - theirs[-1], after.nll[-1], scratch.nll[-1]


def reached(losses, level):
    """The first entry at or below a level; infinite if none is."""
    below = np.flatnonzero(losses <= level)
    return below[0] if len(below) else np.inf


def rounds_shown(values):
    never = np.isinf(values).sum()
    return f"never in {never} of {len(values)}" if never else f"{values.mean():.1f} ({values.min():g}–{values.max():g})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="heart")
    parser.add_argument("--client", default="va")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--hidden", type=int, default=32)
    options = parser.parse_args()

    everybody = getattr(fedlap.data, options.dataset)()
    print(f"{everybody}, {options.client}: {len(everybody.of(options.client)[1])} rows; {options}\n")
    print("| method | change | rounds after it | from scratch | loss right after | NLL after it | from scratch |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for method in METHODS:
        for name, change in changes(everybody, options.client, options.rounds).items():
            seeds = [compared(method, change, seed, options) for seed in options.seeds]
            ours, theirs, gap, *nlls = map(np.array, zip(*seeds, strict=True))
            told = [type(method).__name__, name, rounds_shown(ours), rounds_shown(theirs), f"{gap.mean():+.4f}"]
            told += [f"{nll.mean():.3f} ± {nll.std(ddof=1):.3f}" if len(nll) > 1 else f"{nll[0]:.3f}" for nll in nlls]
            print(f"| {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
