"""How long the rest of some runs will take."""

from collections.abc import Sequence
from typing import NamedTuple

from fedlap.experiments.jobs import Advanced
from fedlap.experiments.results import Result
from fedlap.experiments.sweep import Cell

Job = Sequence[Cell]  # one run, or many that are one program


class JobKind(NamedTuple):
    """What decides the price of a job's steps. Epochs do, as some servers cost as much after one as after ten."""

    algorithm: str
    epochs: int

    @classmethod
    def of(cls, job: Job) -> "JobKind":
        """The kind of a job."""
        return cls(job[0].algorithm, job[0].epochs)


class Reached(NamedTuple):
    """How far a job has come, and where it was first seen: until then it also did what is done once."""

    kind: JobKind
    first: tuple[float, float]  # seconds and cost
    last: tuple[float, float]

    @property
    def since(self) -> tuple[float, float]:
        """Seconds and cost of the rounds between."""
        return self.last[0] - self.first[0], self.last[1] - self.first[1]


class Estimate:
    """How long the rest will take: what jobs so far took once, set-up and compilation, and what a round costs.

    A job is a run, or many runs that are one program.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}  # those left, by the digest of their first cell
        self.reached: dict[str, Reached] = {}  # those that have begun, likewise
        self.workers = 1

    def plan(self, jobs: Sequence[Job], workers: int) -> None:
        """What is left to do, and how many of them run at a time."""
        self.jobs, self.workers = {job[0].digest: job for job in jobs}, max(workers, 1)

    def advance(self, event: Advanced) -> None:
        """Take in that a job has finished a round."""
        self._reach(event.cells, event.round, event.seconds)

    def finish(self, results: Sequence[Result]) -> None:
        """Take in that a job has ended."""
        job = self.jobs.pop(results[0].cell)
        rounds = max(len(curve.nll) for curve in results[0].curves.values())  # fewer than planned, if it diverged
        self._reach(job, rounds, results[0].seconds)

    def _reach(self, job: Job, round: int, seconds: float) -> None:
        now = seconds * len(job), _cost(job) * round / job[0].rounds
        before = self.reached.get(job[0].digest)
        self.reached[job[0].digest] = Reached(JobKind.of(job), before.first if before else now, now)

    @property
    def seconds(self) -> float | None:
        """None before the second round of anything, or its end: until then nobody knows how much was done once."""
        prices = {kind: self._prices(kind) for kind in map(JobKind.of, self.jobs.values())}
        left = [0.0]
        for digest, job in self.jobs.items():
            known = prices[JobKind.of(job)]
            if known is None:
                return None
            once, price = known
            reached = self.reached.get(digest)
            left.append(once + _cost(job) * price if reached is None else (_cost(job) - reached.last[1]) * price)
        return max(sum(left) / self.workers, max(left))  # the last run has no help from other processes

    def _prices(self, kind: JobKind) -> tuple[float, float] | None:
        """Seconds that a job takes once, and for a unit of cost; if none of its kind has come so far, of its algorithm
        with other epochs, or else of all."""
        seen = [each for each in self.reached.values() if each.since[1] > 0]
        alike = [each for each in seen if each.kind.algorithm == kind.algorithm]
        similar = [each for each in alike if each.kind == kind] or alike or seen
        if not similar:  # jobs of one round, which tell the two apart by no second one
            ended = [each.last for digest, each in self.reached.items() if digest not in self.jobs]
            seconds, costs = zip(*ended, strict=True) if ended else ((), ())
            return (0.0, sum(seconds) / sum(costs)) if ended else None
        price = sum(each.since[0] for each in similar) / sum(each.since[1] for each in similar)
        once = [max(seconds - cost * price, 0.0) for seconds, cost in (each.first for each in similar)]
        return sum(once) / len(once), price


def _cost(job: Job) -> float:
    return sum(cell.cost for cell in job)
