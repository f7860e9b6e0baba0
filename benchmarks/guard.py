"""This checkout against the last release, or any commit, on four workloads; it fails where it is 15 % slower.

    python benchmarks/guard.py [COMMIT] [--only WORKLOAD ...] [--turns 100]

The release is the newest tag `v*`; without one, the last commit of the day that the changelog gives its last release.
It is checked out beside this one, with the same interpreter and libraries. Rounds are timed in a warm process of each,
`fedlap run` in a new one with an empty compilation cache. They take turns, and who goes first alternates, so that a
pair of turns sees the same machine. Slower is what the median of the pairs' ratios shows beyond doubt, and shows again
with new processes: see `judge`.
"""

import argparse
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BEFORE, NOW = "before", "now"

LIMIT = 1.15  # times as long as before
DOUBT = 0.05  # the chance that the median is on the other side of a bound; it is taken twice before the guard fails

# The judgement --------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """How many times as long it takes as before: the median of all pairs of turns, and bounds of it."""

    ratio: float
    low: float
    high: float

    @property
    def slower(self) -> bool:
        """Whether it is slower by more than the limit, beyond doubt."""
        return self.low > LIMIT


def judge(before: list[float], now: list[float]) -> Verdict:
    """The ratio of times measured side by side.

    A busy machine slows down one turn or several, by any factor, so the bounds are order statistics: whatever the
    noise is, as long as it favours neither side, fewer than k of n ratios lie below the median with the chance that a
    fair coin shows fewer than k heads.
    """
    ratios = sorted(b / a for a, b in zip(before, now, strict=True))
    k = doubtful(len(ratios))
    low, high = (ratios[k - 1], ratios[-k]) if k else (0.0, math.inf)
    return Verdict(statistics.median(ratios), low, high)


def doubtful(count: int) -> int:
    """The largest k for which fewer than k heads of so many coins are no more likely than the doubt; 0 if none is."""
    chance, k = 0.5**count, 0
    while chance <= DOUBT:
        k += 1
        chance += math.comb(count, k) * 0.5**count
    return k


# The workloads --------------------------------------------------------------------------------------------------------


def logistic(clients: int) -> tuple:
    """A logistic regression of the size of UCI Credit, over so many clients."""
    import numpy as np

    import fedlap

    rng = np.random.default_rng(0)
    sizes = [36, 67] * (clients // 2)
    parts = [(rng.normal(size=(n, 42)).astype(np.float32), rng.integers(0, 2, n)) for n in sizes]
    federation = fedlap.Federation.from_arrays(clients=parts, test=parts[0])
    return fedlap.FedLap(delta=1.0), federation, fedlap.logistic(), fedlap.adam(epochs=10, batch=4, learning_rate=1e-3)


def network() -> tuple:
    """The 784-200-100-10 network on random pixels, as many as a tenth of Fashion-MNIST, over ten unequal clients."""
    import numpy as np

    import fedlap

    rng = np.random.default_rng(0)
    inputs, labels = rng.random((6000, 28, 28), dtype=np.float32), np.repeat(np.arange(10), 600)
    rows = fedlap.dirichlet(sizes=1.0, classes=0.5)(labels, 10, rng)
    parts = [(inputs[mine], labels[mine]) for mine in rows]
    federation = fedlap.Federation.from_arrays(clients=parts, test=(inputs[:1000], labels[:1000]))
    solver = fedlap.adam(epochs=5, batch=32, learning_rate=1e-3)
    return fedlap.FedLapCov(delta=1e-2), federation, fedlap.mlp(hidden=(200, 100)), solver


class Workload(NamedTuple):
    """Rounds of a run; or, if it is of none, `fedlap run` of one method from an empty cache."""

    make: Callable[[], tuple] | None
    rounds: int = 1  # of a turn: a short one is not worth a message
    share: float = 1.0  # of the turns that are asked for


WORKLOADS = {
    "logistic-10": Workload(lambda: logistic(10), rounds=20),
    "logistic-1000": Workload(lambda: logistic(1000)),
    "mlp": Workload(network, share=0.4),
    "start": Workload(None, share=0.12),
}


def serve(workload: Workload) -> None:
    """Be one side: print the answer after three rounds, then the seconds of a round for every line that comes."""
    import jax

    import fedlap

    algorithm, federation, model, solver = workload.make()
    run = fedlap.Simulation.of(algorithm, federation, model, solver=solver)
    state = run.init()
    for _ in range(3):
        state = run.step(state)
    print(sum(float(abs(leaf).sum()) for leaf in jax.tree.leaves(state.server.w)), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(workload.rounds):
            jax.block_until_ready(run.step(state))
        print((time.perf_counter() - began) / workload.rounds, flush=True)


# Turns ----------------------------------------------------------------------------------------------------------------


class Side:
    """A checkout, with a warm process or new ones."""

    def __init__(self, name: str, workload: str, checkout: Path, scratch: Path) -> None:
        self.scratch, self.checkout, self.turns = Path(tempfile.mkdtemp(prefix=name, dir=scratch)), checkout, 0
        command = [sys.executable, "-P", __file__, "--serve", workload]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        warm = WORKLOADS[workload].make is not None
        self.server = subprocess.Popen(command, **self._place(self.scratch), **pipes) if warm else None

    def _place(self, cache: Path) -> dict:
        variables = {"PYTHONPATH": str(self.checkout / "src"), "XDG_CACHE_HOME": str(cache)}
        return {"env": {**os.environ, **variables}, "cwd": self.scratch}

    def hear(self) -> str:
        """The next line of a warm process."""
        if not (line := self.server.stdout.readline()):
            raise SystemExit(f"{self.checkout}: its process ended")
        return line.strip()

    def turn(self) -> float:
        """Seconds of one turn."""
        if self.server:
            self.server.stdin.write("go\n")
            return float(self.hear())
        self.turns += 1
        place = self._place(self.scratch / f"cache-{self.turns}")
        command = [sys.executable, "-P", "-m", "fedlap", "run", "fedlap", "--output", f"results-{self.turns}"]
        began = time.perf_counter()
        subprocess.run(command, **place, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began

    def end(self) -> None:
        """End the warm process, if there is one."""
        if self.server:
            self.server.stdin.close()
            self.server.wait()


def measure(workload: str, checkouts: dict[str, Path], turns: int, scratch: Path) -> Verdict:
    """Let both sides take turns at a workload, and print what came of it."""
    sides = {name: Side(name, workload, checkout, scratch) for name, checkout in checkouts.items()}
    try:
        if WORKLOADS[workload].make:
            answers = {side.hear() for side in sides.values()}
            print(f"\n{workload}: {'the same answer' if len(answers) == 1 else 'answers ' + ' and '.join(answers)}")
        else:
            print(f"\n{workload}: `fedlap run fedlap`, compilation cache empty")
        seconds = {name: [] for name in sides}
        for turn in range(turns):
            for name in list(sides)[:: 1 if turn % 2 else -1]:
                seconds[name].append(sides[name].turn())
    finally:
        for side in sides.values():
            side.end()
    for name, values in seconds.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"  {name:8} median {1e3 * middle:10.2f} ms   quartiles {1e3 * low:.2f} – {1e3 * high:.2f}")
    verdict = judge(seconds[BEFORE], seconds[NOW])
    bounds = f"at least {verdict.low:.3f} and at most {verdict.high:.3f}, {1 - DOUBT:.0%} certain of each"
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown"
    print(f"  times as long as before: {verdict.ratio:.3f}; {bounds}; {turns} turns, load {load}", flush=True)
    return verdict


# The release ----------------------------------------------------------------------------------------------------------


def git(*words: str | Path) -> str:
    """What git says, in this repository."""
    return subprocess.run(["git", "-C", ROOT, *words], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def last_release() -> str:
    """The newest tag `v*`, or the last commit of the day of the changelog's last release."""
    if tags := git("tag", "--list", "v*", "--sort=-version:refname").split():
        return tags[0]
    day = re.search(r"^## \[\d\S*\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    if day is None:
        raise SystemExit("there is no release yet; name the commit to compare with")
    return git("rev-list", "-1", f"--before={day[1]} 23:59:59 +0000", "HEAD")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", help="to compare with; the last release if not given")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--turns", type=int, default=100, help="of small rounds; others have fewer")
    parser.add_argument("--serve", choices=WORKLOADS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        return serve(WORKLOADS[asked.serve])
    commit = asked.commit or last_release()
    print(f"before: {git('log', '-1', '--format=%h %as %s', commit)}")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        git("worktree", "add", "--detach", scratch / "code", commit)
        checkouts = {BEFORE: scratch / "code", NOW: ROOT}
        look = lambda name: measure(name, checkouts, max(round(asked.turns * WORKLOADS[name].share), 2), scratch)
        try:
            slow = [name for name in asked.only if look(name).slower]
            if slow:
                print(f"\nonce more, with new processes: {', '.join(slow)}")
            slow = [name for name in slow if look(name).slower]
        finally:
            git("worktree", "remove", "--force", scratch / "code")
    print(f"\nslower by more than {LIMIT - 1:.0%}: {', '.join(slow) or 'nothing'}")
    sys.exit(bool(slow))


if __name__ == "__main__":
    main()
