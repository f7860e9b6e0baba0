"""The coordinator's screen: who is missing, and since when."""

import io

import pytest
from rich.console import Console

from fedlap.study import watch as module
from fedlap.study.protocol.inquiry import Event
from fedlap.study.watch import Watch


@pytest.fixture
def clock(monkeypatch):
    now = [1_800_000_000.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    return now


def screen(terminal=False):
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal, highlight=False)
    return Watch(["ash", "birch"], 3, console), console.file


def at(clock):
    return module.time.strftime("%H:%M:%S", module.time.localtime(clock[0]))


def test_whoever_is_left_out_of_a_round_is_named_with_the_time_it_was_asked(clock):
    watch, written = screen()
    asked = at(clock)
    for member in ("ash", "birch"):
        watch.tell(Event("asked", "round 1", member))
    watch.tell(Event("answered", "round 1", "ash"))
    clock[0] += 60
    watch.tell(Event("asked", "round 2", "ash"))
    assert written.getvalue() == f"round 1: without birch, asked at {asked}, 60 s ago\n"


def test_whoever_is_waited_for_was_asked_when_it_was_asked_first(clock):
    watch, written = screen()
    asked = at(clock)
    watch.tell(Event("asked", "begin", "birch"))
    for _ in range(2):
        clock[0] += 60
        watch.tell(Event("waiting", "begin", note="cannot begin without birch"))
        watch.tell(Event("asked", "begin", "birch"))
    assert written.getvalue().splitlines()[-1] == f"no answer from birch, asked at {asked}, 120 s ago"


def test_the_table_counts_while_nothing_happens(clock):
    watch, written = screen(terminal=True)
    with watch:
        watch.tell(Event("asked", "round 1", "ash"))
        clock[0] += 45
        watch.live.refresh()
    assert f"waiting since {module.time.strftime('%H:%M', module.time.localtime(clock[0] - 45))}" in written.getvalue()
    assert "45 s ago" in written.getvalue()


def test_a_line_names_its_member_once_and_is_never_broken():
    watch, written = screen()
    watch.tell(Event("refused", "round 1", "ash", "ash refuses: " + "a long reason " * 20))
    watch.tell(Event("noted", "round 1", "birch", "moves the model"))
    first, second = written.getvalue().splitlines()
    assert first.startswith("round 1: ash refuses: a long") and first.count("ash") == 1 and len(first) > 200
    assert second == "round 1: birch moves the model"
