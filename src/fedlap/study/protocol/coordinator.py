"""What the server does: gather statistics, run the rounds, wait for a quorum, and survive being stopped at any point.

Nothing here knows how messages travel. After every step all that matters is on disk; started again, it goes on from
there, and a site that has done a step already answers it from its own disk.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedlap.engines.setup import join_points
from fedlap.study.protocol import checkpoint, heads, runs
from fedlap.study.protocol.calibration import Calibrated, read_calibrated
from fedlap.study.protocol.checkpoint import Progress, RoundReport, RunState
from fedlap.study.protocol.contents import (
    Beginning,
    HeldBack,
    Kept,
    Points,
    Trained,
    check_versions,
    read_held_back,
    read_points,
    read_statistics,
    versions,
)
from fedlap.study.protocol.heads import Heads
from fedlap.study.protocol.influence import far_outside, in_words, unit
from fedlap.study.protocol.inquiry import Answered, Event, Inquiry, Patience, Transport
from fedlap.study.protocol.judgement import RUINED, check_contribution, judge
from fedlap.study.protocol.line import ServerLine
from fedlap.study.protocol.merging import Merging
from fedlap.study.protocol.messages import Reply, Request, check, on_device, pack, unpack
from fedlap.study.protocol.metrics import score
from fedlap.study.protocol.restoring import Restoring, rebuilt
from fedlap.study.protocol.terms import Agreement, Start, Terms
from fedlap.study.table.encoding import Pooled, Statistics, check_statistics, pool

DIVIDED_OUT = "its factor was divided out of the model"
DROPPED = "its contribution is no longer in the model's sum; what the model learned from it before stays"


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind; `fedlap.study.save_outcome` makes the model's files of it."""

    run: str
    server: Any  # the server's state: `server.w` are the weights
    precision: Any  # how sure the model is of them; None where the algorithm does not say
    pooled: Pooled
    sizes: dict[str, int]  # rows to train on, by member
    history: tuple[RoundReport, ...]
    without: dict[str, dict[str, Any]] = field(default_factory=dict)  # who was left out for good, when and how


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
        without: Sequence[str] = (),
    ) -> None:
        self.terms, self.check_statistics, self.patience, self.tell = terms, check_statistics, patience, tell
        self.restoring, self.without = Restoring(transport, tell), without
        self.inquiry = Inquiry(patience, self.restoring, tell, Heads(Path(folder) / heads.FILE))
        self.checkpoint = Path(folder) / "checkpoint.npz"

    @classmethod
    def of(
        cls,
        study: Agreement,
        transport: Transport,
        folder: str | Path | None = None,
        tell: Callable[[Event], None] = lambda event: None,
        without: Sequence[str] = (),
    ) -> "Coordinator":
        """The coordinator of a study; its checkpoint goes beside the study by default.

        `without` names members whose state is lost, and whom the run goes on without.
        """
        patience = Patience(study.quorum, study.deadline, study.retries)
        folder = runs.folder(study) if folder is None else folder
        return cls(Terms.of(study), partial(check_statistics, study), patience, transport, folder, tell, without)

    def run(self) -> Outcome:
        """All rounds that are still to be done, and the last report."""
        progress = runs.open_run(self.checkpoint, self.terms.digest, self.terms.members, self.tell)
        known = checkpoint.read_state(self.checkpoint, self.terms)
        runs.check_without(self.without, progress, self.terms.members, known is not None)
        state, start = known or self._begin(progress)
        if lost := [name for name in self.without if name not in progress.without]:
            progress, state = self._leave_out(lost, progress, state, start)
        for round in range(progress.round, self.terms.last_round + 1):
            progress, state = self._round(round, progress, state, start)
            checkpoint.keep(self.checkpoint)
            checkpoint.write(self.checkpoint, progress, state)
        if not progress.finished:
            progress = self._finish(progress, state, start)
            checkpoint.write(self.checkpoint, progress, state)
        self.tell(Event("finished", "finish"))
        sizes = dict(zip(self.terms.members, state.beginning.sizes.tolist(), strict=True))
        precision = self.terms.algorithm.precision_ahead(state.server)
        how = DIVIDED_OUT if self.terms.divides else DROPPED
        without = {name: {"after_round": round, "how": how} for name, round in progress.without.items()}
        pooled, history = state.beginning.pooled, progress.history
        return Outcome(progress.run, state.server, precision, pooled, sizes, history, without)

    def _members(self, progress: Progress) -> tuple[str, ...]:
        """Those who are in the run."""
        return tuple(name for name in self.terms.members if name not in progress.without)

    def _leave_out(
        self, names: Sequence[str], progress: Progress, state: RunState, start: Start
    ) -> tuple[Progress, RunState]:
        """The run without some members, for good: what they have sent leaves the checkpoint and every later sum.

        A round that is under way goes on from the model that it was begun with, as some may have answered it; where a
        contribution is a factor, the sum at its end has none of theirs: it is divided out of the model. Without a round
        to come, that sum is made at once.
        """
        progress = replace(progress, without={**progress.without, **dict.fromkeys(names, progress.round)})
        rest, nothing = self._members(progress), start.first.clients.contribution
        kept = lambda given: tuple(
            each if name in rest else nothing for name, each in zip(self.terms.members, given, strict=True)
        )
        state = state._replace(contributions=kept(state.contributions), used=state.used and kept(state.used))
        if self.terms.divides and progress.round > self.terms.last_round:
            server = self._merging(progress, state, start).merged({}).server
            judge(self.terms.algorithm, server, f"the model without {', '.join(names)}")
            state = state._replace(server=server)
        checkpoint.keep(self.checkpoint)
        checkpoint.write(self.checkpoint, progress, state)
        how = DIVIDED_OUT if self.terms.divides else DROPPED
        for name in names:
            self.tell(Event("noted", f"round {progress.round + 1}", name, f"is left out for good: {how}"))
        return progress, state

    def _by_name(self, each: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.terms.members, each, strict=True))

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
        began, members, like = time.perf_counter(), self._members(progress), start.first.clients.contribution
        requests, sent = self._requests("train", progress, state, round), self._by_name(state.contributions)
        merging = self._merging(progress, state, start)
        self.restoring.hand_back = partial(self._hand_back, progress, state, start)

        def read(name: str, reply: Reply) -> Trained:
            contribution = on_device(unpack(reply.arrays, like, name))
            check_contribution(self.terms, start, name, round, contribution, sent[name])
            return Trained(contribution, read_held_back(name, reply.facts, progress.held_back.get(name)))

        good, left_out, step = {}, {}, f"round {round + 1}"
        quorum = min(self.patience.quorum, len(members))
        while True:
            missing = {name: request for name, request in requests.items() if name not in good}
            more, bad = self.inquiry.once(step, missing, read)
            good, left_out = good | more, left_out | bad
            if len(good) >= quorum:
                contributions = {name: trained.contribution for name, trained in good.items()}
                merged = merging.judged(contributions, f"the model after {step}")
                for name in merged.without:
                    del good[name]
                    left_out[name] = RUINED
                    self.tell(Event("refused", step, name, f"{name} {RUINED}, and is left out of this round"))
                if len(good) >= quorum:
                    break
            culprits = [name for name, word in left_out.items() if word == RUINED and name not in good]
            whom = f" for another reply of {', '.join(culprits)} (--without NAME goes on for good)" if culprits else ""
            note = f"{len(good)} of at least {quorum} members have answered; still waiting{whom}"
            self.tell(Event("waiting", step, note=note))
            time.sleep(self.patience.pause)
        moved = merging.influences(merged, tuple(sorted(good)))
        history = self._scored(progress.history, (trained.held_back for trained in good.values()))
        report = RoundReport(
            round=round + 1,
            members=tuple(sorted(good)),
            absent=tuple(sorted(set(members) - set(good))),
            left_out={name: reason for name, reason in left_out.items() if name not in good},
            seconds=time.perf_counter() - began,
            influence=moved,
            influence_unit=unit(self.terms.algorithm, merged.server),
            outside=far_outside([*(each.influence for each in history), moved], [each.outside for each in history]),
        )
        for name in report.outside:
            self.tell(Event("noted", step, name, "moves the model far more than the others do, or than it did before"))
        progress = replace(
            progress,
            round=round + 1,
            accepted={name: round if name in good else stamp for name, stamp in progress.accepted.items()},
            history=(*history, report),
            held_back={**progress.held_back, **{n: t.held_back.rows for n, t in good.items() if t.held_back.rows}},
        )
        raw = {**sent, **{name: trained.contribution for name, trained in good.items()}}
        return progress, state._replace(
            server=merged.server,
            contributions=tuple(raw[name] for name in self.terms.members),
            used=state.used and tuple(merged.summed[name] for name in self.terms.members),
        )

    def _merging(self, progress: Progress, state: RunState, start: Start) -> Merging:
        """The server before a round."""
        line = ServerLine(self.terms, start, self._members(progress))
        return Merging(line, state.server, self._by_name(state.used or state.contributions), self.terms.bound)

    def _hand_back(self, progress: Progress, state: RunState, start: Start, name: str) -> Request | None:
        """The request that gives a member its state back; None if there is more to it than the server has."""
        contribution = self._by_name(state.contributions)[name]
        if rebuilt(self.terms.algorithm, start.first.clients, contribution) is None:
            return None
        arrays = pack(Kept(state.beginning, contribution))
        return Request("restore", self.terms.digest, progress.run, progress.round, progress.accepted[name], arrays)

    def _finish(self, progress: Progress, state: RunState, start: Start) -> Progress:
        def read(name: str, reply: Reply) -> tuple[HeldBack, Calibrated]:
            check(reply.arrays, {}, name)
            held_back = read_held_back(name, reply.facts, progress.held_back.get(name))
            return held_back, read_calibrated(name, reply.facts, held_back.rows)

        requests = self._requests("finish", progress, state, progress.round)
        self.restoring.hand_back = partial(self._hand_back, progress, state, start)
        good, _ = self.inquiry.once("finish", requests, read)
        reports, cells = [each[0] for each in good.values()], [each[1] for each in good.values()]
        return replace(progress, finished=True, history=self._scored(progress.history, reports, cells))

    def _requests(self, kind: str, progress: Progress, state: RunState, round: int) -> dict[str, Request]:
        """To every member what the algorithm broadcasts."""
        arrays = pack(self.terms.algorithm.broadcast(state.server))
        request = partial(Request, kind, self.terms.digest, progress.run, round)
        return {name: request(progress.accepted[name], arrays) for name in self._members(progress)}

    def _scored(
        self, history: tuple[RoundReport, ...], reports: Iterable[HeldBack], cells: Iterable[Calibrated] = ()
    ) -> tuple[RoundReport, ...]:
        """The history with the last model's score, which comes with the answers to the next request."""
        if not history:
            return history
        last = replace(history[-1], score=score(reports, cells))
        moved = in_words(last.influence, last.influence_unit)
        self.tell(Event("round", f"round {last.round}", note=f"{last.score}; {moved}" if moved else str(last.score)))
        return *history[:-1], last
