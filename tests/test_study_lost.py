"""A store that is really lost does not end a study: its state is handed back, or the run goes on without the member."""

import dataclasses
import shutil

import numpy as np
import pytest

import fedlap
import sites
from closeness import same_bits
from fedlap.errors import ConfigError
from fedlap.study.protocol import checkpoint
from fedlap.study.protocol.coordinator import DIVIDED_OUT, DROPPED
from fedlap.study.protocol.messages import Request, pack
from fedlap.study.protocol.refusals import Reason
from fedlap.study.protocol.restoring import NOT_HELD

FORGETFUL = fedlap.adam(epochs=2, batch=4, learning_rate=0.05)  # a solver that begins anew in every round


def make_terms(name, solver=FORGETFUL, **options):
    return sites.make_terms(sites.make_algorithm(name), solver=solver, **options)


COV = make_terms("fedlap_cov")


class Losing(sites.Loopback):
    """A transport over which a member finds its folder, or its rounds alone, gone before it answers a request."""

    def __init__(self, terms, folder, moment, pattern="*", member="ash"):
        super().__init__(terms, folder)
        self.moment, self.pattern, self.member = moment, pattern, member
        self.requests = []

    def exchange(self, requests, seconds, resend):
        for name, request in requests.items():
            self.requests.append((name, request))
            if (name, request.kind, request.round) == (self.member, *self.moment):
                self.moment = (None, None)
                for path in (self.folder / name).glob(self.pattern):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        return super().exchange(requests, seconds, resend)


def run(folder, transport, quorum=3, without=()):
    events = []
    return sites.make_coordinator(transport.terms, folder, transport, quorum, events.append, without).run(), events


@pytest.mark.parametrize("name", ["fedlap", "fedlap_cov", "fedlap_func", "fedlap_cov_func", "pvi", "fedavg"])
def test_a_state_that_the_server_holds_is_handed_back_bit_for_bit(name, tmp_path):
    terms = make_terms(name)
    transport = Losing(terms, tmp_path, ("train", 2))
    transport.restoring = {"ash"}
    outcome, events = run(tmp_path, transport)
    assert same_bits(outcome.server, sites.simulate(terms).server)
    assert ("noted", "ash", "had lost its state, has asked for it, and has it back") in [
        (event.kind, event.member, event.note) for event in events
    ]
    assert not [event for event in events if event.kind == "refused"]
    assert [report.absent for report in outcome.history] == [(), (), ()]


@pytest.mark.parametrize("moment, pattern", [(("train", 0), "*"), (("finish", 3), "*"), (("train", 1), "*/round-*")])
def test_whenever_it_is_lost_it_is_handed_back(moment, pattern, tmp_path):
    transport = Losing(COV, tmp_path, moment, pattern)
    transport.restoring = {"ash"}
    outcome, events = run(tmp_path, transport)
    assert same_bits(outcome.server, sites.simulate(COV).server)
    assert [event.kind for event in events].count("noted") == 1
    assert outcome.history[-1].score.test_rows == 11


def test_a_restored_site_takes_part_in_the_next_run(tmp_path):
    transport = Losing(COV, tmp_path, ("train", 1))
    transport.restoring = {"ash"}
    first, _ = run(tmp_path, transport)
    (tmp_path / "server" / "checkpoint.npz").unlink()  # as --again does
    for name in sites.NAMES:
        transport.site(name).permits.agree()
    second, _ = run(tmp_path, transport)
    assert first.run != second.run and same_bits(first.server, second.server)


def test_nothing_is_handed_back_to_who_has_not_asked(tmp_path):
    transport = Losing(COV, tmp_path, ("train", 2))
    outcome, events = run(tmp_path, transport, quorum=2)
    assert not [each for each in transport.asked if each[1] == "restore"]
    assert outcome.history[2].left_out == {"ash": "refused"}
    assert f"ash refuses: {Reason.LOST}" in [event.note for event in events]


@pytest.mark.parametrize("name, solver", [("fedlap", sites.SOLVER), ("fedadmm", FORGETFUL), ("feddyn", FORGETFUL)])
def test_what_the_server_does_not_hold_is_said(name, solver, tmp_path):
    """An optimiser that remembers, or a dual that never left the site."""
    transport = Losing(make_terms(name, solver), tmp_path, ("train", 2))
    transport.restoring = {"ash"}
    outcome, events = run(tmp_path, transport, quorum=2)
    assert {event.note for event in events if event.kind == "noted"} == {NOT_HELD}
    assert outcome.history[2].left_out == {"ash": "refused"}


def handed_back(folder):
    """A restore request that ash has just taken, and ash, who would take another."""
    transport = Losing(COV, folder, ("train", 2))
    transport.restoring = {"ash"}
    run(folder, transport)
    (request,) = [request for name, request in transport.requests if request.kind == "restore"]
    shutil.rmtree(next((folder / "ash").glob("ash-*")))
    return request, transport.site("ash")


def test_a_site_takes_its_state_back_once_and_no_other(tmp_path):
    request, site = handed_back(tmp_path)
    assert site.answer(request).refusal == ""
    assert site.answer(request).refusal == "", "the reply may have been lost"
    other = {**request.arrays, ".contribution.reached": np.array(0.25)}
    assert site.answer(dataclasses.replace(request, arrays=other)).refusal == Reason.NOT_LOST
    back = dataclasses.replace(request, accepted=0)
    assert site.answer(back).refusal == Reason.NOT_LOST
    site.restore = False
    assert site.answer(request).refusal == Reason.NOT_LOST


def test_a_site_holds_what_it_is_handed_against_its_own_rows(tmp_path):
    request, site = handed_back(tmp_path)
    sizes = {**request.arrays, ".beginning.sizes": np.array([8, 12, 9])}
    assert site.answer(dataclasses.replace(request, arrays=sizes)).refusal == Reason.SIZES
    nan = {**request.arrays, ".contribution.reached": np.array(np.nan)}
    assert site.answer(dataclasses.replace(request, arrays=nan)).refusal == Reason.ARRAYS
    assert site.answer(Request("restore", COV.digest, request.run, 2, 1)).refusal == Reason.ARRAYS
    # A part below zero would let a server's precision be lower than the prior.
    below = {name: -array if name.startswith(".contribution.V") else array for name, array in request.arrays.items()}
    assert site.answer(dataclasses.replace(request, arrays=below)).refusal == Reason.ARRAYS
    assert site.answer(dataclasses.replace(request, accepted=3)).refusal == Reason.POLICY, "there is no such round"


# Without a member -----------------------------------------------------------------------------------------------------


def stopped(folder, terms, rounds=2, at=("asked", "ash")):
    """A run that was stopped after so many rounds, in the next one, at this event of a member."""

    def stop(event):
        if (event.kind, event.member) == at and event.step == f"round {rounds + 1}":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sites.make_coordinator(terms, folder, tell=stop).run()


def test_a_lost_factor_is_divided_out_and_the_run_goes_on(tmp_path):
    stopped(tmp_path, COV)
    path = tmp_path / "server" / "checkpoint.npz"
    state, _ = checkpoint.read_state(path, COV)
    transport = Losing(COV, tmp_path, (None, None))
    outcome, events = run(tmp_path, transport, without=["cedar"])
    # The round goes on from the model that it was begun with, and ends in that of the others' factors alone, by hand.
    (first,) = [request for name, request in transport.requests if (name, request.kind) == ("ash", "train")]
    assert same_bits(first.arrays, pack(COV.algorithm.broadcast(state.server)))
    rest = checkpoint.read_state(path, COV)[0].contributions[:2]
    S = 0.5 + sum(np.asarray(each.V) for each in rest)
    w = sum(np.asarray(each.v) for each in rest) / S
    assert np.allclose(np.asarray(outcome.server.w), w, rtol=1e-12, atol=1e-15)
    assert {name for name, kind, _ in transport.asked} == {"ash", "birch"}
    assert outcome.without == {"cedar": {"after_round": 2, "how": DIVIDED_OUT}}
    assert ("noted", "cedar") in [(event.kind, event.member) for event in events]
    assert [report.absent for report in outcome.history] == [(), (), ()]
    assert outcome.history[2].members == ("ash", "birch")
    # And nothing of it is left on the server's disk.
    after, start = checkpoint.read_state(path, COV)
    assert same_bits(after.contributions[2], start.first.clients.contribution)


def test_who_has_answered_the_round_under_way_answers_it_again_alike(tmp_path):
    ends = []
    for at in (("asked", "ash"), ("answered", "birch")):
        stopped(tmp_path / at[0], COV, at=at)
        ends.append(run(tmp_path / at[0], sites.Loopback(COV, tmp_path / at[0]), without=["cedar"])[0])
    assert same_bits(ends[0].server, ends[1].server)


def test_after_the_last_round_it_is_divided_out_at_once(tmp_path):
    def stop(event):
        if event.step == "finish":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sites.make_coordinator(COV, tmp_path, tell=stop).run()
    before, _ = checkpoint.read_state(tmp_path / "server" / "checkpoint.npz", COV)
    outcome, _ = run(tmp_path, sites.Loopback(COV, tmp_path), without=["cedar"])
    S = 0.5 + sum(np.asarray(each.V) for each in before.contributions[:2])
    w = sum(np.asarray(each.v) for each in before.contributions[:2]) / S
    assert np.allclose(np.asarray(outcome.server.w), w, rtol=1e-12, atol=1e-15)


def test_the_shared_points_of_who_is_left_out_weigh_nothing(tmp_path):
    terms = make_terms("fedlap_func")
    stopped(tmp_path, terms)
    outcome, _ = run(tmp_path, Losing(terms, tmp_path, (None, None)), without=["cedar"])
    state, _ = checkpoint.read_state(tmp_path / "server" / "checkpoint.npz", terms)
    own = state.beginning.memory.mine[2][state.beginning.memory.weights[2] > 0]
    mass = np.asarray(outcome.server.mass)
    assert (mass[own] == 0).all() and (np.delete(mass, own) > 0).all()


def test_who_is_left_out_stays_out(tmp_path):
    terms = make_terms("fedlap_cov", rounds=4)
    stopped(tmp_path, terms, 2)

    def stop(event):
        if event.kind == "asked" and event.step == "round 4":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sites.make_coordinator(terms, tmp_path, tell=stop, without=["cedar"]).run()
    transport = Losing(terms, tmp_path, (None, None))
    outcome, _ = run(tmp_path, transport)
    assert {name for name, _, _ in transport.asked} == {"ash", "birch"}
    assert outcome.without["cedar"]["after_round"] == 2
    # Said again it changes nothing; nor does a crash right after it was said.
    again, _ = run(tmp_path, transport, without=["cedar"])
    assert same_bits(again.server, outcome.server)


@pytest.mark.parametrize("name", ["fedavg", "fedadmm", "feddyn"])
def test_of_other_algorithms_the_contribution_is_dropped(name, tmp_path):
    terms = make_terms(name)
    stopped(tmp_path, terms)
    before, _ = checkpoint.read_state(tmp_path / "server" / "checkpoint.npz", terms)
    transport = Losing(terms, tmp_path, (None, None))
    outcome, _ = run(tmp_path, transport, without=["cedar"])
    assert outcome.without == {"cedar": {"after_round": 2, "how": DROPPED}}
    (first,) = [request for member, request in transport.requests if (member, request.kind) == ("ash", "train")]
    assert same_bits(first.arrays, pack(terms.algorithm.broadcast(before.server)))
    after, _ = checkpoint.read_state(tmp_path / "server" / "checkpoint.npz", terms)
    w = [np.asarray(each.w) for each in after.contributions[:2]]
    if name == "fedavg":
        expected = (7 * w[0] + 12 * w[1]) / 19
    else:
        expected = (w[0] + w[1]) / 2
    if name == "feddyn":
        expected = expected + np.asarray(after.server.h)
    assert np.allclose(np.asarray(after.server.w), expected, rtol=1e-12, atol=1e-15)


def test_when_a_run_cannot_go_on_without_someone_it_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"has not begun; .* take cedar out of members in study\.toml"):
        sites.make_coordinator(COV, tmp_path, without=["cedar"]).run()
    stopped(tmp_path, COV)
    with pytest.raises(ConfigError, match="fewer than two members are left"):
        sites.make_coordinator(COV, tmp_path, without=["cedar", "birch"]).run()
    with pytest.raises(ConfigError, match="unknown member 'cedarr'; did you mean 'cedar'"):
        sites.make_coordinator(COV, tmp_path, without=["cedarr"]).run()
    sites.make_coordinator(COV, tmp_path).run()
    with pytest.raises(ConfigError, match="the run is over, and cedar has taken part in it; --again"):
        sites.make_coordinator(COV, tmp_path, without=["cedar"]).run()


def test_the_quorum_is_counted_over_the_rest(tmp_path):
    stopped(tmp_path, COV)
    outcome, events = run(tmp_path, Losing(COV, tmp_path, (None, None)), quorum=3, without=["cedar"])
    assert outcome.history[2].members == ("ash", "birch")
    assert not [event for event in events if event.kind == "waiting"]
