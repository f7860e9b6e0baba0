"""`fedlap study demo`: four hospitals as real processes with TLS and keys, then the same study as a simulation."""

import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fedlap.algebra.vector import Vector
from fedlap.algorithms import ALGORITHMS
from fedlap.cli.processes import Processes, free_port
from fedlap.data.federation import Federation
from fedlap.experiments import spec
from fedlap.run.simulation import Simulation
from fedlap.study import model as fitted
from fedlap.study.agreement import example, scaffold
from fedlap.study.agreement.contract import CommonStudy, Study
from fedlap.study.protocol.messages import digest, pack
from fedlap.study.protocol.records import FileRecords
from fedlap.study.table.encoding import pool

START = 120  # seconds a process may take to start on a slow machine
ROUND = 60  # seconds for a round of the demo


def play(rounds: int, algorithm: str, keep: Path | None, tell: Callable[[str], None]) -> bool:
    """Whether the network and the simulation agree in every bit."""
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedlap-demo-")))
        study, files = make(folder / "heart", rounds, algorithm)
        tell(f"a study of {rounds} rounds of {algorithm}, its keys, and four hospitals' files are in {folder}")
        processes = stack.enter_context(Processes(folder / "logs"))
        start_server(processes, study)
        tell(f"the server listens at {study.address}: TLS, and only the members' keys are let in")
        for name, path in files.items():
            start_node(processes, study, name, path)
        tell(f"{len(files)} nodes have been started: {', '.join(files)}; now the rounds")
        start_run(processes, study)
        processes.wait_until_over("run", START + ROUND * rounds)
        processes.stop()
        model = fitted.load(study.folder / "model")
        history = json.loads((study.folder / "model" / "history.json").read_text())
        weights = simulated(study, files)
    for entry in history:
        score = f"accuracy {entry['accuracy']:.3f}, NLL {entry['nll']:.3f}"
        tell(f"round {entry['round']}: {entry['seconds']:.2f} s, {score}")
    over_network, in_simulation = model.card["weights_sha256"], digest(pack(weights))
    tell(f"weights over the network:   sha256 {over_network}")
    tell(f"weights in the simulation:  sha256 {in_simulation}")
    seconds = float(np.median([entry["seconds"] for entry in history]))
    same = over_network == in_simulation
    tell(f"{'identical, bit for bit' if same else 'DIFFERENT'}; {seconds:.2f} s a round (median)")
    return same


def settings(algorithm: str) -> dict[str, Any]:
    """An algorithm with the settings of the bundled experiment."""
    chosen = spec.resolve(*spec.read_table(), algorithms=[algorithm]).as_dict()["algorithms"][algorithm]
    return {"name": algorithm, **{key: value for key, value in chosen.items() if value is not None}}


def make(folder: Path, rounds: int, algorithm: str, **options: Any) -> tuple[Study, dict[str, Path]]:
    """The study's folder, its keys, and the four hospitals' files."""
    text = example.example_study(
        name=folder.name,
        rounds=rounds,
        algorithm=settings(algorithm),
        share_points=bool(ALGORITHMS[algorithm].memory),
        address=f"127.0.0.1:{free_port()}",
        **options,
    )
    study = scaffold.new_study(folder, text)
    return study, example.example_files(folder / "data")


def start_server(processes: Processes, study: CommonStudy, name: str = "server") -> None:
    """Start the study's server and wait until it is ready."""
    processes.start(name, "server", study.path)
    processes.wait_for(name, "ready.", START)


def start_node(processes: Processes, study: CommonStudy, name: str, path: Path) -> None:
    """Start the node of one member with its file."""
    processes.start(name, "node", study.path, "--name", name, "--data", path)


def start_run(processes: Processes, study: CommonStudy) -> None:
    """Start the coordinator."""
    processes.start("run", "study", "run", study.path)


def simulated(study: Study, files: dict[str, Path]) -> Vector:
    """The same study as a simulation of one client at a time: the weights of its last round."""
    records = {member.name: FileRecords(study, member.name, files[member.name]) for member in study.members}
    pooled = pool(site.statistics() for site in records.values())
    rows = [site.encode(pooled) for site in records.values()]
    federation = Federation.from_arrays(
        clients=[(site.inputs, site.labels) for site in rows],
        test=(
            np.concatenate([site.test_inputs for site in rows]),
            np.concatenate([site.test_labels for site in rows]),
        ),
        names=list(records),
        classes=len(study.target.classes),
    )
    method = study.method
    run = Simulation.of(
        method.make_algorithm(),
        federation,
        method.make_model(),
        solver=method.make_solver(),
        server_solver=method.make_server_solver(),
        seed=study.seed,
        engine="sequential",
    )
    state = run.init()
    for _ in range(1 if run.algorithm.one_shot else study.rounds):
        state = run.step(state)
    return state.server.w
