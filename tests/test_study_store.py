"""A site's files: whole or not at all, the right round or none; and messages, as agreed or refused."""

import json
import os
import re

import numpy as np
import pytest

from fedlap.errors import DataError
from fedlap.study.protocol import store
from fedlap.study.protocol.messages import Form, Request, check, decode, encode
from fedlap.study.protocol.store import StoredRound

ARRAYS = {".v": np.arange(3.0)}


@pytest.fixture
def member(tmp_path):
    return store.Store(tmp_path, "digest", "ash", "run1")


def fill(member, rounds, base=store.BEGINNING):
    for round in rounds:
        member.save(StoredRound(round, base, f"request {round}", {}, {".v": np.full(3, float(round))}))
        base = round


def kept(member):
    """The rounds that a member has files of."""
    names = sorted(path.name for path in member.folder.iterdir())
    return [int(re.fullmatch(r"round-(\d{6})\.npz", name).group(1)) for name in names]


def test_a_round_is_read_back_bit_for_bit(member):
    array = np.array([0.1, np.nextafter(1, 2), -0.0])
    member.save(StoredRound(0, store.BEGINNING, "request", {"a": 1}, {".v": array}))
    stored = member.answer(0, "request")
    assert stored.arrays[".v"].tobytes() == array.tobytes() and stored.facts == {"a": 1}
    assert member.state(0, 1)[".v"].tobytes() == array.tobytes()


def test_the_same_request_is_answered_from_disk_and_another_is_not(member):
    fill(member, [0])
    assert member.answer(0, "request 0") is not None
    assert member.answer(0, "another request") is None
    assert member.answer(1, "request 0") is None


def test_this_round_and_the_one_it_came_from_are_kept_and_no_other(member):
    fill(member, range(5))
    assert kept(member) == [3, 4]


def test_a_round_whose_reply_came_too_late_is_forgotten(member):
    fill(member, [0, 1])  # the server has not seen the answer to round 1
    assert member.state(0, 2)[".v"][0] == 0
    member.save(StoredRound(2, 0, "request 2", {}, ARRAYS))
    assert kept(member) == [0, 2]


@pytest.mark.parametrize("rounds, stamp", [((), 0), ((0, 1, 2), 0), ((0, 1, 2), -1), ((0, 1), 3)])
def test_a_gap_is_refused(member, rounds, stamp):
    fill(member, rounds)
    with pytest.raises(DataError, match="continue from the state after round"):
        member.state(stamp, 9)


def test_before_the_first_accepted_round_the_beginning_is_the_state(member):
    assert member.state(store.BEGINNING, 4) is None
    fill(member, [4])
    assert member.state(store.BEGINNING, 5) is None


def test_a_message_that_was_long_under_way_cannot_undo_a_newer_round(member):
    fill(member, [0])
    member.save(StoredRound(2, 0, "request 2", {}, ARRAYS))
    with pytest.raises(DataError, match="round 1 is over"):
        member.state(0, 1)


def test_a_crash_while_writing_leaves_the_old_file(member, monkeypatch):
    fill(member, [0])

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        fill(member, [1], base=0)
    monkeypatch.undo()
    assert kept(member) == [0] and member.answer(0, "request 0") is not None


def test_another_members_file_and_a_damaged_one_are_refused(member, tmp_path):
    fill(member, [0])
    path = member.folder / "round-000000.npz"
    other = store.Store(tmp_path, "digest", "birch", "run1")
    other.folder.mkdir()
    (other.folder / path.name).write_bytes(path.read_bytes())
    with pytest.raises(DataError, match="belongs to the member ash, not to birch"):
        other.state(0, 1)
    data = path.read_bytes()
    for damaged in (b"", data[: len(data) // 2], b"\0" * len(data), data.replace(b"request", b"REQUEST")):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="not a readable state file"):
            member.state(0, 1)


def test_state_is_its_owners_alone(member):
    fill(member, [0])
    assert (member.folder / "round-000000.npz").stat().st_mode & 0o077 == 0
    assert member.folder.stat().st_mode & 0o077 == 0


def request(round=0, **changes):
    return Request(**{"kind": "train", "study": "digest", "run": "run1", "round": round, "accepted": -1} | changes)


def test_messages_are_read_back_bit_for_bit():
    arrays = {
        ".w": np.float32([[1.5, -0.0]]),
        "n": np.array(3.0),
        "k": np.arange(2, dtype=np.int32),
        "e": np.zeros((0, 4)),
    }
    sent = request(arrays=arrays)
    received = decode(encode(sent), Request)
    assert received.digest == sent.digest and received.header == sent.header
    assert {name: (a.dtype, a.shape) for name, a in received.arrays.items()} == {
        name: (a.dtype, a.shape) for name, a in arrays.items()
    }


@pytest.mark.parametrize("dtype", ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">f8"])
def test_numbers_of_every_type_arrive(dtype):
    array = np.array([0, 1, 1], dtype)
    received = decode(encode(request(arrays={"a": array})), Request).arrays["a"]
    assert received.dtype == array.dtype.newbyteorder("=") and received.tolist() == array.tolist()


def raw(arrays, data=b"", header=None):
    header = request().header if header is None else header
    text = json.dumps({"header": header, "arrays": arrays}).encode()
    return len(text).to_bytes(4, "little") + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff\xff\xff",
        b"\x02\0\0\0{}",
        b"\x80\x04\x95.",  # the beginning of a pickle
        raw([["a", "|O", [1]]], b"\0" * 8),
        raw([["a", "<f8,<f8", [1]]], b"\0" * 16),
        raw([["a", "01f8", [1]]], b"\0" * 8),  # for NumPy a type, which it fails to read with a SyntaxError
        raw([["a", ">f8", [1]]], b"\0" * 8),
        raw([["a", ["<f8"], [1]]], b"\0" * 8),
        raw([["a", "<f8", [-1]]], b"\0" * 8),
        raw([["a", "<f8", [2**62, 2**62]]]),
        raw([["a", "<f8", [0, 2**70]]]),
        raw([["a", "<f8", [2]]], b"\0" * 8),
        raw([["a", "<f8", [1]]], b"\0" * 16),
        raw([["a", "<f8", [1]], ["a", "<f8", [1]]], b"\0" * 16),
        raw([["a", "<f8", True]], b"\0" * 8),
        raw([[1, "<f8", [1]]], b"\0" * 8),
        raw([], header={"kind": "train"}),
        raw([], header={**request().header, "round": "1"}),
        raw([], header={**request().header, "round": True}),
        raw([], header=[]),
        len(b"[" * 100_000).to_bytes(4, "little") + b"[" * 100_000,
    ],
)
def test_malformed_messages_are_refused(data):
    with pytest.raises(DataError):
        decode(data, Request)


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({}, ".v is missing"),
        ({".v": np.zeros(3), ".x": np.zeros(1)}, ".x is not expected"),
        ({".v": np.zeros(4)}, r"float64 \(4,\); expected float64 \(3,\)"),
        ({".v": np.zeros(3, np.float32)}, "float32"),
        ({".v": np.array([0, np.nan, np.inf])}, "2 values that are not finite"),
        ({".v": [0.0, 0.0, 0.0]}, "list"),
    ],
)
def test_what_was_not_agreed_on_is_named(arrays, words):
    with pytest.raises(DataError, match=f"ash: .*{words}"):
        check(arrays, {".v": Form(np.float64, (3,))}, "ash")
