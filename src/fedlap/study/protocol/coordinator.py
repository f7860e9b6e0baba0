"""What the server does: gather statistics, run the rounds, wait for a quorum, and survive being stopped at any point.

Nothing here knows how messages travel. After every step all that matters is on disk; started again, it goes on from
there, and a site that has done a step already answers it from its own disk.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from fedlap.engines.sequential import run_server
from fedlap.engines.setup import join_points
from fedlap.errors import DataError
from fedlap.study.protocol import checkpoint, runs
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
from fedlap.study.protocol.messages import Reply, Request, check, on_device, pack, unpack
from fedlap.study.protocol.metrics import printable, score
from fedlap.study.protocol.store import BEGINNING
from fedlap.study.protocol.terms import Agreement, Start, Terms
from fedlap.study.table.encoding import Pooled, Statistics, check_statistics, pool

Content = TypeVar("Content")


class Event(NamedTuple):
    """Something worth telling whoever watches."""

    kind: str  # "asked", "answered", "refused", "waiting", "round", "resumed" or "finished"
    step: str
    member: str = ""
    note: str = ""


class Transport(Protocol):
    """How requests reach the members and replies come back."""

    def exchange(
        self, requests: dict[str, Request], seconds: float, resend: float
    ) -> Iterator[tuple[str, Reply | DataError]]:
        """Send each member its request, again after `resend` seconds without reply; yield (member, Reply or DataError).

        At most one reply of each member; ends when all have replied or the seconds are over.
        """
        ...


class Policy(NamedTuple):
    """How long to wait, and for whom."""

    quorum: int
    deadline: float
    retries: int

    @property
    def resend(self) -> float:
        """Seconds until one that has not answered is asked again."""
        return self.deadline / (self.retries + 1)

    @property
    def pause(self) -> float:
        """Seconds until all those are asked again who have refused, or sent what could not be used."""
        return min(self.resend, 10.0)


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
        policy: Policy,
        transport: Transport,
        folder: str | Path,
        tell: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self.terms, self.check_statistics, self.policy = terms, check_statistics, policy
        self.transport, self.tell = transport, tell
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
        policy = Policy(study.quorum, study.deadline, study.retries)
        folder = runs.folder(study) if folder is None else folder
        return cls(Terms.of(study), partial(check_statistics, study), policy, transport, folder, tell)

    def run(self) -> Outcome:
        """All rounds that are still to be done, and the last report."""
        progress = self._open()
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

    def _open(self) -> Progress:
        if self.checkpoint.exists():
            progress = checkpoint.read_progress(self.checkpoint)
            if progress.study != self.terms.digest:
                cure = "--again starts a new run" if progress.finished else "put the other study.toml back to go on"
                raise DataError(
                    f"{self.checkpoint}: a run of another study.toml, perhaps of this one before it was changed; {cure}"
                )
            anew = "; --again starts a new run" if progress.finished else ""
            self.tell(Event("resumed", "resuming", note=f"{progress.round} rounds are done{anew}"))
            return progress
        accepted = dict.fromkeys(self.terms.members, BEGINNING)
        progress = Progress(self.terms.digest, secrets.token_hex(8), accepted)
        # Before the first message: a server that is stopped must find its run again, and no site a second one.
        checkpoint.write(self.checkpoint, progress, None)
        return progress

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

    def _gather(self, kind: str, run: str, record: Any, read: Callable[[str, Reply], Content]) -> dict[str, Content]:
        """What everyone answers to a record; without all members there is nothing to begin with, so it waits."""
        requests = {name: Request(kind, self.terms.digest, run, arrays=pack(record)) for name in self.terms.members}
        replies = {}
        while len(replies) < len(requests):
            missing = {name: request for name, request in requests.items() if name not in replies}
            replies |= self._ask(kind, missing, read)[0]
            if len(replies) < len(requests):
                names = ", ".join(name for name in requests if name not in replies)
                self.tell(Event("waiting", kind, note=f"cannot begin without {names}"))
                time.sleep(self.policy.pause)
        return replies

    def _ask(
        self, step: str, requests: dict[str, Request], read: Callable[[str, Reply], Content]
    ) -> tuple[dict[str, Content], dict[str, str]]:
        """What the good replies hold, and in a word what was wrong with the others, after one deadline."""
        good, bad = {}, {}
        for name in requests:
            self.tell(Event("asked", step, name))
        for name, reply in self.transport.exchange(requests, self.policy.deadline, self.policy.resend):
            try:
                if isinstance(reply, Exception):
                    raise reply
                expected = {requests[name].digest, ""} if reply.refusal else {requests[name].digest}
                if reply.member != name or reply.answers not in expected:  # what cannot be read has no digest to name
                    raise DataError(f"{name} has answered another request, or under another name")
                if reply.refusal:
                    raise DataError(f"{name} refuses: {reply.refusal}")
                good[name] = read(name, reply)
            except DataError as error:
                # A word only: it is kept in the history, which all members get. What a member said is for this screen.
                bad[name] = "refused" if isinstance(reply, Reply) and reply.refusal else "sent what could not be used"
                self.tell(Event("refused", step, name, printable(str(error))))
            else:
                self.tell(Event("answered", step, name))
        return good, bad

    def _round(self, round: int, progress: Progress, state: RunState, start: Start) -> tuple[Progress, RunState]:
        began, members, like = time.perf_counter(), self.terms.members, start.first.clients.contribution
        requests = self._requests("train", progress, state, round)

        def read(name: str, reply: Reply) -> Trained:
            contribution = on_device(unpack(reply.arrays, like, name))
            return Trained(contribution, read_held_back(name, reply.facts))

        good, left_out, step = {}, {}, f"round {round + 1}"
        while True:
            missing = {name: request for name, request in requests.items() if name not in good}
            more, bad = self._ask(step, missing, read)
            good, left_out = good | more, left_out | bad
            if len(good) >= self.policy.quorum:
                break
            note = f"{len(good)} of at least {self.policy.quorum} members have answered; still waiting"
            self.tell(Event("waiting", step, note=note))
            time.sleep(self.policy.pause)
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

        good, _ = self._ask("finish", self._requests("finish", progress, state, progress.round), read)
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
