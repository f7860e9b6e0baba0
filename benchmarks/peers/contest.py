"""All contestants of one cell, each a warm process of its own, asked in turn and one at a time."""

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.weights import difference
from benchmarks.peers.work import load

LEAST_TURNS = 3
ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Entry:
    """A contestant in one of its configurations."""

    name: str  # of its module, and of its environment
    variant: str
    peer: str
    setting: str = ""
    environment: tuple[tuple[str, str], ...] = ()  # variables to be set

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.peer, self.setting)))


QUIET = (("FLWR_TELEMETRY_ENABLED", "0"), ("FLWR_DISABLE_UPDATE_CHECK", "1"))
TWO_DEVICES = (("XLA_FLAGS", "--xla_force_host_platform_device_count=2"),)
OURS = Entry("fedlap", "", "fedlap", environment=(("FEDLAP_COMPILATION_CACHE", "off"),))
ENTRIES = (
    OURS,
    Entry("pytorch", "2", "PyTorch", "2 threads"),
    Entry("pytorch", "1", "PyTorch", "1 thread"),
    Entry("pfl", "2", "pfl", "2 threads"),
    Entry("pfl", "1", "pfl", "1 thread"),
    Entry("fedjax", "jit", "FedJAX", "jit"),
    Entry("fedjax", "pmap", "FedJAX", "pmap on 2 devices", TWO_DEVICES),
    Entry("flower", "2", "Flower", "2 threads", QUIET),
    Entry("flower", "1", "Flower", "1 thread", QUIET),
)


class Contestant:
    """A process that does a round when asked."""

    def __init__(self, entry: Entry, python: Path, work: Path, algorithm: str, answer: Path, variables: dict):
        self.entry, self._answer = entry, answer
        hidden = () if entry is OURS else ("PYTHONPATH",)  # of another environment
        inherited = {name: value for name, value in os.environ.items() if name not in hidden}
        command = [python, "-m", "benchmarks.peers.child", entry.name, entry.variant, work, algorithm, answer]
        began = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**inherited, **variables, **dict(entry.environment)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = self._reply()["seconds"]  # from having read the work to the end of the first round
        self.start_up = time.perf_counter() - began

    def turn(self) -> tuple[float, float]:
        """Seconds a round in this turn, and the peak of the process's memory so far in MB."""
        reply = self._ask("turn")
        return reply["seconds"], reply["memory"]

    def answer(self) -> list[np.ndarray]:
        """The weights after the last round."""
        self._ask("answer")
        with np.load(self._answer) as file:
            return [file[name] for name in file.files]

    def double(self) -> list[np.ndarray]:
        """The weights after a round in double precision. There are no turns after it."""
        self._ask("double")
        return self.answer()

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, what):
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.entry.title} ended with code {self._process.wait()}; its words are above")
        return json.loads(line)


def hold(pythons: dict[str, Path], work: Path, algorithm: str, budget: float, variables: dict) -> list[dict]:
    """What each contestant took for a round, and how far its answer is from fedlap's.

    Everybody has at least three turns, and more of them while they have taken less than `budget` seconds.
    """
    contestants, answer = [], work.with_name("answer.npz")
    start = load(work, algorithm).weights
    try:
        for entry in ENTRIES:
            if entry.name in pythons:
                contestants.append(Contestant(entry, pythons[entry.name], work, algorithm, answer, variables))
        answers = [contestant.answer() for contestant in contestants]
        seconds, memory = [[] for _ in contestants], [0.0] * len(contestants)
        order = list(range(len(contestants)))
        began = time.perf_counter()
        while len(seconds[0]) < LEAST_TURNS or time.perf_counter() - began < budget:
            for place in order:
                spent, memory[place] = contestants[place].turn()
                seconds[place].append(spent)
            order.reverse()  # so that nobody always follows the same
        double = [contestant.double() for contestant in contestants]
    finally:
        for contestant in contestants:
            contestant.end()
    return [
        {
            "contestant": contestant.entry.title,
            "peer": contestant.entry.peer,
            "seconds": seconds[place],
            "memory": memory[place],
            "start_up": contestant.start_up,
            "first": contestant.first,
            "single": difference(answers[place], answers[0], start),
            "double": difference(double[place], double[0], start),
        }
        for place, contestant in enumerate(contestants)
    ]
