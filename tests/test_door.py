"""Connections of strangers: who makes room for whom, and for how long one may say nothing."""

import pytest

pytest.importorskip("uvicorn")

from fedlap.flower import door as module
from fedlap.flower.door import Door


class Connection:
    """A transport as far as the door looks at it."""

    def __init__(self, host, port):
        self.address, self.closed = (host, port), False

    def get_extra_info(self, name):
        return self.address

    def is_closing(self):
        return self.closed

    def abort(self):
        self.closed = True


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def door():
    return Door(places=4, patience=10.0)


def come(door, host, *ports):
    connections = [Connection(host, port) for port in ports]
    for connection in connections:
        door.enter(connection)
    return connections


def test_the_oldest_of_the_address_that_holds_most_makes_room(door):
    (quiet,) = come(door, "10.0.0.1", 1)
    crowd = come(door, "10.0.0.2", 1, 2, 3)
    come(door, "10.0.0.3", 1)
    assert [each.closed for each in (quiet, *crowd)] == [False, True, False, False]
    come(door, "10.0.0.2", 4, 5)
    assert [each.closed for each in (quiet, *crowd)] == [False, True, True, True]


def test_a_connection_of_a_member_makes_room_for_nobody_even_at_the_same_address(door):
    (member,) = come(door, "10.0.0.2", 1)
    door.answer(member.address)
    door.rest(member.address)
    come(door, "10.0.0.2", *range(2, 100))
    assert not member.closed
    assert len(door.guests) == 1 + door.places


def test_a_place_that_is_free_again_is_not_counted(door):
    gone = come(door, "10.0.0.2", 1, 2, 3, 4)
    for connection in gone:
        connection.closed = True
    later = come(door, "10.0.0.2", 5, 6, 7, 8)
    assert not any(connection.closed for connection in later)


def test_whoever_owes_a_request_for_too_long_loses_the_connection(door, clock):
    silent, member, busy = come(door, "10.0.0.2", 1, 2, 3)
    for connection in (member, busy):
        door.answer(connection.address)
    clock[0] = 6.0
    door.rest(member.address)
    clock[0] = 11.0
    door.sweep()
    assert (silent.closed, member.closed, busy.closed) == (True, False, False)
    clock[0] = 17.0
    door.sweep()
    assert (member.closed, busy.closed) == (True, False)
