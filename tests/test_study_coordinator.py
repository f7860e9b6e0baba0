"""Lost, late, doubled and damaged messages, absent sites and crashes: the answer is the one the simulation gives."""

import dataclasses
import json
import re

import numpy as np
import pytest

import sites
from closeness import same_bits
from fedlap.engines.setup import draw_batches
from fedlap.errors import DataError
from fedlap.study.protocol import coordinator as coordinating
from fedlap.study.protocol import store
from fedlap.study.protocol.audit import verify
from fedlap.study.protocol.messages import Reply, decode, encode
from fedlap.study.protocol.refusals import Reason

TERMS = sites.make_terms(sites.make_algorithm("fedlap_cov"))


@pytest.fixture(scope="module")
def undisturbed():
    return sites.simulate(TERMS)


def run(folder, fault=None, terms=TERMS, quorum=3, **options):
    """The outcome, all events, and all that was asked."""
    events, transport = [], sites.Loopback(terms, folder, fault, **options)
    outcome = sites.make_coordinator(terms, folder, transport, quorum, events.append).run()
    return outcome, events, transport.asked


def once(condition):
    """A condition that holds only the first time."""
    seen = []
    return lambda *given: condition(*given) and not (given[:2] in seen or seen.append(given[:2]))


def test_a_lost_reply_changes_nothing(tmp_path, undisturbed):
    lost = once(lambda kind, round, member: True)
    fault = lambda request, member, data: None if lost((request.kind, request.round), member, data) else data
    outcome, _, asked = run(tmp_path, fault)
    assert same_bits(outcome.server, undisturbed.server)
    assert asked.count(("birch", "train", 1)) == 2


def test_a_round_sent_twice_is_applied_once(tmp_path, undisturbed):
    transport = sites.Loopback(TERMS, tmp_path)

    def twice(request, member, data):
        first, again = decode(data, Reply), transport.site(member).answer(request)
        assert encode(dataclasses.replace(again, recorded=first.recorded)) == data
        assert again.recorded.line == first.recorded.line + 1 and again.recorded.previous == first.recorded.head
        return encode(again)

    outcome, _, _ = run(tmp_path, twice)
    assert same_bits(outcome.server, undisturbed.server)


@pytest.mark.parametrize("name", ["fedavg", "fedlap", "fedlap_cov"])
def test_an_absent_site_is_carried_as_in_partial_participation(name, tmp_path):
    terms = sites.make_terms(sites.make_algorithm(name))
    absent = {0: ("cedar",), 1: ("ash", "cedar")}
    fault = lambda request, member, data: (
        None if request.kind == "train" and member in absent.get(request.round, ()) else data
    )
    # A reply that does not arrive was computed all the same; the site must forget that round again.
    outcome, _, _ = run(tmp_path, fault, terms, quorum=1)
    assert same_bits(outcome.server, sites.simulate(terms, absent=absent).server)
    assert [report.absent for report in outcome.history] == [("cedar",), ("ash", "cedar"), ()]


def test_below_the_quorum_the_run_waits_and_says_so(tmp_path, undisturbed):
    attempts = []

    def fault(request, member, data):
        if request.kind == "train" and request.round == 1 and member != "ash":
            attempts.append(member)
            return data if attempts.count(member) > 3 else None
        return data

    outcome, events, _ = run(tmp_path, fault)
    said = [event.note for event in events if event.kind == "waiting"]
    assert said == ["1 of at least 3 members have answered; still waiting"] * 3
    assert same_bits(outcome.server, undisturbed.server)


def test_nothing_begins_without_everyones_statistics(tmp_path):
    attempts = []

    def fault(request, member, data):
        attempts.append(request.kind)
        if request.kind == "statistics" and member == "cedar" and attempts.count("statistics") < 4:
            return None
        return data

    _, events, _ = run(tmp_path, fault, quorum=1)
    assert any(event.note == "cannot begin without cedar" for event in events)
    assert "begin" not in attempts[:3]


def changed(**changes):
    return lambda reply: encode(dataclasses.replace(reply, **{key: make(reply) for key, make in changes.items()}))


def arrays(change):
    return changed(arrays=lambda reply: {name: change(array.copy()) for name, array in reply.arrays.items()})


def with_nan(array):
    array.flat[0] = np.nan
    return array


BAD = {
    "not a number": (arrays(with_nan), "not finite"),
    "another shape": (arrays(lambda array: array.reshape(-1)[:1]), "expected float64"),
    "another type": (arrays(lambda array: array.astype(np.float32)), "expected float64"),
    "too large": (arrays(lambda array: np.zeros((2000, 2000))), "expected float64"),
    "nothing": (changed(arrays=lambda reply: {}), "is missing"),
    "one array more": (changed(arrays=lambda reply: {**reply.arrays, "x": np.zeros(1)}), "x is not expected"),
    "one array of a name that no terminal shows": (
        changed(arrays=lambda reply: {**reply.arrays, "\x1b[31m\ud800": np.zeros(1)}),
        "31m  is not expected",
    ),
    "under another's name": (changed(member=lambda reply: "ash"), "under another name"),
    "to another request": (changed(answers=lambda reply: "0" * 64), "another request"),
    "a refusal": (changed(refusal=lambda reply: "no \x1b[31m thanks"), "cedar refuses: no  .31m thanks"),
    "no metrics": (changed(facts=lambda reply: {}), "its metrics are not"),
    "metrics that are no numbers": (
        changed(facts=lambda reply: {"metrics": {"rows": "many", "correct": 0, "nll": 0}}),
        "no number",
    ),
    "half a message": (lambda reply: encode(reply)[:-3], "cannot be read"),
    "a pickle": (lambda reply: b"\x80\x04\x95\x0b\0\0\0", "cannot be read"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_contribution_is_named_and_left_out_of_that_round(kind, tmp_path):
    damage, words = BAD[kind]

    def fault(request, member, data):
        hit = request.kind == "train" and request.round == 1 and member == "cedar"
        return damage(decode(data, Reply)) if hit else data

    outcome, events, _ = run(tmp_path, fault, quorum=2)
    assert same_bits(outcome.server, sites.simulate(TERMS, absent={1: ("cedar",)}).server)
    assert [report.absent for report in outcome.history] == [(), ("cedar",), ()]
    # The history goes to all members: what was wrong in a word, nothing of what a member has said or sent.
    in_a_word = "refused" if kind == "a refusal" else "sent what could not be used"
    assert outcome.history[1].left_out == {"cedar": in_a_word}
    (refused,) = [event for event in events if event.kind == "refused"]
    assert refused.member == "cedar" and re.search(words, refused.note), refused.note
    assert refused.note.isprintable()


def test_a_reply_of_an_earlier_round_is_no_reply_to_this_one(tmp_path):
    kept = {}

    def replay(request, member, data):
        if request.kind == "train" and member == "birch":
            kept.setdefault("first", data)
            return kept["first"]
        return data

    outcome, _, _ = run(tmp_path, replay, quorum=2)
    assert same_bits(outcome.server, sites.simulate(TERMS, absent={1: ("birch",), 2: ("birch",)}).server)


def finish_after_crashes(folder, crash):
    """Start again after every crash until the run is over; how often that was."""
    starts = 0
    while True:
        starts += 1
        try:
            return starts, run(folder, crash)[0]
        except sites.Crash:
            assert starts < 100


def test_the_server_may_crash_at_every_message(tmp_path, undisturbed):
    crashed = set()

    def crash(request, member, data):
        # Each site has computed and stored its answer, which the server never sees.
        if (request.kind, request.round, member) not in crashed:
            crashed.add((request.kind, request.round, member))
            raise sites.Crash
        return data

    starts, outcome = finish_after_crashes(tmp_path, crash)
    assert starts == len(crashed) + 1 == 3 * (2 + 3 + 1) + 1
    assert same_bits(outcome.server, undisturbed.server)
    assert len(outcome.history) == 3 and outcome.history[-1].score.test_rows == 11


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_server_may_crash_at_every_checkpoint(moment, tmp_path, undisturbed, monkeypatch):
    write, crashed = store.write, set()

    def crashing(path, header, arrays):
        if path.name != "checkpoint.npz" or (stamp := (bool(arrays), header["round"], header["finished"])) in crashed:
            return write(path, header, arrays)
        crashed.add(stamp)
        if moment == "after":
            write(path, header, arrays)
        raise sites.Crash

    monkeypatch.setattr(store, "write", crashing)
    starts, outcome = finish_after_crashes(tmp_path, None)
    assert starts == len(crashed) + 1 == 7
    assert same_bits(outcome.server, undisturbed.server)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_site_may_crash_at_every_write(moment, tmp_path, undisturbed, monkeypatch):
    write, crashed = store.write, set()

    def crashing(path, header, arrays):
        if path.name == "checkpoint.npz" or path in crashed:
            return write(path, header, arrays)
        crashed.add(path)
        if moment == "after":
            write(path, header, arrays)
        raise sites.Crash

    monkeypatch.setattr(store, "write", crashing)
    starts, outcome = finish_after_crashes(tmp_path, None)
    assert starts == len(crashed) + 1 == 3 * (1 + 3 + 1) + 1, "the beginning, the rounds and the end"
    assert same_bits(outcome.server, undisturbed.server)


def test_a_finished_run_asks_nobody_again(tmp_path):
    first, _, _ = run(tmp_path)
    second, _, asked = run(tmp_path)
    assert asked == [] and same_bits(first.server, second.server)


def test_a_site_that_has_lost_its_state_is_left_out_in_words(tmp_path):
    def lose(request, member, data):
        if request.kind == "train" and request.round == 0 and member == "ash":
            for path in (tmp_path / "ash").rglob("round-*.npz"):
                path.unlink()
        return data

    outcome, events, _ = run(tmp_path, lose, quorum=2)
    words = [event.note for event in events if event.kind == "refused"]
    assert words == [f"ash refuses: {Reason.GAP}"] * 2
    assert [report.left_out for report in outcome.history] == [{}, {"ash": "refused"}, {"ash": "refused"}]
    assert str(tmp_path) not in json.dumps([report.as_dict() for report in outcome.history])
    assert same_bits(outcome.server, sites.simulate(TERMS, absent={1: ("ash",), 2: ("ash",)}).server)


def test_other_data_than_the_run_began_with_are_refused(tmp_path):
    data = {"now": "as it was"}

    def swap(request, member, reply):
        data["now"] = "swapped" if request.kind == "begin" and member == "cedar" else data["now"]
        return reply

    with pytest.raises(KeyboardInterrupt):
        stop = lambda event: (_ for _ in ()).throw(KeyboardInterrupt) if event.kind == "waiting" else None
        transport = sites.Loopback(TERMS, tmp_path, swap, lambda name: sites.FederationRecords(name, data["now"]))
        events = []
        tell = lambda event: (events.append(event), stop(event))
        sites.make_coordinator(TERMS, tmp_path, transport, 3, tell).run()
    assert "not those that the run began with" in next(event.note for event in events if event.kind == "refused")


@pytest.mark.parametrize(
    "change, reason, words",
    [
        ({"study": "e" * 64}, Reason.STUDY, "the same study.toml"),
        ({"kind": "__class__"}, Reason.REQUEST, "expected one of statistics"),
        ({"run": "../../elsewhere"}, Reason.REQUEST, "expected one of statistics"),
        ({"run": "neverbegun"}, Reason.LOST, "ash-dddddddddddd-neverbegun: this site has not begun the run"),
        ({"arrays": {}}, Reason.ARRAYS, "is missing"),
        ({"round": 1, "accepted": 0}, Reason.LATE, "round 1 is over"),
        ({"round": 3, "accepted": 2}, Reason.POLICY, "round 4; the study has rounds 1 to 3"),
    ],
)
def test_a_site_refuses_what_it_was_not_asked_in_order(change, reason, words, tmp_path):
    request, said, site = asked_before(tmp_path, "train")
    reply = site.answer(dataclasses.replace(request, **change))
    # Files, folders and counts are for the site's own log.
    assert reply.refusal == reason and not reply.arrays and not reply.facts
    assert words in said[-1] and str(tmp_path) not in reply.refusal
    assert verify(site.audit_log)[-1]["refusal"] == reply.refusal


def asked_before(folder, kind):
    """The first request of a kind to ash in a run that is over, what ash will say from now on, and ash."""
    captured, said = [], []
    run(folder, lambda request, member, data: (captured.append((request, member)), data)[1])
    site = sites.Loopback(TERMS, folder).site("ash")
    site.log = said.append
    return next(request for request, member in captured if (request.kind, member) == (kind, "ash")), said, site


@pytest.mark.parametrize("file", ["setup.npz", "round-000002.npz"])
def test_a_damaged_state_is_named_at_the_site_only(file, tmp_path):
    request, said, site = asked_before(tmp_path, "train")
    (path,) = tmp_path.glob(f"ash/*/{file}")
    path.write_bytes(b"damaged")
    reply = site.answer(dataclasses.replace(request, round=2))
    assert reply.refusal == Reason.DAMAGED
    assert f"{path}: not a readable state file" in said[-1]


def test_an_error_that_nobody_thought_of_keeps_its_words_at_the_site(tmp_path):
    request, said, site = asked_before(tmp_path, "statistics")

    def fail():
        raise DataError("stroke_dr_mueller.csv: 3 of 240 rows")

    site.records.statistics = fail
    assert site.answer(request).refusal == Reason.OTHER
    assert "stroke_dr_mueller.csv: 3 of 240 rows" in said[-1]
    assert "mueller" not in site.audit_log.read_text()


@pytest.mark.parametrize(
    "sizes, reason, words",
    [
        ([7, 12, 2**40], Reason.SIZES, "1099511627776 training rows at cedar; expected from 1 to"),
        ([7, 2**62, 2**62], Reason.SIZES, "at birch; expected from 1 to"),
        ([7, 0, 9], Reason.SIZES, "0 training rows at birch"),
        ([7, -3, 9], Reason.SIZES, "-3 training rows at birch"),
        ([8, 12, 9], Reason.SIZES, "8 training rows here, this site has 7"),
        ([7, 12], Reason.ARRAYS, r"int64 (2,); expected int64 (3,)"),
        ([7.0, 12.0, 9.0], Reason.ARRAYS, "float64 (3,); expected int64 (3,)"),
        (None, Reason.ARRAYS, ".sizes is missing"),
    ],
)
def test_a_site_makes_no_room_for_rows_that_cannot_be(sizes, reason, words, tmp_path):
    request, said, site = asked_before(tmp_path, "begin")
    arrays = {name: array for name, array in request.arrays.items() if name != ".sizes"}
    arrays |= {} if sizes is None else {".sizes": np.array(sizes)}
    reply = site.answer(dataclasses.replace(request, run="another", arrays=arrays))
    assert reply.refusal == reason
    assert words in said[-1]
    assert not list(tmp_path.glob("ash/*another"))


@pytest.mark.parametrize(
    "places, words", [([[0], [1], [9]], "not among the 5 shared points"), ([[0, 1]], "expected int32")]
)
def test_a_site_refuses_shared_points_that_are_not_there(places, words, tmp_path):
    """JAX would read another point in their place, without a word."""
    terms, captured, said = sites.make_terms(sites.make_algorithm("fedlap_func"), rounds=1), [], []
    run(tmp_path, lambda request, member, data: (captured.append((request, member)), data)[1], terms)
    request = next(request for request, member in captured if (request.kind, member) == ("begin", "ash"))
    site = sites.Loopback(terms, tmp_path).site("ash")
    site.log = said.append
    wrong = {".memory.mine": np.array(places, np.int32), ".memory.weights": np.ones(np.shape(places))}
    reply = site.answer(dataclasses.replace(request, run="another", arrays={**request.arrays, **wrong}))
    assert reply.refusal == Reason.ARRAYS and words in said[-1]


def test_everything_that_left_a_site_is_in_its_audit_log(tmp_path):
    sent = []
    run(tmp_path, lambda request, member, data: (sent.append((member, request.kind, len(data))), data)[1])
    entries = verify(sites.Loopback(TERMS, tmp_path).site("birch").audit_log)
    assert [entry["kind"] for entry in entries] == [kind for member, kind, _ in sent if member == "birch"]
    trained = [entry["bytes"] for entry in entries if entry["kind"] == "train"]
    assert trained == [(2 * sites.FEATURES * sites.CLASSES + 1) * 8] * 3


def test_members_with_another_version_cannot_begin(tmp_path, monkeypatch):
    mine = coordinating.versions()
    monkeypatch.setattr(coordinating, "versions", lambda: mine._replace(precision="float32"))
    events = []

    def stop(event):
        events.append(event)
        if event.kind == "waiting":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sites.make_coordinator(TERMS, tmp_path, tell=stop).run()
    assert "ash has precision float64, the server float32; expected the same" in [event.note for event in events]


def test_a_checkpoint_of_another_study_is_refused(tmp_path):
    run(tmp_path)
    with pytest.raises(DataError, match="a run of another study"):
        run(tmp_path, terms=sites.make_terms(TERMS.algorithm, digest="e" * 64))


def test_batches_of_one_client_do_not_depend_on_the_others():
    everyone, one = np.ones(3, bool), np.array([False, True, False])
    both = [draw_batches(sites.SOLVER, sites.FEDERATION, drawn, 0, 5).all() for drawn in (everyone, one)]
    assert np.array_equal(both[0].rows[1], both[1].rows[0]) and both[0].steps[1] == both[1].steps[0]
