"""Sites behind a network, as a regression sees them: every question is one exchange with all sites that it is for.

Steps are numbered as they come. Each is kept in the journal once everyone has answered, and found there after a
restart; what a site says of some weights is asked once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np

from fedlap.errors import ConfigError, DataError
from fedlap.regression.cox import Pairs
from fedlap.regression.federation import Restricted
from fedlap.regression.glm import GlmModel
from fedlap.regression.objective import Closing, Expansion, Loss, Objective
from fedlap.regression.rounds import Answer, Broadcast, SiteFactor, nothing
from fedlap.study.protocol.inquiry import Event, Inquiry
from fedlap.study.protocol.messages import Arrays, Reply, Request, pack
from fedlap.study.protocol.positive import check_positive
from fedlap.study.protocol.regression.agreed import RegressionAgreement, most_steps
from fedlap.study.protocol.regression.contents import (
    Question,
    SeveralWeights,
    Weights,
    read_answer,
    read_closing,
    read_losses,
    read_meat,
)
from fedlap.study.protocol.regression.possible import KNOWN, check_answer, check_closing
from fedlap.study.protocol.regression.steps import Journal
from fedlap.study.protocol.store import BEGINNING

Read = TypeVar("Read")


class RemoteSites:
    """The members of a run, each by its name; `progress` is told how many steps are done."""

    def __init__(
        self,
        study: RegressionAgreement,
        run: str,
        inquiry: Inquiry,
        journal: Journal,
        progress: Callable[[int], None],
        without: Mapping[str, int] | None = None,
    ) -> None:
        """`without` are members left out for good, each with the number of the first step that the others do alone."""
        self.study, self.run, self.inquiry, self.journal, self.progress = study, run, inquiry, journal, progress
        self.everybody = tuple(member.name for member in study.members)
        self.members = tuple(name for name in self.everybody if name not in (without or {}))
        self.steps, self.rounds = max((without or {}).values(), default=0), 0
        self._kept: dict[str, dict[int, tuple[str, Reply]]] = {name: {} for name in self.members}
        self._factors: dict[str, dict[int, SiteFactor]] = {name: {} for name in self.members}
        self._said: dict[tuple[str, bytes], dict[str, Any]] = {}

    def objectives(self) -> dict[str, Objective]:
        """The losses of all sites."""
        kind = RemoteLinear if isinstance(self.study.model, GlmModel) else RemoteSurvival
        return {name: kind(self, name) for name in self.members}

    def everyone(self, kind: str, arrays: Arrays, read: Callable[[str, Reply], Read]) -> dict[str, Read]:
        """What everyone answers before the first round, also those who are left out later."""
        requests = {name: Request(kind, self.study.digest, self.run, arrays=arrays) for name in self.everybody}
        return {name: read(name, reply) for name, reply in self._exchange(kind, kind, requests, read).items()}

    def ask(self, sites: Mapping[str, Loss], g: Broadcast, factors: Mapping[str, SiteFactor]) -> dict[str, Answer]:
        """A round: the answers of some sites, each from the factor that it remembers."""
        masks = [loss.kept for loss in sites.values() if isinstance(loss, Restricted)]
        kept = masks[0] if masks else np.ones(self.study.model.size, bool)
        arrays = pack(Question(g.w, g.S, kept, np.array(g.search)))
        accepted = {name: self._stamp(name, factors[name]) for name in sites}
        number = self.steps

        def read(name: str, reply: Reply) -> Answer:
            answer = read_answer(reply.arrays, len(g.w), name)
            check_answer(self.study, name, answer, kept)
            return answer

        answers = self._step("answer", dict.fromkeys(sites, arrays), read, accepted)
        for name, answer in answers.items():
            self._factors[name][number] = answer.factor
            if not np.isfinite(answer.loss):
                note = "has no number for its loss at these weights; the round is taken back"
                self.inquiry.tell(Event("noted", f"round {self.rounds}", name, note))
        return answers

    def losses(self, sites: Mapping[str, Loss], points: np.ndarray) -> np.ndarray:
        """The pooled loss of some sites at several points."""
        losses = self.losses_of(sites, points)
        return np.array([sum(losses[name][k] for name in sites) for k in range(len(points))])

    def losses_of(self, names: Iterable[str], points: np.ndarray) -> dict[str, np.ndarray]:
        """The losses of some sites at several points."""
        read = lambda name, reply: read_losses(reply.arrays, len(points), name).losses
        return self._step("losses", dict.fromkeys(names, pack(SeveralWeights(points))), read)

    def _at(self, kind: str, w: np.ndarray, ask: Callable[[], dict[str, Read]]) -> dict[str, Read]:
        """What all sites say of some weights, asked once."""
        key = kind, w.tobytes()
        if key not in self._said:
            self._said[key] = ask()
        return self._said[key]

    def losses_at(self, w: np.ndarray) -> dict[str, np.ndarray]:
        """The losses of all sites at a point, of one number each."""
        return self._at("losses", w, lambda: self.losses_of(self.members, w[None]))

    def closing_at(self, w: np.ndarray) -> dict[str, Closing | Pairs]:
        """The closing sums of all sites."""

        def read(name: str, reply: Reply) -> Closing | Pairs:
            closing = read_closing(self.study, reply.arrays, name)
            check_closing(self.study, name, closing)
            return closing

        return self._at("closing", w, lambda: self._step("closing", self._everywhere(w), read))

    def meat_at(self, w: np.ndarray) -> dict[str, np.ndarray]:
        """What each site has of the middle of a robust covariance."""

        def read(name: str, reply: Reply) -> np.ndarray:
            meat = read_meat(self.study, reply.arrays, name).meat
            check_positive(name, meat, "its part of a robust covariance", KNOWN)
            return meat

        return self._at("meat", w, lambda: self._step("meat", self._everywhere(w), read))

    def _everywhere(self, w: np.ndarray) -> dict[str, Arrays]:
        return dict.fromkeys(self.members, pack(Weights(w)))

    def _stamp(self, name: str, factor: SiteFactor) -> int:
        """The step whose answer had this factor."""
        if not (factor.v.any() or factor.V.any()):
            return BEGINNING
        for number, known in self._factors[name].items():
            if np.array_equal(known.v, factor.v) and np.array_equal(known.V, factor.V):
                return number
        raise AssertionError(f"a factor of {name} that it has never sent")

    def _step(
        self,
        kind: str,
        arrays: Mapping[str, Arrays],
        read: Callable[[str, Reply], Read],
        accepted: Mapping[str, int] | None = None,
    ) -> dict[str, Read]:
        number, most = self.steps, most_steps(self.study)
        if number >= most:
            raise DataError(f"{number} requests and no end; no site answers more of them in one run")
        requests = {
            name: Request(kind, self.study.digest, self.run, number, (accepted or {}).get(name, BEGINNING), each)
            for name, each in arrays.items()
        }
        self.rounds += kind == "answer"
        step = f"round {self.rounds}" if kind == "answer" else kind
        replies = self._exchange(f"step-{number:06d}", step, requests, read)
        for name, reply in replies.items():
            self._kept[name][number] = kind, reply
        self.steps = number + 1
        self.progress(self.steps)
        return {name: read(name, reply) for name, reply in replies.items()}

    def own_steps(self, name: str) -> dict[int, tuple[str, Reply]]:
        """What a member has said in every step that all have answered, and the step's kind."""
        return dict(self._kept[name])

    def _exchange(
        self, name: str, step: str, requests: dict[str, Request], read: Callable[[str, Reply], Read]
    ) -> dict[str, Reply]:
        replies = self.journal.replies(name, requests)
        if replies is None:

            def checked(member: str, reply: Reply) -> Reply:
                read(member, reply)
                return reply

            replies = self.inquiry.everyone(step, requests, checked, "a regression needs all members; waiting for")
            self.journal.keep(name, requests, replies)
        return {member: replies[member] for member in requests}


@dataclass(frozen=True, eq=False)
class RemoteObjective:
    """The loss of a site behind a network."""

    sites: RemoteSites
    name: str

    def loss(self, w: np.ndarray) -> float:
        """The loss at a point; all sites are asked at once."""
        return float(self.sites.losses_at(w)[self.name][0])

    def expand(self, w: np.ndarray) -> Expansion:
        """The loss, its gradient and its Hessian at a point: a round without a search."""
        g = Broadcast(w, np.zeros((len(w), len(w))), search=False)
        answer = self.sites.ask({self.name: self}, g, {self.name: nothing(len(w))})[self.name]
        return Expansion(answer.loss, answer.score, answer.factor.V)

    def meat(self, w: np.ndarray) -> np.ndarray:
        """The middle of a robust covariance; all sites are asked at once."""
        return self.sites.meat_at(w)[self.name]


class RemoteLinear(RemoteObjective):
    """The loss of a generalised linear model behind a network."""

    def closing(self, w: np.ndarray) -> Closing:
        """The closing sums; all sites are asked at once."""
        found = self.sites.closing_at(w)[self.name]
        assert isinstance(found, Closing), "the model has a family"
        return found


class RemoteSurvival(RemoteObjective):
    """The loss of a Cox regression behind a network."""

    def concordant(self, w: np.ndarray) -> Pairs:
        """Pairs whose order the model gets right; all sites are asked at once."""
        found = self.sites.closing_at(w)[self.name]
        assert isinstance(found, Pairs), "the model has durations"
        return found

    def baseline(self, w: np.ndarray) -> NoReturn:
        """A site's baseline hazard is made of its event times, and stays there."""
        raise ConfigError(f"the baseline hazard of {self.name} stays at {self.name}; no site sends it")
