"""What the server of a regression does: gather moments, run the rounds, and ask for the closing sums.

After every step all that matters is on disk; started again, it goes on from there.
All members are needed in every step: the answer is that of all rows, or there is none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from fedlap.errors import DataError
from fedlap.regression.glm import GlmFit
from fedlap.regression.hazards import CoxFit
from fedlap.regression.model import Opening
from fedlap.study.protocol import checkpoint, heads, runs
from fedlap.study.protocol.checkpoint import Progress
from fedlap.study.protocol.heads import Heads
from fedlap.study.protocol.inquiry import Event, Inquiry, Patience, Transport
from fedlap.study.protocol.messages import Arrays, Reply, Request, check, pack
from fedlap.study.protocol.regression.agreed import RegressionAgreement
from fedlap.study.protocol.regression.contents import OwnReplies, Standard, check_programs, pack_replies, read_opening
from fedlap.study.protocol.regression.possible import check_opening
from fedlap.study.protocol.regression.remote import RemoteSites
from fedlap.study.protocol.regression.steps import Journal
from fedlap.study.protocol.restoring import Restoring

AnyFit = GlmFit | CoxFit
Made = TypeVar("Made")


class UnfitRows(DataError):
    """Rows that this regression cannot be fitted to: asking again would not help, so the run is over."""


class LeftOut(NamedTuple):
    """The fit as if a site had never taken part."""

    coefficients: np.ndarray
    errors: np.ndarray


@dataclass(frozen=True)
class RegressionOutcome:
    """What a run of a regression leaves behind; `fedlap.study.save_regression` makes files of it."""

    run: str
    fit: AnyFit
    summary: str
    log_likelihood_null: float
    robust: AnyFit | None = None  # with robust = true: the same, with standard errors that hold if the family is wrong
    without: dict[str, LeftOut] = field(default_factory=dict)  # with influence = true, by the site that is left out
    shares: dict[str, float] = field(default_factory=dict)  # and each site's share of the log-likelihood
    lost: tuple[str, ...] = ()  # members left out for good, of whom nothing is in the fit


class RegressionCoordinator:
    """One run of a regression."""

    def __init__(
        self,
        study: RegressionAgreement,
        transport: Transport,
        folder: str | Path | None = None,
        tell: Callable[[Event], None] = lambda event: None,
        without: Sequence[str] = (),
    ) -> None:
        """`without` names members whose state is lost, and whom the run goes on without."""
        self.study, self.tell, self.without = study, tell, without
        folder = runs.folder(study) if folder is None else Path(folder)
        self.folder, self.checkpoint = folder, folder / "checkpoint.npz"
        self.members = tuple(member.name for member in study.members)
        self.restoring = Restoring(transport, tell)
        patience = Patience(len(self.members), study.deadline, study.retries)
        self.inquiry = Inquiry(patience, self.restoring, tell, Heads(folder / heads.FILE))

    def run(self) -> RegressionOutcome:
        """All steps that are still to be done."""
        progress = runs.open_run(self.checkpoint, self.study.digest, self.members, self.tell)
        journal = Journal(self.folder, self.study.digest, progress.run)
        progress = self._leave_out(progress, journal)
        done = [progress.round]

        def count(steps: int) -> None:
            if steps > done[0]:
                done[0] = steps
                checkpoint.write(self.checkpoint, replace(progress, round=steps), None)

        sites = RemoteSites(self.study, progress.run, self.inquiry, journal, count, progress.without)
        try:
            outcome = self._fit(progress.run, sites)
        except UnfitRows:
            checkpoint.write(self.checkpoint, replace(progress, round=done[0], finished=True), None)
            raise
        if not progress.finished:
            self._finish(replace(progress, round=done[0], finished=True), sites.members)
        self.tell(Event("finished", "finish"))
        return outcome

    def _leave_out(self, progress: Progress, journal: Journal) -> Progress:
        """The run without some members for good: the others do a fit of their own, in steps that nobody has had."""
        runs.check_without(self.without, progress, self.members, journal.has("begin"))
        lost = [name for name in self.without if name not in progress.without]
        if not lost:
            return progress
        first = progress.round + 1  # some may have answered the step that was under way
        without = {**dict.fromkeys(progress.without, first), **dict.fromkeys(lost, first)}
        progress = replace(progress, round=first, without=without)
        checkpoint.write(self.checkpoint, progress, None)
        for name in lost:
            self.tell(Event("noted", f"step {first + 1}", name, "is left out for good: the fit is that of the others"))
        return progress

    def _fit(self, run: str, sites: RemoteSites) -> RegressionOutcome:
        openings, moments = {}, {}
        for name, (opening, arrays) in sites.everyone("moments", {}, self._opening).items():
            openings[name], moments[name] = opening, arrays
        model = self.study.model
        units = _of_these_rows(lambda: model.units(openings))  # of all who began, also those left out since
        standard = pack(Standard(units.scale.shift, units.scale.spread, np.array(units.outcome)))
        sites.everyone("begin", standard, lambda name, reply: check(reply.arrays, {}, name))
        self.restoring.hand_back = lambda name: self._hand_back(run, standard, moments[name], sites.own_steps(name))
        rest = {name: openings[name] for name in sites.members}
        if len(rest) < len(openings):
            _of_these_rows(lambda: model.units(rest))  # which says what the others cannot fit by themselves
        fit = _of_these_rows(lambda: model.fit(rest, units, sites.objectives(), sites.ask, sites.losses))
        if not np.isfinite(fit.llf):
            raise UnfitRows(f"the log-likelihood is {fit.llf} at the end; expected columns without huge numbers")
        self._note(fit)
        lost = tuple(name for name in self.members if name not in sites.members)
        note = f"\n\nLeft out for good: {', '.join(lost)}. The fit is that of the others." if lost else ""
        outcome = RegressionOutcome(run, fit, f"{fit.summary()}{note}", fit.llnull, lost=lost)
        if self.study.robust:
            outcome = replace(outcome, robust=fit.robust("rows"))
        if self.study.influence:
            left_out = {name: fit.without(name) for name in sites.members}
            without = {name: LeftOut(each.params.to_numpy(), each.bse.to_numpy()) for name, each in left_out.items()}
            shares = dict(zip(sites.members, fit.shapley(refresh=False).tolist(), strict=True))
            outcome = replace(outcome, without=without, shares=shares)
        return outcome

    def _opening(self, name: str, reply: Reply) -> tuple[Opening, Arrays]:
        check_programs(name, reply.facts)
        opening = read_opening(self.study, reply.arrays, name)
        check_opening(self.study, name, opening)
        return opening, reply.arrays

    def _hand_back(self, run: str, standard: Arrays, moments: Arrays, steps: dict[int, tuple[str, Reply]]) -> Request:
        """The request that gives a member back what it has said."""
        arrays = pack_replies(OwnReplies(standard, moments, steps))
        return Request("restore", self.study.digest, run, arrays=arrays)

    def _note(self, fit: AnyFit) -> None:
        last = fit.optimum.rounds[-1]
        how = "converged" if fit.converged else "NOT CONVERGED"
        note = f"{how}: Newton's decrement {last.decrement:.1e}, log-likelihood {fit.llf:.4f}"
        self.tell(Event("round", f"round {fit.rounds}", note=note))

    def _finish(self, progress: Progress, members: Sequence[str]) -> None:
        """The run is over; whoever is not there to hear it has said all that was needed.

        It is so here before anyone hears it: from then on no site answers a new step, as `--without` would ask.
        """
        checkpoint.write(self.checkpoint, progress, None)
        requests = {name: Request("finish", self.study.digest, progress.run) for name in members}
        self.inquiry.once("finish", requests, lambda name, reply: check(reply.arrays, {}, name))


def _of_these_rows(make: Callable[[], Made]) -> Made:
    """What is made of the sites' replies; whatever is wrong with them would be so in every run."""
    try:
        return make()
    except DataError as error:
        raise UnfitRows(str(error)) from error
