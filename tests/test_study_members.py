"""A dishonest or broken member: what cannot be is refused by name, and what would ruin the model is left out."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import fedlap
import sites
from closeness import same_bits
from fedlap.algorithms import ALGORITHMS
from fedlap.errors import DataError
from fedlap.study.protocol import checkpoint
from fedlap.study.protocol.guard import check_precision
from fedlap.study.protocol.influence import far_outside
from fedlap.study.protocol.judgement import RUINED, found_without, judge
from fedlap.study.protocol.messages import Reply, decode, encode
from fedlap.study.protocol.positive import check_positive

TERMS = sites.make_terms(sites.make_algorithm("fedlap_cov"))


def run(folder, fault=None, terms=TERMS, quorum=3):
    """The outcome and all events."""
    events, transport = [], sites.Loopback(terms, folder, fault)
    return sites.make_coordinator(terms, folder, transport, quorum, events.append).run(), events


def lying(change, member="cedar", rounds=(1,)):
    """A fault by which a member's replies to these rounds are changed: `change(facts, arrays)` in place."""

    def fault(request, name, data):
        if request.kind != "train" or request.round not in rounds or name != member:
            return data
        reply = decode(data, Reply)
        facts, arrays = json.loads(json.dumps(reply.facts)), {key: each.copy() for key, each in reply.arrays.items()}
        change(facts, arrays)
        return encode(dataclasses.replace(reply, facts=facts, arrays=arrays))

    return fault


def metrics(**given):
    return lambda facts, arrays: facts["metrics"].update(given)


def entry(name, value):
    """A change of the first number of the array whose name has this ending."""

    def change(facts, arrays):
        (key,) = [key for key in arrays if key.startswith(name)]
        arrays[key].flat[0] = value

    return change


IMPOSSIBLE = {
    "more right than rows": ("fedlap_cov", metrics(correct=1000, rows=4), "1000 right of 4 held-back rows"),
    "rows that change": ("fedlap_cov", metrics(correct=0, rows=1), "1 held-back rows; it had 3 before"),
    "half a row": ("fedlap_cov", metrics(rows=2.5), "rows of held-back rows is no number"),
    "an NLL below zero": ("fedlap_cov", metrics(nll=-1.0), "nll of held-back rows is no number"),
    "an NLL of no rows": ("fedlap_cov", metrics(rows=0, correct=0), "on no held-back rows"),
    "negative precision": ("fedlap_cov", entry(".V", -1e-3), "1 entries below zero; no curvature is negative"),
    "a factor that came too far": ("fedlap_cov", entry(".reached", 1e-9), "has reached 1e-09; expected 0.555556"),
    "other rows than it began with": ("fedavg", entry(".n", 1e9), "a contribution of 1e+09 rows; it began with 9"),
    "points of another weight": ("fedlap_func", entry(".y.mass", 1e6), "weigh otherwise than at the beginning"),
    "labels that are no probabilities": ("fedlap_func", entry(".y.targets", -7.0), "soft labels are no probabilities"),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_what_cannot_be_is_refused_by_name(kind, tmp_path):
    name, change, words = IMPOSSIBLE[kind]
    terms = sites.make_terms(sites.make_algorithm(name))
    outcome, events = run(tmp_path, lying(change), terms, quorum=2)
    (refused,) = [event for event in events if event.kind == "refused"]
    assert refused.member == "cedar" and words in refused.note, refused.note
    assert outcome.history[1].left_out == {"cedar": "sent what could not be used"}
    assert same_bits(outcome.server, sites.simulate(terms, absent={1: ("cedar",)}).server)
    assert 0 <= outcome.history[-1].score.accuracy <= 1


def test_a_full_precision_has_no_direction_below_zero_and_may_have_rounding():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 6)) * 10.0 ** np.arange(-4, 2)
    X[:, 5] = X[:, 4]  # silent on their difference, where rounding has either sign
    honest = X.T @ X
    for dtype in (np.float64, np.float32):
        check_positive("ash", honest.astype(dtype), "V")
    bent = honest.copy()
    bent[0, 1] = bent[1, 0] = 1.5 * np.sqrt(bent[0, 0] * bent[1, 1])
    turned = honest - 0.3 * np.diag(np.diag(honest))
    lopsided = honest + np.triu(honest, 1)
    for wrong in (-honest, bent, turned, lopsided):
        with pytest.raises(DataError, match="ash: V"):
            check_positive("ash", wrong, "V")


def test_pvi_may_take_precision_away_but_no_model_is_left_without(tmp_path):
    """Where a client is less sure than the model, its factor's V is honestly below zero."""
    terms = sites.make_terms(sites.make_algorithm("pvi"))
    outcome, events = run(tmp_path / "little", lying(entry(".V", -0.01)), terms)
    assert not [event for event in events if event.kind == "refused"]
    assert [report.absent for report in outcome.history] == [(), (), ()]
    outcome, events = run(tmp_path / "all", lying(entry(".V", -1e3)), terms, quorum=2)
    assert outcome.history[1].left_out == {"cedar": RUINED}
    assert same_bits(outcome.server, sites.simulate(terms, absent={1: ("cedar",)}).server)


@pytest.mark.parametrize("name", ["fedlap", "fedlap_cov", "fedavg", "fedadmm"])
@pytest.mark.parametrize("value", [3e38, 1e300])
def test_one_reply_cannot_end_a_study(name, value, tmp_path):
    """It is finite, so it is read; the model that it makes would not be. Whoever sent it counts as absent."""
    terms = sites.make_terms(sites.make_algorithm(name))
    field = ".w" if name.startswith("feda") else ".v"
    outcome, events = run(tmp_path, lying(entry(field, value), "birch", (0, 1)), terms, quorum=2)
    (first, second) = [event for event in events if event.kind == "refused"]
    assert {first.member, second.member} == {"birch"} and RUINED in first.note
    assert [report.left_out for report in outcome.history] == [{"birch": RUINED}, {"birch": RUINED}, {}]
    assert same_bits(outcome.server, sites.simulate(terms, absent={0: ("birch",), 1: ("birch",)}).server)


def test_below_the_quorum_the_run_waits_for_the_culprit(tmp_path):
    lies, attempts = lying(entry(".v", 3e38)), []

    def fault(request, name, data):
        attempts.extend([name] * (request.kind == "train" and request.round == 1 and name == "cedar"))
        return lies(request, name, data) if len(attempts) < 3 else data

    outcome, events = run(tmp_path, fault)
    said = [event.note for event in events if event.kind == "waiting"]
    words = "2 of at least 3 members have answered; still waiting for another reply of cedar"
    assert said == [f"{words} (--without NAME goes on for good)"] * 2
    assert same_bits(outcome.server, sites.simulate(TERMS).server)
    assert outcome.history[1].left_out == {}


def test_two_who_ruin_the_model_together_are_both_found(tmp_path):
    one, other = lying(entry(".v", 3e38), "ash"), lying(entry(".v", 3e38), "cedar")
    outcome, _ = run(tmp_path, lambda *given: one(*given[:2], other(*given)), quorum=1)
    assert outcome.history[1].left_out == {"ash": RUINED, "cedar": RUINED}
    assert same_bits(outcome.server, sites.simulate(TERMS, absent={1: ("ash", "cedar")}).server)


def test_of_several_whose_absence_would_help_the_one_who_changed_most_is_left_out():
    numbers = {"ash": 1.0, "birch": 2.4e38, "cedar": 2.5e38}

    def fits(names):
        if sum(numbers[name] for name in names) > 3.4e38:
            raise DataError("too much")

    assert found_without(tuple(numbers), list, fits, numbers.get).without == ("cedar",)
    numbers = dict.fromkeys(("ash", "birch", "cedar", "dogwood"), 3.4e38)
    with pytest.raises(DataError, match="too much, whichever two of ash, birch, cedar, dogwood are left out"):
        found_without(tuple(numbers), list, fits, numbers.get)


def test_a_model_is_judged_as_it_is_sent_and_by_what_is_made_of_it():
    start = TERMS.server_start(np.array(sites.SIZES), None)
    server, algorithm = start.first.server, TERMS.algorithm
    judge(algorithm, server, "the model")
    for w, words in ((np.nan, "1 values"), (1e39, "not finite"), (1e25, "weights' squares")):
        with pytest.raises(DataError, match=words):
            judge(algorithm, server._replace(w=server.w.map(lambda leaf, w=w: leaf.at[0, 0].set(w))), "the model")
    for S, words in ((0.0, "not positive"), (-1.0, "not positive")):
        with pytest.raises(DataError, match=words):
            judge(algorithm, server._replace(S=S * server.S), "the model")
    with pytest.raises(DataError, match=r"the model: \.ahead.* not finite"):
        judge(algorithm, server._replace(ahead=1e39 * server.ahead), "the model")
    large = server._replace(w=server.w + 1e15, S=1e30 * server.S)
    with pytest.raises(DataError, match="precision times"):
        judge(algorithm, large, "the model")


def test_the_checkpoint_before_the_last_round_is_kept_and_can_be_gone_back_to(tmp_path):
    outcome, _ = run(tmp_path)
    path = tmp_path / "server" / "checkpoint.npz"
    before = checkpoint.read_progress(checkpoint.previous(path))
    assert (before.round, before.finished, len(before.history)) == (2, False, 2)
    checkpoint.previous(path).replace(path)
    again, _ = run(tmp_path)
    assert same_bits(again.server, outcome.server)


def test_influence_is_measured_told_and_kept(tmp_path):
    outcome, events = run(tmp_path)
    for report in outcome.history:
        assert report.influence.keys() == set(sites.NAMES) and report.influence_unit == "posterior standard deviations"
    told = [event.note for event in events if event.kind == "round"]
    assert len(told) == 3 and all("; moved by " in note and "ash" in note for note in told)
    assert checkpoint.read_progress(tmp_path / "server" / "checkpoint.npz").history == outcome.history
    # By hand: the model with all factors, and the one with ash's as it was.
    path = tmp_path / "server" / "checkpoint.npz"
    (now, _), (old, _) = (checkpoint.read_state(each, TERMS) for each in (path, checkpoint.previous(path)))
    parts = lambda state, field: [np.asarray(getattr(each, field)) for each in state.contributions]
    v, V = np.array(parts(now, "v")), np.array(parts(now, "V"))
    S, w = 0.5 + V.sum(0), v.sum(0) / (0.5 + V.sum(0))
    v[0], V[0] = parts(old, "v")[0], parts(old, "V")[0]
    moved = w - v.sum(0) / (0.5 + V.sum(0))
    assert np.isclose(outcome.history[-1].influence["ash"], np.sqrt(moved @ (S * moved)), rtol=1e-9)


def test_one_who_moves_the_model_far_more_is_announced(tmp_path):
    def large(facts, arrays):
        arrays[next(key for key in arrays if key.startswith(".v"))] += 50.0

    outcome, events = run(tmp_path, lying(large, rounds=(2,)))
    (noted,) = [event for event in events if event.kind == "noted"]
    assert (noted.member, noted.step) == ("cedar", "round 3") and "far more than the others" in noted.note
    assert [report.outside for report in outcome.history] == [(), (), ("cedar",)]
    assert outcome.history[2].influence["cedar"] > 20


@pytest.mark.parametrize(
    "rounds, outside",
    [
        ([{"a": 1.0, "b": 1.1, "c": 0.9, "d": 50.0}], ("d",)),
        ([{"a": 1.0, "b": 1.1, "c": 0.9, "d": 1.3}], ()),
        ([{"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.001}], ()),
        ([{"a": 1.0, "b": 50.0}], ()),  # of two nobody can say which
        # All become smaller as the rounds go on; one of them does not.
        ([{"a": x, "b": 2 * x, "c": 3 * x} for x in (1.0, 0.1, 0.01)], ()),
        ([*({"a": x, "b": 2 * x, "c": 3 * x} for x in (1.0, 0.1, 0.01)), {"a": 0.001, "b": 0.002, "c": 3.0}], ("c",)),
        ([{"a": 0.0, "b": 0.0, "c": 0.0}], ()),
        ([{"a": 0.0, "b": 0.0, "c": 1.0}], ("c",)),
    ],
)
def test_far_outside_is_measured_by_the_others_and_by_the_past(rounds, outside):
    assert far_outside(rounds, [()] * (len(rounds) - 1)) == outside


def test_one_who_was_outside_before_is_no_measure_for_itself():
    rounds = [{"a": 1.0, "b": 1.1, "c": 0.9, "d": 50.0}] * 4
    assert far_outside(rounds, [("d",)] * 3) == ("d",)


def test_honest_hospitals_are_not_announced(tmp_path):
    """Sites of different sizes, one with one class only, of every algorithm: nobody stands far outside."""
    for name in ("fedlap", "fedlap_cov", "pvi"):
        outcome, _ = run(tmp_path / name, terms=sites.make_terms(sites.make_algorithm(name)))
        assert [report.outside for report in outcome.history] == [(), (), ()]


@pytest.mark.parametrize(
    ("name", "options"),
    [("bayes_admm", {}), ("fedep", {"eta": 0.5, "shared": True}), ("fedlap_kron", {"refresh": 1})],
)
def test_honest_members_are_not_refused_for_what_their_algorithm_is(tmp_path, name, options):
    """Where a contribution is more than a factor, or a factor was left in another basis than the model is in now."""
    terms = sites.make_terms(ALGORITHMS[name](delta=0.5, **options))
    outcome, events = run(tmp_path, terms=terms)
    assert len(outcome.history) == 3 and not [event for event in events if event.kind == "refused"]
    assert same_bits(outcome.server, sites.simulate(terms).server)


def test_a_factor_in_the_basis_before_is_no_reason_to_refuse_a_precision():
    """V_k is not below S_g − δI until both are in one basis."""
    inputs = np.array([[3.0, 3.0], [2.0, 2.1], [-1.0, -1.2], [1.0, 0.8]])
    pairs = [(scale * inputs, [0, 1, 1, 0]) for scale in (1.0, 0.1)]
    data = fedlap.Federation.from_arrays(pairs)
    algorithm = fedlap.FedLapKron(delta=0.5, rho=1.0, refresh=2)
    run = fedlap.Simulation.of(algorithm, data, fedlap.logistic(), solver=fedlap.newton())
    state = run.step(run.init())
    factor = jax.tree.map(lambda leaf: leaf[0], state.clients.factor)
    assert (np.asarray(state.server.S) - 0.5 - np.asarray(factor.V)).min() < -0.01
    own = algorithm.own_part(state.server, factor)
    check_precision(np.asarray(state.server.S), np.asarray(0.5 + own))


def test_the_algorithms_themselves_say_what_they_send():
    made = {name: sites.make_algorithm(name) for name in ALGORITHMS}
    whole = {"fedlap", "fedlap_cov", "fedlap_func", "fedlap_cov_func", "pvi", "bcm", "fedep", "fedlap_kron"}
    assert {name for name, algorithm in made.items() if algorithm.sends_factor} == whole
    assert {name for name, algorithm in made.items() if sites.make_terms(algorithm).divides} == whole
    for kept in ({"eta": 0.5}, {"shared": True}):  # a part of q_g as it was before a round
        assert not sites.make_terms(ALGORITHMS["fedep"](delta=1.0, **kept)).divides
    expanding = {"fedlap_cov", "fedlap_cov_func", "bcm", "fedep", "fedlap_kron"}
    assert {name for name, algorithm in made.items() if algorithm.expands} == expanding
