"""What a site does with a request, whatever brought it: check it, compute, remember, record, answer.

statistics   send row counts, sums and sums of squares
points       (FedLap-Func only, with consent) send a few encoded inputs
begin        receive the federation's means and sizes, and remember them
train        receive what the server broadcasts, send this site's contribution, report on held-back rows
finish       receive the final model, report on held-back rows
restore      (if its operator wants it) receive this site's own state, which is lost here, as the server has it
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedlap.engines.evaluate import evaluate, predict
from fedlap.engines.parties import Moment
from fedlap.engines.round import ClientState
from fedlap.engines.scores import BINS
from fedlap.engines.sequential import run_client
from fedlap.engines.setup import MemoryPoints, choose_points
from fedlap.errors import DataError
from fedlap.study.protocol import guard
from fedlap.study.protocol.calibration import RANKS, Calibrated, calibrated
from fedlap.study.protocol.contents import (
    Beginning,
    HeldBack,
    Points,
    read_beginning,
    read_kept,
    read_pooled,
    versions,
)
from fedlap.study.protocol.guard import effective_rows
from fedlap.study.protocol.judgement import check_curvature
from fedlap.study.protocol.messages import Arrays, Request, digest, on_device, pack, part, unpack
from fedlap.study.protocol.permits import SiteRules
from fedlap.study.protocol.records import FileRecords
from fedlap.study.protocol.refusals import Reason, Refusal, refusing
from fedlap.study.protocol.respondent import Content, Method, Respondent, Sent
from fedlap.study.protocol.restoring import rebuilt
from fedlap.study.protocol.store import BEGINNING, Store, StoredRound, StoredSetup
from fedlap.study.protocol.terms import Agreement, Rows, Start, Terms
from fedlap.study.table.encoding import Pooled, Statistics, pool


class Records(Protocol):
    """A site's own data, not yet encoded."""

    def statistics(self) -> Statistics:
        """What is pooled over all members."""
        ...

    def check_pooled(self, pooled: Pooled) -> None:
        """DataError unless these rows can be among those that the statistics are of."""
        ...

    def encode(self, pooled: Pooled) -> Rows:
        """Inputs and labels, once the pooled statistics are known."""
        ...

    def fingerprint(self) -> str:
        """Changes with the data."""
        ...


class Ready(NamedTuple):
    """A run that this site has begun: its name, what its rounds are computed from, and the site's own rows."""

    run: str
    start: Start
    rows: Rows


class Site(Respondent):
    """One member, its data and its folder. All it remembers between two requests is on disk."""

    def __init__(
        self,
        terms: Terms,
        member: str,
        records: Records,
        folder: str | Path,
        rules: SiteRules,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(terms.digest, member, folder, rules, log)
        self.terms, self.records = terms, records
        guard.check_size(rules, member, int(records.statistics().rows), terms.covariances)
        self._ready: Ready | None = None  # built once a run, from the store

    def methods(self) -> Mapping[str, Method]:
        """What is done with a request, by its kind; the store is that of the request's run."""
        steps: dict[str, Callable[[Request, Store], Content]] = {
            "statistics": self._statistics,
            "points": self._points,
            "begin": self._begin,
            "train": self._train,
            "finish": self._finish,
            "restore": self._restore,
        }
        store = lambda request: Store(self.folder, self.study, self.member, request.run)
        return {kind: lambda request, step=step: step(request, store(request)) for kind, step in steps.items()}

    def step(self, request: Request) -> str:
        """What the log calls a request."""
        return f"round {request.round + 1}" if request.kind == "train" else request.kind

    @classmethod
    def of(
        cls,
        study: Agreement,
        member: str,
        path: str | Path,
        folder: str | Path | None = None,
        log: Callable[[str], None] = lambda line: None,
        rules: SiteRules | None = None,
    ) -> "Site":
        """The site of a member with its file, which is checked whole; its state goes beside the study by default.

        If no rules are given, they are those of policy.toml beside the file.
        """
        study.member(member)
        folder = study.folder / "state" / member if folder is None else folder
        rules = study.policy(path) if rules is None else rules
        return cls(Terms.of(study), member, FileRecords(study, member, path), folder, rules, log)

    def explain(self) -> list[Sent]:
        """Everything this site would send; shapes that depend on the other members are as if all were like this one."""
        statistics = self.records.statistics()
        steps: list[tuple[str, Any]] = [("once, before the first round", statistics)]
        rows = self.records.encode(pool([statistics]))
        memory, members = None, len(self.terms.members)
        if self.terms.algorithm.memory:
            points = self._own_points(rows)
            steps.append(("once, before the first round (share_points = true)", points))
            count = len(points.weights)
            memory = MemoryPoints(
                np.zeros((count * members, self.terms.features), np.float32),
                np.arange(count * members, dtype=np.int32).reshape(members, count),
                np.ones((members, count)),
            )
        start = self.terms.site_start(self.member, rows, np.full(members, len(rows.labels)), memory)
        steps.append(("every round", start.first.clients.contribution))
        steps.append(("every round, about the rows held back", HeldBack()))
        ranks = RANKS if self.terms.classes == 2 else 0
        at_most: Any = Calibrated(0.0)._replace(reliability=np.zeros((BINS, 4)), ranking=np.zeros((ranks, 3)))
        steps.append(("once, after the last round, about the rows held back (cells, at most)", at_most))
        named = [(when, name.lstrip("."), array) for when, record in steps for name, array in pack(record).items()]
        return [Sent(when, name, array.shape, array.nbytes) for when, name, array in named]

    def _statistics(self, request: Request, store: Store) -> Content:
        self.permit(request)
        return {"versions": versions()._asdict()}, pack(self.records.statistics())

    def _points(self, request: Request, store: Store) -> Content:
        if not self.terms.share_points:
            raise Refusal(
                Reason.CONSENT, "the study file does not allow this site to share points; share_points = true would"
            )
        with refusing(Reason.ARRAYS):
            pooled = read_pooled(self.terms, request.arrays)
        self.permit(request)
        self._check_pooled(pooled)
        return {}, pack(self._own_points(self.records.encode(pooled)))

    def _own_points(self, rows: Rows) -> Points:
        terms = self.terms
        places, weights = choose_points(rows.labels, terms.classes, terms.algorithm.memory, terms.seed, self.member)
        return Points(rows.inputs[places], weights)

    def _begin(self, request: Request, store: Store) -> Content:
        self._ready = None
        with refusing(Reason.ARRAYS):
            beginning = read_beginning(self.terms, request.arrays, "what the server begins with")
        self._check_sizes(beginning)
        self._check_pooled(beginning.pooled)
        self.permit(request)
        stored = store.setup()
        if stored is not None and store.begun and digest(stored.arrays) != digest(request.arrays):
            raise Refusal(
                Reason.BEGINNING, f"{store.folder}: the server changes what the run began with; expected it to stay"
            )
        store.save_setup(StoredSetup(self.records.fingerprint(), request.arrays))
        held_back = len(self._begun(request, store).rows.test_labels)
        if not self._reports(held_back):
            self.log(
                f"nothing will be reported on the {held_back} rows held back: this site's rules are minimum_rows = "
                f"{self.rules.minimum_rows} and metrics = {str(self.rules.metrics).lower()}, {self.rules.source}"
            )
        return {}, {}

    def _check_pooled(self, pooled: Pooled) -> None:
        try:
            self.records.check_pooled(pooled)
        except DataError as error:
            guard.refuse("what is pooled is possible within the study's ranges and with this site's rows", str(error))

    def _check_sizes(self, beginning: Beginning) -> None:
        """Before room is made for row numbers: the sizes are what the other members say of themselves."""
        members, most = self.terms.members, self.terms.most_rows
        for member, count in zip(members, beginning.sizes.tolist(), strict=True):
            if not 1 <= count <= most:
                raise Refusal(
                    Reason.SIZES, f"the server counts {count} training rows at {member}; expected from 1 to {most}"
                )
        counted, rows = int(beginning.sizes[members.index(self.member)]), int(self.records.statistics().rows)
        if counted != rows:
            raise Refusal(
                Reason.SIZES,
                f"the server counts {counted} training rows here, this site has {rows}; expected the same number",
            )
        total, pooled = int(beginning.sizes.sum()), float(beginning.pooled.rows)
        if total != pooled:
            raise Refusal(
                Reason.SIZES,
                f"the server counts {total} training rows member by member, and {pooled:g} in all; expected the same",
            )

    def _train(self, request: Request, store: Store) -> Content:
        ready = self._begun(request, store)
        guard.check_number(request.round, self.terms.last_round)
        broadcast = self._broadcast(request, ready.start)
        stored = store.answer(request.round, request.digest)
        if stored is None:
            store.unanswered(request.round)
            self._check_turn(request.round, store)
            self._compute(request, store, ready, broadcast)
            stored = store.answer(request.round, request.digest)
            assert stored is not None, "the round was saved in the line above"
        client = self._client(store, stored.arrays, ready.start, request.round)
        return stored.facts, pack(client.contribution)

    def _check_turn(self, round: int, store: Store) -> None:
        """Refuse a round that leaves one out, where all members take part in every one."""
        if not self.terms.gaps and round > store.last + 1:
            guard.refuse(
                "rounds come one after the other",
                f"round {round + 1} is asked after round {store.last + 1}; expected round {store.last + 2}, as this "
                "site's study.toml has no quorum below all members",
            )

    def _compute(self, request: Request, store: Store, ready: Ready, broadcast: Any) -> None:
        start, rows = ready.start, ready.rows
        base = store.state(request.accepted, request.round)
        client = start.first.clients if base is None else self._client(store, base, start, request.accepted)
        self._check_broadcast(request.round, ready, broadcast, client)
        batches = self.terms.batches(self.member, len(rows.labels), request.round)
        moment = Moment(request.round, start.first.start if request.round == 0 else broadcast.w, start.setup.key)
        client = ClientState(*run_client(start.setup, broadcast, client, 0, batches, moment))
        facts = {"metrics": self._held_back(ready, broadcast.w)._asdict()}
        store.save(StoredRound(request.round, request.accepted, request.digest, facts, pack(client)))

    def _check_broadcast(self, round: int, ready: Ready, broadcast: Any, client: ClientState) -> None:
        """Refuse what the study's past does not explain, and a model at which a few rows outweigh the others."""
        algorithm, start = self.terms.algorithm, ready.start
        if round == 0:
            guard.check_start(broadcast, algorithm.broadcast(start.first.server))
        S, V = getattr(broadcast, "S", None), algorithm.own_part(broadcast, client.factor)
        if S is not None and V is not None:
            # Where factors may take away from a precision, what is known is that it is one. Where a bound lets only a
            # part of them count, it is that the prior is in it.
            own = V if self.terms.bound is None else 0.0 * V
            floor = algorithm.least + own if algorithm.curvatures else 0.0 * V
            guard.check_precision(np.asarray(S), np.asarray(floor))
        probabilities = self._probabilities(ready, broadcast.w, start.setup.pool.inputs)
        curvature = effective_rows((probabilities * (1 - probabilities)).sum(-1))
        slopes = effective_rows(1 - np.take_along_axis(probabilities, ready.rows.labels[:, None], -1)[:, 0])
        # What has no curvature in it tells of the rows through their slopes.
        spread = curvature if V is not None else max(curvature, slopes)
        guard.check_spread(self.rules, spread, len(ready.rows.labels))

    def _probabilities(self, ready: Ready, w: Any, inputs: Any) -> np.ndarray:
        setup = ready.start.setup
        return np.asarray(predict(setup.task, w, jax.numpy.asarray(inputs, setup.pool.inputs.dtype)), np.float64)

    def _client(self, store: Store, arrays: Arrays, start: Start, round: int) -> ClientState:
        with refusing(Reason.DAMAGED):
            return on_device(unpack(arrays, start.first.clients, f"{store.folder}, round {round}"))

    def _finish(self, request: Request, store: Store) -> Content:
        """The last report, as of a round after the last: answered once, and then no other round is."""
        ready, number = self._begun(request, store), self.terms.last_round + 1
        if request.round != number:
            guard.refuse(
                "the end comes after the last round",
                f"the study is said to end after {request.round} rounds; expected {number}",
            )
        broadcast = self._broadcast(request, ready.start)
        stored = store.answer(number, request.digest)
        if stored is None:
            store.unanswered(number)
            self._check_turn(number, store)
            held_back = self._held_back(ready, broadcast.w, last=True)
            about = self._calibrated(ready, broadcast.w, held_back)
            facts = {"metrics": held_back._asdict(), "calibration": about._asdict()}
            stored = StoredRound(number, request.accepted, request.digest, facts, {})
            store.save(stored)
        return stored.facts, {}

    def _restore(self, request: Request, store: Store) -> Content:
        """Take back what the server has of this site's state; a state that is here is never replaced by another."""
        if not self.restore or store.last > request.accepted:
            raise Refusal(
                Reason.NOT_LOST,
                f"{store.folder}: the server hands back a state after round {request.accepted}; this site has its own "
                f"after round {store.last}, and takes one if that is lost and its operator says --restore",
            )
        guard.check_number(max(request.accepted, 0), self.terms.last_round)
        with refusing(Reason.ARRAYS):
            beginning = part(request.arrays, "beginning")
        self._begin(dataclasses.replace(request, arrays=beginning), store)
        first = self._begun(request, store).start.first.clients
        with refusing(Reason.ARRAYS):
            kept = read_kept(self.terms, request.arrays, first.contribution, "what the server hands back")
            check_curvature(self.terms, "what the server hands back", kept.contribution)
        client = rebuilt(self.terms.algorithm, first, kept.contribution)
        if client is None:
            raise Refusal(Reason.NOT_LOST, "the server has a part only of this site's state, and hands that back")
        arrays = pack(client)
        if store.last > BEGINNING and digest(store.state(request.accepted, request.round) or {}) != digest(arrays):
            raise Refusal(
                Reason.NOT_LOST, f"{store.folder}: the server hands back another state than the one that is here"
            )
        if request.accepted > BEGINNING:
            store.save(StoredRound(request.accepted, BEGINNING, request.digest, {}, arrays))
        return {}, {}

    def _broadcast(self, request: Request, start: Start) -> Any:
        with refusing(Reason.ARRAYS):
            like = self.terms.algorithm.broadcast(start.first.server)
            return on_device(unpack(request.arrays, like, "the server's state"))

    def _reports(self, held_back: int) -> bool:
        """Whether this site reports on so many rows."""
        return self.rules.metrics and held_back >= max(1, self.rules.minimum_rows)

    def _held_back(self, ready: Ready, w: Any, last: bool = False) -> HeldBack:
        """The report on the rows held back; a model that has diverged has none."""
        rows, setup = ready.rows, ready.start.setup
        count = len(rows.test_labels)
        if not self._reports(count):
            return HeldBack()
        inputs = jax.numpy.asarray(rows.test_inputs, setup.pool.inputs.dtype)
        found = evaluate(setup.task, w, inputs, rows.test_labels)
        if not np.isfinite(found.accuracy):
            return HeldBack()
        probabilities = self._probabilities(ready, w, rows.test_inputs)
        spread, least = effective_rows((probabilities * (1 - probabilities)).sum(-1)), guard.fewest(self.rules, count)
        if spread < least:
            self.log(
                f"nothing is reported on the rows held back: at the server's model effectively {spread:.1f} of {count} "
                f"decide; expected at least {least:.1f} (minimum_rows)"
            )
            return HeldBack()
        return guard.report(self.rules, count, round(float(found.accuracy) * count), float(found.nll), last)

    def _calibrated(self, ready: Ready, w: Any, held_back: HeldBack) -> Calibrated:
        """What is said once of the rows held back, where these are reported on."""
        if not held_back.rows:
            return Calibrated()
        rows = ready.rows
        said = calibrated(self._probabilities(ready, w, rows.test_inputs), rows.test_labels, self.rules.minimum_rows)
        if len(said.reliability) < BINS or not said.ranking:
            self.log(
                f"calibration is reported in {len(said.reliability)} cells of {BINS} bins of confidence and in "
                f"{len(said.ranking)} of {RANKS} of probability: no cell has fewer than {self.rules.minimum_rows} rows "
                "(minimum_rows)"
            )
        return said

    def _begun(self, request: Request, store: Store) -> Ready:
        """The run that the request belongs to, as this site began it."""
        if self._ready is None or self._ready.run != request.run:
            stored = store.setup()
            if stored is None:
                raise Refusal(
                    Reason.LOST,
                    f"{store.folder}: this site has not begun the run {request.run}; expected the state folder that "
                    "this member has used so far",
                )
            if stored.data != self.records.fingerprint():
                raise Refusal(
                    Reason.DATA, "this site's data are not those that the run began with; expected the same file"
                )
            with refusing(Reason.DAMAGED):
                beginning = read_beginning(self.terms, stored.arrays, f"{store.folder}, setup")
            rows = self.records.encode(beginning.pooled)
            start = self.terms.site_start(self.member, rows, beginning.sizes, beginning.memory)
            self._ready = Ready(request.run, start, rows)
        return self._ready
