"""What a site of a regression does with a request: check it, compute, remember, record, answer.

moments   send the number of rows, means and products of the columns, moments of the outcome or the events
begin     receive what all sites count in, and remember it
answer    receive weights and their precision; send the loss and score there, and this site's new factor
closing   receive weights; send what standard errors and the likelihood need at the end
losses    receive weights; send the loss at each
meat      (with robust = true) receive weights; send the middle of a robust covariance
finish    the run is over, and no new step of it is answered
restore   (if its operator wants it) receive this site's own replies, which are lost here, as the server has them
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlap.regression.cox import Survival
from fedlap.regression.federation import Restricted
from fedlap.regression.glm import GlmModel
from fedlap.regression.objective import Expansion, LinearObjective, Objective
from fedlap.regression.prior import NormalPrior
from fedlap.regression.rounds import START, Broadcast, SiteFactor, answer, nothing
from fedlap.study.protocol import guard
from fedlap.study.protocol.messages import Arrays, Request, digest, pack
from fedlap.study.protocol.permits import SiteRules
from fedlap.study.protocol.refusals import Reason, Refusal, refusing
from fedlap.study.protocol.regression.agreed import RegressionAgreement, most_steps
from fedlap.study.protocol.regression.contents import (
    LossesThere,
    Meat,
    Question,
    Standard,
    programs,
    read_answer,
    read_point,
    read_points,
    read_question,
    read_replies,
    read_standard,
)
from fedlap.study.protocol.regression.records import RegressionRecords
from fedlap.study.protocol.regression.steps import StepStore, StoredStep
from fedlap.study.protocol.respondent import Content, Method, Respondent, Sent
from fedlap.study.protocol.store import BEGINNING, StoredSetup

ROUNDING = 1e-9  # of a spread that is compared with a range

Computed = Callable[[Objective, Request, StepStore], Any]


class Begun(NamedTuple):
    """A run that this site has begun, and the loss of its rows in the run's units."""

    run: str
    objective: Objective


class Visited:
    """A loss that remembers where it was last expanded: there ends a site's own search."""

    def __init__(self, whole: Restricted) -> None:
        self.whole = whole
        self.last: np.ndarray | None = None

    def loss(self, w: np.ndarray) -> float:
        """The loss at a point."""
        return self.whole.loss(w)

    def expand(self, w: np.ndarray) -> Expansion:
        """The loss, its gradient and its Hessian at a point."""
        there = self.whole.expand(w)
        if np.isfinite(there.hessian).all():  # a search steps back from where it is not
            self.last = w
        return there


class RegressionSite(Respondent):
    """One member of a regression, its rows and its folder. All it remembers between two requests is on disk."""

    def __init__(
        self,
        study: RegressionAgreement,
        member: str,
        records: RegressionRecords,
        folder: str | Path,
        rules: SiteRules,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(study.digest, member, folder, rules, log)
        self.agreement, self.records = study, records
        guard.check_size(rules, member, records.opening.complete, study.model.size)
        self._ready: Begun | None = None  # built once a run, from the store

    @classmethod
    def of(
        cls,
        study: RegressionAgreement,
        member: str,
        path: str | Path,
        folder: str | Path | None = None,
        log: Callable[[str], None] = lambda line: None,
        rules: SiteRules | None = None,
    ) -> "RegressionSite":
        """The site of a member with its file, which is checked whole; its state goes beside the study by default.

        If no rules are given, they are those of policy.toml beside the file.
        """
        study.member(member)
        folder = study.folder / "state" / member if folder is None else folder
        rules = study.policy(path) if rules is None else rules
        return cls(study, member, RegressionRecords(study, path), folder, rules, log)

    def methods(self) -> Mapping[str, Method]:
        """What is done with a request, by its kind."""
        computed: dict[str, Computed] = {
            "answer": self._round,
            "closing": self._closing,
            "losses": self._losses,
            "meat": self._meat,
        }
        steps: dict[str, Method] = {
            kind: lambda request, compute=compute: self._step(request, compute) for kind, compute in computed.items()
        }
        return {
            "moments": self._moments,
            "begin": self._begin,
            **steps,
            "finish": self._finish,
            "restore": self._restore,
        }

    def step(self, request: Request) -> str:
        """What the log calls a request."""
        return request.kind if request.round < 0 else f"step {request.round + 1}, {request.kind}"

    def explain(self) -> list[Sent]:
        """Everything this site would send."""
        size, opening = self.agreement.model.size, self.records.opening
        zeros, square = np.zeros(size), np.zeros((size, size))
        round = {"loss": np.zeros(()), "score": zeros, "factor.v": zeros, "factor.V": square}
        steps: list[tuple[str, Arrays]] = [
            ("once, before the first round", {name.lstrip("."): each for name, each in pack(opening).items()}),
            ("every round", round),
            ("once, after the last round", {"sums for standard errors and the likelihood": square}),
        ]
        if self.agreement.robust:
            steps.append(("once, after the last round (robust = true)", {"meat": square}))
        if self.agreement.influence:
            steps.append(("once, after the last round (influence = true)", {"losses": np.zeros(1)}))
        return [Sent(when, name, each.shape, each.nbytes) for when, arrays in steps for name, each in arrays.items()]

    def _store(self, request: Request) -> StepStore:
        return StepStore(self.folder, self.study, self.member, request.run)

    def _moments(self, request: Request) -> Content:
        self.permit(request)
        return {"versions": programs()}, pack(self.records.opening)

    def _begin(self, request: Request) -> Content:
        self._ready, store = None, self._store(request)
        with refusing(Reason.ARRAYS):
            standard = read_standard(self.agreement, request.arrays, "what the server begins with")
        self._check_standard(standard)
        self.permit(request)
        stored = store.setup()
        if stored is not None and store.begun and digest(stored.arrays) != digest(request.arrays):
            raise Refusal(
                Reason.BEGINNING, f"{store.folder}: the server changes what the run began with; expected it to stay"
            )
        store.save_setup(StoredSetup(self.records.fingerprint(), request.arrays))
        self._begun(request, store)
        return {}, {}

    def _check_standard(self, standard: Standard) -> None:
        """Refuse a mean or a spread that no rows have, of the columns that stand in the study as they are."""
        known = {column.name: column for column in self.agreement.columns if column.kind == "number"}
        for name, shift, spread in zip(self.agreement.design.names, standard.shift, standard.spread, strict=True):
            column = known.get(name)
            if column is None or not (np.isfinite(column.minimum) and np.isfinite(column.maximum)):
                continue
            half = (column.maximum - column.minimum) / 2
            largest = max(abs(column.minimum), abs(column.maximum))  # of a spread around zero
            centred = column.minimum <= shift <= column.maximum and spread <= half * (1 + ROUNDING)
            if not centred and not (shift == 0 and spread <= largest * (1 + ROUNDING)):
                guard.refuse(
                    "what is pooled is possible within the study's ranges",
                    f"the pooled mean and spread of {name} are {shift:g} and {spread:g}; expected a mean that is "
                    f"{column.expected()}, and a spread of at most {half:g}",
                )

    def _finish(self, request: Request) -> Content:
        """The run is over: whoever comes to speak for the server later gets nothing new of it."""
        store = self._store(request)
        self._begun(request, store)
        store.finish()
        return {}, {}

    def _restore(self, request: Request) -> Content:
        """Take back what the server has of this site's replies; one that is here is never replaced by another."""
        store = self._store(request)
        if not self.restore:
            raise Refusal(Reason.NOT_LOST, f"{store.folder}: the server hands back a state; --restore would take it")
        with refusing(Reason.ARRAYS):
            own = read_replies(request.arrays, "what the server hands back")
        if digest(own.moments) != digest(pack(self.records.opening)):
            raise Refusal(Reason.DATA, "the server hands back another site's moments, or those of other rows here")
        self._begin(replace(request, arrays=own.standard))
        for number, (kind, reply) in own.steps.items():
            stored, given = store.step(number), StoredStep(kind, reply.answers, reply.arrays)
            same = stored is None or (stored.request, digest(stored.arrays)) == (given.request, digest(given.arrays))
            if not same or reply.member != self.member or number >= most_steps(self.agreement):
                raise Refusal(Reason.NOT_LOST, f"{store.folder}: step {number} is handed back, and was another here")
            if stored is None:
                store.save_step(number, given)
        return {}, {}

    def _step(self, request: Request, compute: Computed) -> Content:
        """The reply to a step: computed once, and from then on read from the disk."""
        store = self._store(request)
        most = most_steps(self.agreement)
        if not 0 <= request.round < most:
            raise Refusal(Reason.BUDGET, f"step {request.round}; expected at most {most} in one run")
        begun = self._begun(request, store)
        stored = store.step(request.round)
        if stored is None:
            store.going_on()
            store.in_order(request.round)
            arrays = pack(compute(begun.objective, request, store))
            store.save_step(request.round, StoredStep(request.kind, request.digest, arrays))
            return {}, arrays
        if stored.request != request.digest:
            raise Refusal(
                Reason.CHANGED,
                f"{store.folder}: step {request.round} was another request before; expected the same one again",
            )
        return {}, stored.arrays

    def _round(self, objective: Objective, request: Request, store: StepStore) -> Any:
        with refusing(Reason.ARRAYS):
            question = read_question(self.agreement, request.arrays, "the server's broadcast")
        loss = Visited(Restricted(objective, question.kept))
        g, factor = (
            Broadcast(question.w, question.S, bool(question.search)),
            self._factor(request.accepted, question, store),
        )
        self._check_question(request.round, question, factor)
        self._check_spread(objective, loss.whole.full(g.w))
        answered = answer(loss, g, factor)
        if loss.last is not None:  # where the curvature is from that would be sent
            self._check_spread(objective, loss.whole.full(loss.last))
        return answered

    def _check_question(self, step: int, question: Question, factor: SiteFactor) -> None:
        """Refuse weights or a precision that the study's past does not explain."""
        model = self.agreement.model
        if step == 0:
            prior = model.prior.precision if isinstance(model.prior, NormalPrior) else 0.0
            diagonal = np.diag(question.S)
            known = np.isclose(diagonal, START) | np.isclose(diagonal, START + prior)
            if question.w.any() or not known.all() or not np.array_equal(question.S, np.diag(diagonal)):
                guard.refuse(
                    "the first weights follow from the study",
                    "the first weights are not 0, or their precision is not the one before the first round; expected "
                    "the beginning of every regression",
                )
        elif question.search and not (isinstance(model, GlmModel) and model.family.shapes):
            guard.check_precision(question.S, factor.V)

    def _check_spread(self, objective: Objective, w: np.ndarray) -> None:
        """Refuse weights at which a few rows outweigh the others; where no loss is a number, nothing is told."""
        assert isinstance(objective, LinearObjective | Survival), "every model is linear or a Cox regression"
        weights = objective.row_curvatures(w)
        if np.isfinite(weights).all():
            guard.check_spread(self.rules, guard.effective_rows(weights), self.records.opening.complete)

    def _factor(self, accepted: int, question: Question, store: StepStore) -> SiteFactor:
        """This site's factor after the last round that counts."""
        size = len(question.w)
        if accepted == BEGINNING:
            return nothing(size)
        stored = store.step(accepted)
        if stored is None or stored.kind != "answer":
            raise Refusal(
                Reason.GAP,
                f"{store.folder}: a round is to continue from step {accepted}, which this site has not answered; "
                "expected the state folder that this member has used so far",
            )
        with refusing(Reason.GAP):
            return read_answer(stored.arrays, size, f"{store.folder}, step {accepted}").factor

    def _closing(self, objective: Objective, request: Request, store: StepStore) -> Any:
        with refusing(Reason.ARRAYS):
            w = read_point(self.agreement, request.arrays, "the server's weights").w
        self._check_spread(objective, w)
        if isinstance(objective, Survival):
            return objective.concordant(w)
        assert isinstance(objective, LinearObjective), "every model is linear or a Cox regression"
        return objective.closing(w)

    def _losses(self, objective: Objective, request: Request, store: StepStore) -> Any:
        with refusing(Reason.ARRAYS):
            points = read_points(self.agreement, request.arrays, "the server's weights")
        for w in points.w:
            self._check_spread(objective, w)
        return LossesThere(np.array([objective.loss(w) for w in points.w]))

    def _meat(self, objective: Objective, request: Request, store: StepStore) -> Any:
        if not self.agreement.robust:
            raise Refusal(Reason.UNASKED, "a robust covariance is asked for; robust = true in the study would allow it")
        with refusing(Reason.ARRAYS):
            w = read_point(self.agreement, request.arrays, "the server's weights").w
        self._check_spread(objective, w)
        return Meat(objective.meat(w))

    def _begun(self, request: Request, store: StepStore) -> Begun:
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
                standard = read_standard(self.agreement, stored.arrays, f"{store.folder}, setup")
            self._ready = Begun(request.run, self.records.objective(standard))
        return self._ready
