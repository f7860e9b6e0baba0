"""What the server does: gather statistics, run the rounds, wait for a quorum, and survive being stopped at any point.

Nothing here knows how messages travel. After every step all that matters is on disk; started again, it goes on from
there, and a site that has done a step already answers it from its own disk.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedlap.engines.sequential import run_server
from fedlap.engines.setup import join_points
from fedlap.study.protocol import checkpoint, heads, runs
from fedlap.study.protocol.checkpoint import Progress, RoundReport, RunState
from fedlap.study.protocol.contents import (
    Beginning,
    HeldBack,
    Points,
    Trained,
    check_versions,
    read_held_back,
    read_points,
    read_statistics,
    versions,
)
from fedlap.study.protocol.heads import Heads
from fedlap.study.protocol.inquiry import Answered, Event, Inquiry, Patience, Transport
from fedlap.study.protocol.messages import Reply, Request, check, on_device, pack, unpack
from fedlap.study.protocol.metrics import score
from fedlap.study.protocol.terms import Agreement, Start, Terms
from fedlap.study.table.encoding import Pooled, Statistics, check_statistics, pool


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind; `fedlap.study.save_outcome` makes the model's files of it."""

    run: str
    server: Any  # the server's state: `server.w` are the weights
    precision: Any  # how sure the model is of them; None where the algorithm does not say
    pooled: Pooled
    sizes: dict[str, int]  # rows to train on, by member
    history: tuple[RoundReport, ...]


class Coordinator:
    """One run of a study. `check_statistics` raises DataError at what a member's statistics cannot be."""

    def __init__(
        self,
        terms: Terms,
        check_statistics: Callable[[str, Statistics], None],
        patience: Patience,
        transport: Transport,
        folder: str | Path,
        tell: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self.terms, self.check_statistics, self.patience, self.tell = terms, check_statistics, patience, tell
        self.inquiry = Inquiry(patience, transport, tell, Heads(Path(folder) / heads.FILE))
        self.checkpoint = Path(folder) / "checkpoint.npz"

    @classmethod
    def of(
        cls,
        study: Agreement,
        transport: Transport,
        folder: str | Path | None = None,
        tell: Callable[[Event], None] = lambda event: None,
    ) -> "Coordinator":
        """The coordinator of a study; its checkpoint goes beside the study by default."""
        patience = Patience(study.quorum, study.deadline, study.retries)
        folder = runs.folder(study) if folder is None else folder
        return cls(Terms.of(study), partial(check_statistics, study), patience, transport, folder, tell)

    def run(self) -> Outcome:
        """All rounds that are still to be done, and the last report."""
        progress = runs.open_run(self.checkpoint, self.terms.digest, self.terms.members, self.tell)
        state, start = checkpoint.read_state(self.checkpoint, self.terms) or self._begin(progress)
        for round in range(progress.round, self.terms.last_round + 1):
            progress, state = self._round(round, progress, state, start)
            checkpoint.write(self.checkpoint, progress, state)
        if not progress.finished:
            progress = self._finish(progress, state)
            checkpoint.write(self.checkpoint, progress, state)
        self.tell(Event("finished", "finish"))
        sizes = dict(zip(self.terms.members, state.beginning.sizes.tolist(), strict=True))
        precision = self.terms.algorithm.precision_ahead(state.server)
        return Outcome(progress.run, state.server, precision, state.beginning.pooled, sizes, progress.history)

    def _begin(self, progress: Progress) -> tuple[RunState, Start]:
        members = self.terms.members
        statistics = self._gather("statistics", progress.run, None, self._read_statistics)
        pooled = pool(statistics[name] for name in members)
        sizes = np.array([int(statistics[name].rows) for name in members], np.int64)
        memory = None
        if self.terms.algorithm.memory:
            points = self._gather("points", progress.run, pooled, self._read_points)
            memory = join_points(*zip(*(points[name] for name in members), strict=True))
        beginning = Beginning(pooled, sizes, memory)
        self._gather("begin", progress.run, beginning, lambda name, reply: check(reply.arrays, {}, name))
        start = self.terms.server_start(sizes, memory)
        state = checkpoint.first_state(self.terms, beginning, start)
        checkpoint.write(self.checkpoint, progress, state)
        return state, start

    def _read_statistics(self, name: str, reply: Reply) -> Statistics:
        check_versions(name, reply.facts, versions())
        statistics = read_statistics(self.terms, reply.arrays, name)
        self.check_statistics(name, statistics)
        return statistics

    def _read_points(self, name: str, reply: Reply) -> Points:
        return read_points(self.terms, reply.arrays, name)

    def _gather(self, kind: str, run: str, record: Any, read: Callable[[str, Reply], Answered]) -> dict[str, Answered]:
        """What everyone answers to a record; without all members there is nothing to begin with, so it waits."""
        requests = {name: Request(kind, self.terms.digest, run, arrays=pack(record)) for name in self.terms.members}
        return self.inquiry.everyone(kind, requests, read, "cannot begin without")

    def _round(self, round: int, progress: Progress, state: RunState, start: Start) -> tuple[Progress, RunState]:
        began, members, like = time.perf_counter(), self.terms.members, start.first.clients.contribution
        requests = self._requests("train", progress, state, round)

        def read(name: str, reply: Reply) -> Trained:
            contribution = on_device(unpack(reply.arrays, like, name))
            return Trained(contribution, read_held_back(name, reply.facts))

        good, left_out, step = {}, {}, f"round {round + 1}"
        while True:
            missing = {name: request for name, request in requests.items() if name not in good}
            more, bad = self.inquiry.once(step, missing, read)
            good, left_out = good | more, left_out | bad
            if len(good) >= self.patience.quorum:
                break
            note = f"{len(good)} of at least {self.patience.quorum} members have answered; still waiting"
            self.tell(Event("waiting", step, note=note))
            time.sleep(self.patience.pause)
        contributions = tuple(
            good[name].contribution if name in good else old
            for name, old in zip(members, state.contributions, strict=True)
        )
        drawn = np.array([name in good for name in members])
        server = run_server(start.setup, state.server, contributions, drawn)
        unpack(pack(server), server, f"the model after round {round + 1}")  # DataError if it is not finite
        history = self._scored(progress.history, (trained.held_back for trained in good.values()))
        report = RoundReport(
            round=round + 1,
            members=tuple(sorted(good)),
            absent=tuple(sorted(set(members) - set(good))),
            left_out={name: reason for name, reason in left_out.items() if name not in good},
            seconds=time.perf_counter() - began,
        )
        accepted = {name: round if name in good else progress.accepted[name] for name in members}
        progress = replace(progress, round=round + 1, accepted=accepted, history=(*history, report))
        return progress, state._replace(server=server, contributions=contributions)

    def _finish(self, progress: Progress, state: RunState) -> Progress:
        def read(name: str, reply: Reply) -> HeldBack:
            check(reply.arrays, {}, name)
            return read_held_back(name, reply.facts)

        good, _ = self.inquiry.once("finish", self._requests("finish", progress, state, progress.round), read)
        return replace(progress, finished=True, history=self._scored(progress.history, good.values()))

    def _requests(self, kind: str, progress: Progress, state: RunState, round: int) -> dict[str, Request]:
        """To every member what the algorithm broadcasts."""
        arrays = pack(self.terms.algorithm.broadcast(state.server))
        request = partial(Request, kind, self.terms.digest, progress.run, round)
        return {name: request(progress.accepted[name], arrays) for name in self.terms.members}

    def _scored(self, history: tuple[RoundReport, ...], reports: Iterable[HeldBack]) -> tuple[RoundReport, ...]:
        """The history with the last model's score, which comes with the answers to the next request."""
        if not history:
            return history
        last = replace(history[-1], score=score(reports))
        self.tell(Event("round", f"round {last.round}", note=str(last.score)))
        return *history[:-1], last
