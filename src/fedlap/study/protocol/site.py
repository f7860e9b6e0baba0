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

from fedlap.engines.evaluate import evaluate
from fedlap.engines.parties import Moment
from fedlap.engines.round import ClientState
from fedlap.engines.sequential import run_client
from fedlap.engines.setup import MemoryPoints, choose_points
from fedlap.study.protocol.contents import (
    Beginning,
    HeldBack,
    Points,
    read_beginning,
    read_kept,
    read_pooled,
    versions,
)
from fedlap.study.protocol.messages import Arrays, Request, digest, on_device, pack, part, unpack
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
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(terms.digest, member, folder, log)
        self.terms, self.records = terms, records
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
    ) -> "Site":
        """The site of a member with its file, which is checked whole; its state goes beside the study by default."""
        study.member(member)
        folder = study.folder / "state" / member if folder is None else folder
        return cls(Terms.of(study), member, FileRecords(study, member, path), folder, log)

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
        named = [(when, name.lstrip("."), array) for when, record in steps for name, array in pack(record).items()]
        return [Sent(when, name, array.shape, array.nbytes) for when, name, array in named]

    def _statistics(self, request: Request, store: Store) -> Content:
        return {"versions": versions()._asdict()}, pack(self.records.statistics())

    def _points(self, request: Request, store: Store) -> Content:
        if not self.terms.share_points:
            raise Refusal(
                Reason.CONSENT, "the study file does not allow this site to share points; share_points = true would"
            )
        with refusing(Reason.ARRAYS):
            pooled = read_pooled(self.terms, request.arrays)
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
        stored = store.setup()
        if stored is not None and store.begun and digest(stored.arrays) != digest(request.arrays):
            raise Refusal(
                Reason.BEGINNING, f"{store.folder}: the server changes what the run began with; expected it to stay"
            )
        store.save_setup(StoredSetup(self.records.fingerprint(), request.arrays))
        self._begun(request, store)
        return {}, {}

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

    def _train(self, request: Request, store: Store) -> Content:
        ready = self._begun(request, store)
        broadcast = self._broadcast(request, ready.start)
        stored = store.answer(request.round, request.digest)
        if stored is None:
            self._compute(request, store, ready, broadcast)
            stored = store.answer(request.round, request.digest)
            assert stored is not None, "the round was saved in the line above"
        client = self._client(store, stored.arrays, ready.start, request.round)
        return stored.facts, pack(client.contribution)

    def _compute(self, request: Request, store: Store, ready: Ready, broadcast: Any) -> None:
        start, rows = ready.start, ready.rows
        base = store.state(request.accepted, request.round)
        client = start.first.clients if base is None else self._client(store, base, start, request.accepted)
        batches = self.terms.batches(self.member, len(rows.labels), request.round)
        moment = Moment(request.round, start.first.start if request.round == 0 else broadcast.w, start.setup.key)
        client = ClientState(*run_client(start.setup, broadcast, client, 0, batches, moment))
        facts = {"metrics": self._held_back(ready, broadcast.w)._asdict()}
        store.save(StoredRound(request.round, request.accepted, request.digest, facts, pack(client)))

    def _client(self, store: Store, arrays: Arrays, start: Start, round: int) -> ClientState:
        with refusing(Reason.DAMAGED):
            return on_device(unpack(arrays, start.first.clients, f"{store.folder}, round {round}"))

    def _finish(self, request: Request, store: Store) -> Content:
        ready = self._begun(request, store)
        broadcast = self._broadcast(request, ready.start)
        return {"metrics": self._held_back(ready, broadcast.w)._asdict()}, {}

    def _restore(self, request: Request, store: Store) -> Content:
        """Take back what the server has of this site's state; a state that is here is never replaced by another."""
        if not self.restore or store.last > request.accepted:
            raise Refusal(
                Reason.NOT_LOST,
                f"{store.folder}: the server hands back a state after round {request.accepted}; this site has its own "
                f"after round {store.last}, and takes one if that is lost and its operator says --restore",
            )
        with refusing(Reason.ARRAYS):
            beginning = part(request.arrays, "beginning")
        self._begin(dataclasses.replace(request, arrays=beginning), store)
        first = self._begun(request, store).start.first.clients
        with refusing(Reason.ARRAYS):
            kept = read_kept(self.terms, request.arrays, first.contribution, "what the server hands back")
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

    def _held_back(self, ready: Ready, w: Any) -> HeldBack:
        """The report on the rows held back; a model that has diverged has none."""
        rows, setup = ready.rows, ready.start.setup
        count = len(rows.test_labels)
        if not count:
            return HeldBack()
        inputs = jax.numpy.asarray(rows.test_inputs, setup.pool.inputs.dtype)
        accuracy, nll = evaluate(setup.task, w, inputs, rows.test_labels)
        if not np.isfinite(accuracy):
            return HeldBack()
        return HeldBack(count, round(float(accuracy) * count), float(nll) * count)

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
