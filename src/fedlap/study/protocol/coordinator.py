"""What the server does: gather statistics, run the rounds, wait for a quorum, and survive being stopped at any point.

Nothing here knows how messages travel. After every step all that matters is on disk; started again, it goes on from
there, and a site that has done a step already answers it from its own disk.
"""

import secrets
import time
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from fedlap.engines.memory import MemoryPoints, join_points
from fedlap.engines.sequential import run_server
from fedlap.errors import DataError
from fedlap.study.protocol import store
from fedlap.study.protocol.messages import Reply, Request, check, pack, unpack
from fedlap.study.protocol.metrics import pooled_metrics, printable, shown
from fedlap.study.protocol.site import versions
from fedlap.study.protocol.terms import Terms

WORDS = ("fedlap", "jax", "precision")  # of the versions, those that decide the last bits


class Event(NamedTuple):
    """Something worth telling whoever watches."""

    kind: str  # "asked", "answered", "refused", "waiting", "round", "resumed" or "finished"
    step: str
    member: str = ""
    words: str = ""


class Transport(Protocol):
    """How requests reach the members and replies come back."""

    def exchange(self, requests: dict[str, Request], seconds: float, resend: float):
        """Send each member its request, again after `resend` seconds without reply; yield (member, Reply or DataError).

        At most one reply of each member; ends when all have replied or the seconds are over.
        """


class Policy(NamedTuple):
    """How long to wait, and for whom."""

    quorum: int
    deadline: float
    retries: int

    @property
    def resend(self):
        return self.deadline / (self.retries + 1)

    @property
    def pause(self):
        """Before all those are asked again who have refused, or sent what could not be used."""
        return min(self.resend, 10.0)


class Coordinator:
    """One run of a study. `pool` makes the federation's statistics from the members'."""

    def __init__(self, terms: Terms, pool, policy: Policy, transport: Transport, folder, tell=lambda event: None):
        self.terms, self.pool, self.policy, self.transport, self.tell = terms, pool, policy, transport, tell
        self.checkpoint = Path(folder) / "checkpoint.npz"

    def run(self):
        """All rounds that are still to be done, and the last report."""
        header, arrays = self._open()
        if not header["begun"]:
            header, arrays = self._begin(header)
        self.fixed = self._fixed(arrays)
        server, contributions = self._restore(arrays)
        for round in range(header["round"], self.terms.last_round + 1):
            header, server, contributions = self._round(round, header, server, contributions)
            self._save(header, arrays, server, contributions)
        if not header["finished"]:
            header = self._finish(header, server)
            self._save(header, arrays, server, contributions)
        self.tell(Event("finished", "finish"))
        return Outcome(header, server, {name: arrays[name] for name in arrays if name.startswith("setup/")})

    def _open(self):
        if self.checkpoint.exists():
            header, arrays = store.read(self.checkpoint)
            if header["study"] != self.terms.digest:
                cure = "--again starts a new run" if header["finished"] else "put the other study.toml back to go on"
                raise DataError(
                    f"{self.checkpoint}: a run of another study.toml, perhaps of this one before it was changed; {cure}"
                )
            anew = "; --again starts a new run" if header["finished"] else ""
            self.tell(Event("resumed", "resuming", words=f"{header['round']} rounds are done{anew}"))
            return header, arrays
        header = {
            "study": self.terms.digest,
            "run": secrets.token_hex(8),
            "begun": False,
            "finished": False,
            "round": 0,
            "accepted": dict.fromkeys(self.terms.members, store.BEGINNING),
            "history": [],
        }
        # Before the first message: a server that is stopped must find its run again, and no site a second one.
        store.write(self.checkpoint, header, {})
        return header, {}

    def _begin(self, header):
        everyone = self.terms.members
        statistics = self._gather_all("statistics", header, {}, self._check_statistics)
        pooled = self.pool({name: statistics[name] for name in everyone})
        sizes = np.array([int(statistics[name]["rows"]) for name in everyone], np.int64)
        arrays = {**pooled, "sizes": sizes}
        if self.terms.algorithm.memory:
            points = self._gather_all("points", header, pooled, self._check_points)
            memory = join_points(*([points[name][part] for name in everyone] for part in ("inputs", "weights")))
            arrays |= {f"memory/{name}": array for name, array in memory._asdict().items()}
        self._gather_all("begin", header, arrays, lambda name, reply: check(reply.arrays, {}, name))
        header = {**header, "begun": True}
        arrays = {f"setup/{name}": array for name, array in arrays.items()}
        first = self._fixed(arrays).first
        self._save(header, arrays, first.server, (first.clients.contribution,) * len(everyone))
        return store.read(self.checkpoint)

    def _check_statistics(self, name, reply):
        mine, theirs = versions(), reply.facts.get("versions", {})
        for word in WORDS:
            if not isinstance(theirs, dict) or theirs.get(word) != mine[word]:
                found = theirs.get(word) if isinstance(theirs, dict) else theirs
                raise DataError(f"{name} has {word} {found}, the server {mine[word]}; expected the same")
        self.pool({name: reply.arrays})

    def _check_points(self, name, reply):
        points = reply.arrays.get("inputs")
        count = len(points) if isinstance(points, np.ndarray) and points.ndim else 0
        most = self.terms.algorithm.memory * self.terms.classes
        if count > most:
            raise DataError(f"{name}: {count} points; expected at most {most}")
        wanted = {"inputs": (np.float32, (count, self.terms.features)), "weights": (np.float64, (count,))}
        check(reply.arrays, wanted, name)

    def _gather_all(self, kind, header, arrays, judge):
        """Everyone's answer; without statistics of all members there is nothing to begin with, so it waits for all."""
        requests = {name: Request(kind, self.terms.digest, header["run"], arrays=arrays) for name in self.terms.members}
        found = {}
        while len(found) < len(requests):
            missing = {name: request for name, request in requests.items() if name not in found}
            found |= self._ask(kind, missing, judge)[0]
            if len(found) < len(requests):
                names = ", ".join(name for name in requests if name not in found)
                self.tell(Event("waiting", kind, words=f"cannot begin without {names}"))
                time.sleep(self.policy.pause)
        return {name: reply.arrays for name, reply in found.items()}

    def _ask(self, step, requests, judge):
        """The good replies, and in a word what was wrong with the others, after one deadline."""
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
                judge(name, reply)
            except DataError as error:
                # A word only: it is kept in the history, which all members get. What a member said is for this screen.
                bad[name] = "refused" if isinstance(reply, Reply) and reply.refusal else "sent what could not be used"
                self.tell(Event("refused", step, name, printable(str(error))))
            else:
                good[name] = reply
                self.tell(Event("answered", step, name))
        return good, bad

    def _round(self, round, header, server, contributions):
        began, members, accepted = time.perf_counter(), self.terms.members, header["accepted"]
        arrays, like = self._broadcast(server), self.fixed.first.clients.contribution
        requests = {
            name: Request("train", self.terms.digest, header["run"], round, accepted[name], arrays) for name in members
        }
        good, left_out, step = {}, {}, f"round {round + 1}"
        judge = lambda name, reply: (unpack(reply.arrays, like, name), pooled_metrics([reply]))
        while True:
            missing = {name: request for name, request in requests.items() if name not in good}
            found, bad = self._ask(step, missing, judge)
            good, left_out = good | found, left_out | bad
            if len(good) >= self.policy.quorum:
                break
            words = f"{len(good)} of at least {self.policy.quorum} members have answered; still waiting"
            self.tell(Event("waiting", step, words=words))
            time.sleep(self.policy.pause)
        drawn = np.array([name in good for name in members])
        contributions = tuple(
            unpack(good[name].arrays, like, name) if name in good else old
            for name, old in zip(members, contributions, strict=True)
        )
        server = run_server(self.fixed.setup, server, contributions, drawn)
        check(pack(server), _shapes(pack(server)), f"the model after round {round + 1}")
        history = self._judged(header["history"], good)
        entry = {
            "round": round + 1,
            "members": sorted(good),
            "absent": sorted(set(members) - set(good)),
            "left_out": {name: words for name, words in left_out.items() if name not in good},
            "seconds": time.perf_counter() - began,
        }
        accepted = {name: round if name in good else accepted[name] for name in members}
        header = {**header, "round": round + 1, "accepted": accepted, "history": [*history, entry]}
        return header, server, contributions

    def _finish(self, header, server):
        run, accepted, arrays = header["run"], header["accepted"], self._broadcast(server)
        request = lambda name: Request("finish", self.terms.digest, run, header["round"], accepted[name], arrays)
        judge = lambda name, reply: (check(reply.arrays, {}, name), pooled_metrics([reply]))
        good, _ = self._ask("finish", {name: request(name) for name in self.terms.members}, judge)
        return {**header, "finished": True, "history": self._judged(header["history"], good)}

    def _broadcast(self, server):
        return pack(self.terms.algorithm.broadcast(server))

    def _judged(self, history, replies):
        """The history with the last model's metrics, which come with the answers to the next request."""
        if not history:
            return history
        metrics = pooled_metrics(replies.values())
        self.tell(Event("round", f"round {history[-1]['round']}", words=shown(metrics)))
        return [*history[:-1], {**history[-1], **metrics}]

    def _fixed(self, arrays):
        setup = {name.removeprefix("setup/"): array for name, array in arrays.items() if name.startswith("setup/")}
        memory = None
        if "memory/inputs" in setup:
            memory = MemoryPoints(*(setup[f"memory/{name}"] for name in MemoryPoints._fields))
        return self.terms.server_start(setup["sizes"], memory)

    def _save(self, header, arrays, server, contributions):
        setup = {name: array for name, array in arrays.items() if name.startswith("setup/")}
        state = {f"state{name}": array for name, array in pack((server, contributions)).items()}
        store.write(self.checkpoint, header, {**setup, **state})

    def _restore(self, arrays):
        first = self.fixed.first
        like = (first.server, (first.clients.contribution,) * len(self.terms.members))
        state = {name.removeprefix("state"): array for name, array in arrays.items() if name.startswith("state")}
        return unpack(state, like, str(self.checkpoint))


class Outcome(NamedTuple):
    """What a run leaves behind."""

    header: dict
    server: object
    setup: dict  # the pooled statistics and sizes, by name

    @property
    def history(self):
        return self.header["history"]


def _shapes(arrays):
    return {name: (array.dtype, array.shape) for name, array in arrays.items()}
