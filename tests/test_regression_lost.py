"""A regression whose member has lost its store: its own replies are handed back, or the others fit alone."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import regression_studies as studies
from fedlap.errors import ConfigError
from fedlap.study.protocol.refusals import Reason
from fedlap.study.results import save_regression

USED = ("age", "sex", "ill")
LOGISTIC = {"formula": "ill ~ age + sex", "family": "binomial"}
COX_USED = ("age", "sex", "time", "died")
COX = {"formula": "age + sex", "duration": "time", "event": "died"}


class Losing(studies.Wire):
    """A wire over which a member finds its folder gone before it answers a step."""

    def __init__(self, study, files, folder, step, restoring=("south",)):
        super().__init__(study, files, folder)
        self.step, self.restoring, self.requests = step, set(restoring), []

    def exchange(self, requests, seconds, resend):
        for name, request in requests.items():
            self.requests.append(request)
            if (name, request.round) == ("south", self.step):
                self.step = None
                shutil.rmtree(next((self.folder / "south").glob("south-*")))
        return super().exchange(requests, seconds, resend)


def table(outcome):
    fit = outcome.fit
    return np.array([fit.params, fit.bse, fit.pvalues]).tobytes(), fit.llf


@pytest.mark.parametrize("used, regression", [(USED, LOGISTIC), (COX_USED, COX)])
def test_its_own_replies_are_handed_back_and_the_fit_is_the_same(used, regression, tmp_path):
    study, files = studies.make(tmp_path, used, regression)
    undisturbed, _ = studies.run(study, files, tmp_path / "undisturbed")
    wire, events = Losing(study, files, tmp_path / "lost", 2), []
    outcome = studies.coordinator(study, wire, tmp_path / "lost", events.append).run()
    assert table(outcome) == table(undisturbed)
    assert [event.member for event in events if event.kind == "noted"] == ["south"]
    assert "refused" not in {event.kind for event in events}
    # What is restored is what was lost: the next run of the same study works too.
    (tmp_path / "lost" / "server" / "checkpoint.npz").unlink()
    for name in files:
        wire.site(name).permits.agree()
    assert table(studies.coordinator(study, wire, tmp_path / "lost").run()) == table(undisturbed)


def test_a_site_takes_back_what_is_its_own_and_nothing_else(tmp_path):
    study, files = studies.make(tmp_path, USED, LOGISTIC)
    wire = Losing(study, files, tmp_path, 2)
    studies.coordinator(study, wire, tmp_path).run()
    (request,) = [request for request in wire.requests if request.kind == "restore"]
    site = wire.site("south")
    assert site.answer(request).refusal == "", "the reply may have been lost"
    step = next(name for name in request.arrays if name.startswith("step-000001"))
    other = {**request.arrays, step: request.arrays[step.replace("1", "0", 1)]}
    assert site.answer(dataclasses.replace(request, arrays=other)).refusal == Reason.NOT_LOST
    assert wire.site("west").answer(request).refusal == Reason.NOT_LOST
    west = wire.site("west")
    west.restore = True
    assert west.answer(request).refusal == Reason.DATA
    for broken in (
        {"step-000000-answer": np.zeros(3)},
        {"x": np.zeros(1)},
        {"step-000000-answer": np.zeros(3, np.uint8)},
    ):
        arrays = {**request.arrays, **broken}
        assert site.answer(dataclasses.replace(request, arrays=arrays)).refusal == Reason.ARRAYS


def stopped(study, files, folder, steps):
    """A run that was stopped when so many steps were done, in the middle of the next."""

    def fault(request, member, data):
        if request.round == steps and member == "west":
            raise KeyboardInterrupt
        return data

    with pytest.raises(KeyboardInterrupt):
        studies.run(study, files, folder, fault)


@pytest.mark.parametrize("steps", [0, 2])
def test_the_others_fit_alone(steps, tmp_path):
    study, files = studies.make(tmp_path, USED, LOGISTIC)
    with pytest.raises(ConfigError, match="has not begun"):
        studies.coordinator(study, studies.Wire(study, files, tmp_path), tmp_path, without=["south"]).run()
    stopped(study, files, tmp_path, steps)
    wire, events = Losing(study, files, tmp_path, None, ()), []
    outcome = studies.coordinator(study, wire, tmp_path, events.append, without=["south"]).run()
    assert {name for name, _, _ in wire.asked} == {"north", "west"}
    # The study that the others would have made without it.
    (tmp_path / "two").mkdir()
    frames = {name: frame for name, frame in studies.hospitals().items() if name != "south"}
    alone, its_files = studies.make(tmp_path / "two", USED, LOGISTIC, frames, study={"members": list(frames)})
    expected, _ = studies.run(alone, its_files, tmp_path / "two")
    assert np.allclose(outcome.fit.params, expected.fit.params, rtol=1e-8)
    assert np.allclose(outcome.fit.bse, expected.fit.bse, rtol=1e-7)
    assert np.isclose(outcome.fit.llf, expected.fit.llf, rtol=1e-12) and np.isclose(
        outcome.log_likelihood_null, expected.log_likelihood_null, rtol=1e-10
    )
    assert ("noted", "south") in [(event.kind, event.member) for event in events]
    assert "Left out for good: south." in outcome.summary
    card = json.loads((save_regression(tmp_path / "result", study, outcome) / "model" / "regression.json").read_text())
    assert card["without"] == ["south"] and card["rows"].keys() == {"north", "west"}
    # It stays so.
    again = studies.coordinator(study, studies.Wire(study, files, tmp_path), tmp_path).run()
    assert table(again) == table(outcome) and again.lost == ("south",)
