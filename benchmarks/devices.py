"""One device against two: the same clients, sharded over host devices that XLA is told to have.

    python benchmarks/devices.py [--turns 15]

FedLap on a small network (20-16-10) over 96 clients of 80 rows: many clients side by side, and yet no operation of a
step so large that XLA would give it to two cores. Three warm processes take turns at a round: all clients in one
program on one device; the engine for several devices with one of them; and with two. Their answers are compared first.
The picture is docs/images/devices.png.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from timing import Child, load

HERE = Path(__file__).resolve().parent
RESULTS, PICTURE = HERE / "devices.json", HERE.parent / "docs" / "images" / "devices.png"
CONTESTANTS = {
    "one program": ("vectorised", 1),
    "sharded over one device": ("sharded", 1),
    "sharded over two devices": ("sharded", 2),
}


def serve(engine):
    """Be one contestant: say what the weights are after two rounds, then the seconds of a round for every line."""
    import jax
    import numpy as np

    import fedlap

    rng = np.random.default_rng(0)
    parts = [(rng.standard_normal((80, 20), np.float32), rng.integers(0, 10, 80)) for _ in range(96)]
    data = fedlap.Federation.from_arrays(clients=parts, test=parts[0], classes=10)
    model, solver = fedlap.mlp((16,)), fedlap.adam(epochs=20, batch=8)
    run = fedlap.Simulation.of(fedlap.FedLap(delta=1.0), data, model, solver=solver, engine=engine)
    state = run.step(run.step(run.init()))
    print(json.dumps({"weights": np.asarray(state.server.w).tolist(), "devices": jax.device_count()}), flush=True)
    for _ in sys.stdin:
        plan = run.plan(state.round)
        began = time.perf_counter()
        jax.block_until_ready(run.step(state, plan).server)
        print(json.dumps(time.perf_counter() - began), flush=True)


def start(engine, devices):
    flag = f"--xla_force_host_platform_device_count={devices}"
    return Child([sys.executable, __file__, "--serve", engine], XLA_FLAGS=flag, JAX_PLATFORMS="cpu")


def draw(found, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.2), layout="constrained")
    panel = figure.subplots()
    for place, seconds in enumerate(found["seconds"].values()):
        panel.barh(place, statistics.median(seconds), color="#1f77b4", alpha=0.35, height=0.6)
        panel.plot(seconds, [place] * len(seconds), "|", color="#1f77b4")
    titles = [f"{name}, {1000 * statistics.median(seconds):.0f} ms" for name, seconds in found["seconds"].items()]
    panel.set_yticks(range(len(titles)), titles, fontsize=9)
    panel.invert_yaxis()
    panel.set_xlabel("seconds a round; a stroke is a turn")
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve)
    children = {name: start(*what) for name, what in CONTESTANTS.items()}
    answers = {name: child.hear() for name, child in children.items()}
    first = answers["one program"]["weights"]
    largest = max(abs(weight) for weight in first)
    for name, answer in answers.items():
        difference = max(abs(a - b) for a, b in zip(answer["weights"], first, strict=True)) / largest
        print(f"{name}: {answer['devices']} device(s), largest difference {difference:.1e} of the largest weight")
    seconds = {name: [] for name in children}
    for _ in range(arguments.turns):
        for name, child in children.items():
            seconds[name].append(child.ask())
    for child in children.values():
        child.end()
    two = seconds["sharded over two devices"]
    for name, own in seconds.items():
        low, middle, high = statistics.quantiles(own, n=4)
        pairs = statistics.median(a / b for a, b in zip(own, two, strict=True))
        print(f"{name:28} {middle:.3f} s ({low:.3f}–{high:.3f}), {pairs:.2f} times two devices; load {load()}")
    found = {"seconds": seconds, "load": load()}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    draw(found, PICTURE)


if __name__ == "__main__":
    main()
