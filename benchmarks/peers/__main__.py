"""fedlap beside its peers, measured.

    pip install -e .[plots] && python -m benchmarks.peers [--data-dir FOLDER] [--quick]

Makes an environment for each peer (once), draws the work with fedlap, and lets every contestant do the same round in
a process of its own: in turn, one at a time. Checks that all end at the same weights, prints tables, and puts what it
found into results.json and the table and picture of docs/speed.md, unless it was quick or without some of the peers.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import chart, contest, environments, report, weights, workloads
from benchmarks.peers.work import ALGORITHMS, save

PACKAGES = {
    "fedlap": ["fedlap", "jax", "optax"],
    "pytorch": ["torch"],
    "pfl": ["pfl", "torch"],
    "fedjax": ["fedjax", "jax", "optax"],
    "flower": ["flwr", "torch"],
}
BUDGET = 40.0  # seconds of turns a cell


def main():
    arguments = parsed()
    pythons = {"fedlap": Path(sys.executable)}
    pythons |= {peer: environments.interpreter(peer, arguments.environments) for peer in arguments.peers}
    results = {
        "machine": {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()},
        "versions": {name: environments.versions(python, PACKAGES[name]) for name, python in pythons.items()},
        "cells": [],
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.workloads:
            work = Path(scratch) / "work.npz"
            save(workloads.draw(workloads.WORKLOADS[name], arguments.data_dir), work)
            for algorithm in arguments.algorithms:
                results["cells"].append(cell(name, algorithm, pythons, work, arguments))
                print(report.tables({"cells": results["cells"][-1:]}, full=True), end="\n\n", flush=True)
    if others := weights.strangers(results["cells"]):
        sys.exit("not the same work:\n" + "\n".join(others))
    print(f"Each in its fastest configuration\n\n{report.tables(results)}")
    if not arguments.quick and len(pythons) == len(PACKAGES):
        before = json.loads(chart.RESULTS.read_text())["cells"] if chart.RESULTS.exists() else []
        results["cells"] = report.together(before, results["cells"], list(workloads.WORKLOADS))
        chart.RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        report.PAGE.write_text(report.page(results))
        chart.draw(results, chart.PICTURE)


def cell(name, algorithm, pythons, work, arguments):
    """One workload by one algorithm, with the load average before and after."""
    before = os.getloadavg()[0]
    policy = {"OMP_WAIT_POLICY": "PASSIVE"} if arguments.busy else {}
    entries = contest.hold(pythons, work, algorithm, 0.0 if arguments.quick else BUDGET, policy)
    return {
        "workload": name,
        "title": workloads.WORKLOADS[name].title,
        "algorithm": algorithm,
        "busy": arguments.busy,
        "load": sorted((before, os.getloadavg()[0])),
        "entries": entries,
    }


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="a folder with Fashion-MNIST; random pixels without one")
    parser.add_argument("--quick", action="store_true", help="three turns each; nothing is written")
    # Threads of PyTorch that spin while others have the cores wait for each other for minutes.
    parser.add_argument("--busy", action="store_true", help="others use this machine: PyTorch's threads sleep to wait")
    parser.add_argument("--environments", type=Path, default=environments.default_folder(), help="where they are kept")
    parser.add_argument("--workloads", nargs="+", choices=workloads.WORKLOADS, default=list(workloads.WORKLOADS))
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    peers = [name for name in PACKAGES if name != "fedlap"]
    parser.add_argument("--peers", nargs="+", choices=peers, default=peers)
    return parser.parse_args()


if __name__ == "__main__":
    main()
