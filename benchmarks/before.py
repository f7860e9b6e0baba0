"""This checkout against an earlier commit, side by side: a logistic round, an MLP round, and `fedlap run` from cold.

    python benchmarks/before.py COMMIT [--repeats 40] [--runs 3]

The commit is checked out beside this one. Each has a process of its own for the rounds, and they take turns; the
answers of both are compared first. `fedlap run` starts with an empty compilation cache each time, in turn as well.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKLOADS = {"logistic": 10, "mlp": 1}  # rounds a turn: a short one is not worth a message


def serve(workload):
    """Be one of the two: print the answer after three rounds, then do a turn of rounds for every line that comes."""
    sys.path.remove(str(ROOT / "benchmarks"))  # of this checkout: each has its own, further on
    import jax

    import fedlap

    if workload == "logistic":
        import logistic_round as size

        data, model, method = size.federation(), fedlap.logistic(), fedlap.FedLap(delta=size.DELTA)
    else:
        import mlp_round as size

        data, model, method = size.federation(None), fedlap.mlp(hidden=(200, 100)), fedlap.FedLap(delta=size.DELTA)
    solver = fedlap.adam(epochs=size.EPOCHS, batch=size.BATCH, learning_rate=size.RATE)
    run = fedlap.Simulation.of(method, data, model, solver=solver)
    state = run.init()
    for _ in range(3):
        state = run.step(state)
    plan = run.plan(3)
    print(repr(float(abs(state.server.w.flat).sum())), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(WORKLOADS[workload]):
            jax.block_until_ready(run.step(state, plan))
        print((time.perf_counter() - began) / WORKLOADS[workload], flush=True)


def environment(checkout, cache):
    paths = os.pathsep.join([str(checkout / "src"), str(checkout / "benchmarks")])
    return {**os.environ, "PYTHONPATH": paths, "XDG_CACHE_HOME": str(cache)}


def rounds(checkouts, workload, repeats, scratch):
    """Seconds of a round, turn by turn, of every checkout."""
    command = [sys.executable, __file__, "--serve", workload]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    servers = {
        name: subprocess.Popen(command, env=environment(checkout, scratch / name), **pipes)
        for name, checkout in checkouts.items()
    }
    answers = {name: server.stdout.readline().strip() for name, server in servers.items()}
    same = "the same" if len(set(answers.values())) == 1 else "not the same"
    print(f"\n{workload}: sum of absolute weights after three rounds {', '.join(answers.values())}: {same}")
    seconds = {name: [] for name in checkouts}
    for _ in range(repeats):
        for name, server in servers.items():
            server.stdin.write("go\n")
            seconds[name].append(float(server.stdout.readline()))
    for server in servers.values():
        server.stdin.close()
        server.wait()
    return seconds


def cold(checkouts, runs, scratch):
    """Seconds of the README's first command, its environment made and its compilation cache empty."""
    seconds = {name: [] for name in checkouts}
    for turn in range(runs):
        for name, checkout in checkouts.items():
            command = [sys.executable, "-m", "fedlap", "run", "--output", str(scratch / f"{name}-results-{turn}")]
            cache = scratch / f"{name}-cache-{turn}"
            began = time.perf_counter()
            subprocess.run(command, env=environment(checkout, cache), stdout=subprocess.DEVNULL, check=True)
            seconds[name].append(time.perf_counter() - began)
    return seconds


def show(title, seconds):
    """Medians, quartiles, and how many times as fast this checkout is: of medians, and of the fastest turns."""
    print(title)
    for name, values in seconds.items():
        low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        print(f"  {name:8} median {1e3 * middle:10.2f} ms   quartiles {1e3 * low:.2f} – {1e3 * high:.2f}")
    before, now = seconds.values()
    speed = statistics.median(before) / statistics.median(now)
    print(f"  speed of this checkout: {speed:.3f} (medians), {min(before) / min(now):.3f} (fastest)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--serve", choices=WORKLOADS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        return serve(asked.serve)
    if asked.commit is None:
        parser.error("name the commit to compare with")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", scratch / "code", asked.commit], check=True)
        try:
            checkouts = {"before": scratch / "code", "now": ROOT}
            for workload in WORKLOADS:
                show("one round", rounds(checkouts, workload, asked.repeats, scratch))
            if asked.runs:
                show("\nfedlap run, cold", cold(checkouts, asked.runs, scratch))
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", scratch / "code"], check=True)


if __name__ == "__main__":
    main()
