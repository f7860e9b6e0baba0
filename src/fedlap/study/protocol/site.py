"""What a site does with a request, whatever brought it: check it, compute, remember, record, answer.

statistics   send row counts, sums and sums of squares
points       (FedLap-Func only, with consent) send a few encoded inputs
begin        receive the federation's means and sizes, and remember them
train        receive what the server broadcasts, send this site's contribution, report on held-back rows
finish       receive the final model, report on held-back rows
"""

import platform
import time
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, Protocol

import jax
import numpy as np

from fedlap.engines.evaluate import evaluate
from fedlap.engines.memory import MemoryPoints, choose_points
from fedlap.engines.parties import Moment
from fedlap.engines.round import ClientState
from fedlap.engines.sequential import run_client
from fedlap.errors import FedlapError
from fedlap.study.protocol import audit
from fedlap.study.protocol.messages import Reply, check, digest, pack, size, unpack
from fedlap.study.protocol.refusals import Reason, Refusal, refusing
from fedlap.study.protocol.store import Store
from fedlap.study.protocol.terms import Rows, Terms

KINDS = ("statistics", "points", "begin", "train", "finish")


class Records(Protocol):
    """A site's own data, not yet encoded."""

    def statistics(self) -> dict[str, np.ndarray]:
        """What is pooled over all members; `rows` is the number of training rows."""

    def pool(self, statistics: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """What the server will make of all members' statistics."""

    def encode(self, pooled: dict[str, np.ndarray]) -> Rows:
        """Inputs and labels, once the pooled statistics are known."""

    def fingerprint(self) -> str:
        """Changes with the data."""


class Step(NamedTuple):
    """One thing that leaves a site, for `--explain`."""

    when: str
    name: str
    shape: tuple
    bytes: int


class Site:
    """One member, its data and its folder. All it remembers between two requests is on disk."""

    def __init__(self, terms: Terms, member: str, records: Records, folder, log=lambda words: None):
        self.terms, self.member, self.records, self.folder, self.log = terms, member, records, Path(folder), log
        self._ready = None  # (run, Start, Rows): built once a run, from the store

    @property
    def audit_log(self):
        return self.folder / f"audit-{self.member}.jsonl"

    def answer(self, request) -> Reply:
        """The reply to a request; if it cannot be answered, a fixed reason, and in the log what is wrong."""
        began = time.perf_counter()
        try:
            facts, arrays = self._answer(request)
            reply, words = Reply(self.member, request.digest, "", facts, arrays), f"{size(arrays):,} bytes to send"
        except FedlapError as error:
            reason = error.reason if isinstance(error, Refusal) else Reason.OTHER
            reply, words = Reply(self.member, request.digest, reason.value), f"refused: {error}"
        audit.append(self.audit_log, self.member, request, reply)
        step = f"round {request.round + 1}" if request.kind == "train" else request.kind
        self.log(f"{step}: {words} after {time.perf_counter() - began:.2f} s")
        return reply

    def _answer(self, request):
        if request.study != self.terms.digest:
            raise Refusal(
                Reason.STUDY,
                f"the server's study file has the digest {request.study[:12]}, this site's {self.terms.digest[:12]}; "
                "expected the same study.toml at the server and at every member",
            )
        if request.kind not in KINDS or not (request.run.isalnum() and len(request.run) <= 64):
            raise Refusal(Reason.REQUEST, f"a request of kind {request.kind!r}; expected one of {', '.join(KINDS)}")
        store = Store(self.folder, self.terms.digest, self.member, request.run)
        return getattr(self, f"_{request.kind}")(request, store)

    def _statistics(self, request, store):
        return {"versions": versions()}, self.records.statistics()

    def _points(self, request, store):
        if not self.terms.share_points:
            raise Refusal(
                Reason.CONSENT, "the study file does not allow this site to share points; share_points = true would"
            )
        return {}, self._own_points(self._encode(request.arrays))

    def _encode(self, pooled):
        with refusing(Reason.ARRAYS):
            return self.records.encode(pooled)

    def _own_points(self, rows):
        terms = self.terms
        places, weights = choose_points(rows.labels, terms.classes, terms.algorithm.memory, terms.seed, self.member)
        return {"inputs": rows.inputs[places], "weights": weights}

    def _begin(self, request, store):
        self._ready = None
        self._check_sizes(request.arrays.get("sizes"))
        saved = store.setup()
        if saved is not None and store.begun and digest(saved[1]) != digest(request.arrays):
            raise Refusal(
                Reason.BEGINNING, f"{store.folder}: the server changes what the run began with; expected it to stay"
            )
        store.save_setup({"data": self.records.fingerprint()}, request.arrays)
        self._fixed(request, store)
        return {}, {}

    def _check_sizes(self, sizes):
        """Before room is made for them: the sizes are what the other members say of themselves."""
        members, most = self.terms.members, self.terms.most_rows
        with refusing(Reason.SIZES):
            check({"sizes": sizes}, {"sizes": (np.int64, (len(members),))}, "the server's numbers of training rows")
        for member, count in zip(members, sizes.tolist(), strict=True):
            if not 1 <= count <= most:
                raise Refusal(
                    Reason.SIZES, f"the server counts {count} training rows at {member}; expected from 1 to {most}"
                )
        counted, rows = int(sizes[members.index(self.member)]), int(self.records.statistics()["rows"])
        if counted != rows:
            raise Refusal(
                Reason.SIZES,
                f"the server counts {counted} training rows here, this site has {rows}; expected the same number",
            )

    def _train(self, request, store):
        fixed, rows = self._fixed(request, store)
        told = self._told(request, fixed)
        saved = store.answer(request.round, request.digest)
        if saved is None:
            self._compute(request, store, fixed, rows, told)
            saved = store.answer(request.round, request.digest)
        header, arrays = saved
        client = self._stored(store, arrays, fixed, request.round)
        return header["facts"], pack(client.contribution)

    def _compute(self, request, store, fixed, rows, told):
        base = store.state(request.accepted, request.round)
        client = fixed.first.clients
        if base is not None:
            client = self._stored(store, base, fixed, request.accepted)
        batches = self.terms.batches(self.member, len(rows.labels), request.round)
        start = fixed.first.start if request.round == 0 else told.w
        moment = Moment(request.round, start, fixed.setup.key)
        client = ClientState(*run_client(fixed.setup, told, client, 0, batches, moment))
        facts = {"metrics": self._metrics(fixed, rows, told.w)}
        store.save(request.round, request.accepted, request.digest, {"facts": facts}, pack(client))

    def _stored(self, store, arrays, fixed, round):
        with refusing(Reason.DAMAGED):
            return unpack(arrays, fixed.first.clients, f"{store.folder}, round {round}")

    def _finish(self, request, store):
        fixed, rows = self._fixed(request, store)
        told = self._told(request, fixed)
        return {"metrics": self._metrics(fixed, rows, told.w)}, {}

    def _told(self, request, fixed):
        with refusing(Reason.ARRAYS):
            return unpack(request.arrays, self.terms.algorithm.broadcast(fixed.first.server), "the server's state")

    def _metrics(self, fixed, rows, w):
        """Sums over the held-back rows, to be added over members; a model that has diverged has none."""
        count = len(rows.test_labels)
        if not count:
            return {"rows": 0, "correct": 0, "nll": 0.0}
        real = fixed.setup.pool.inputs.dtype
        accuracy, nll = evaluate(fixed.setup.task, w, jax.numpy.asarray(rows.test_inputs, real), rows.test_labels)
        if not np.isfinite(accuracy):
            return {"rows": 0, "correct": 0, "nll": 0.0}
        return {"rows": count, "correct": round(float(accuracy) * count), "nll": float(nll) * count}

    def _fixed(self, request, store):
        if self._ready is None or self._ready[0] != request.run:
            saved = store.setup()
            if saved is None:
                raise Refusal(
                    Reason.LOST,
                    f"{store.folder}: this site has not begun the run {request.run}; expected the state folder that "
                    "this member has used so far",
                )
            header, arrays = saved
            if header["data"] != self.records.fingerprint():
                raise Refusal(
                    Reason.DATA, "this site's data are not those that the run began with; expected the same file"
                )
            memory = None
            if "memory/inputs" in arrays:
                memory = MemoryPoints(*(arrays[f"memory/{name}"] for name in MemoryPoints._fields))
            rows = self._encode(_without(arrays, "memory/", "sizes"))
            start = self.terms.site_start(self.member, rows, arrays["sizes"], memory)
            self._ready = request.run, start, rows
        return self._ready[1:]

    def explain(self):
        """Everything this site would send; shapes that depend on the other members are as if all were like this one."""
        statistics = self.records.statistics()
        steps = [("once, before the first round", statistics)]
        rows = self.records.encode(self.records.pool([statistics]))
        memory = None
        if self.terms.algorithm.memory:
            points = self._own_points(rows)
            steps.append(("once, before the first round (share_points = true)", points))
            count, members = len(points["weights"]), len(self.terms.members)
            memory = MemoryPoints(
                np.zeros((count * members, self.terms.features), np.float32),
                np.arange(count * members, dtype=np.int32).reshape(members, count),
                np.ones((members, count)),
            )
        sizes = np.full(len(self.terms.members), len(rows.labels))
        fixed = self.terms.site_start(self.member, rows, sizes, memory)
        steps.append(("every round", pack(fixed.first.clients.contribution)))
        steps.append(("every round, about the rows held back", {n: np.zeros(()) for n in ("rows", "correct", "nll")}))
        return [Step(when, name, a.shape, a.nbytes) for when, arrays in steps for name, a in arrays.items()]


def _without(arrays, *prefixes):
    return {name: array for name, array in arrays.items() if not name.startswith(prefixes)}


def versions():
    """What two parties must have in common to run the same program."""
    return {
        "fedlap": metadata.version("fedlap"),
        "jax": jax.__version__,
        "precision": str(jax.numpy.zeros(()).dtype),
        "python": platform.python_version(),
    }
