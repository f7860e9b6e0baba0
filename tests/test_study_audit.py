"""The record of what a site has sent: it says what, and shows that it was changed."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedlap.cli.study import study_app
from fedlap.errors import DataError
from fedlap.study.protocol import audit
from fedlap.study.protocol.chained import fingerprint
from fedlap.study.protocol.messages import Reply, Request


def send(path, round, **reply):
    audit.append(path, "ash", Request("train", study="digest", run="run1", round=round), Reply("ash", "x", **reply))


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "audit.jsonl"
    for round in range(3):
        send(path, round, arrays={".v": np.full(2, float(round))})
    return path


def test_the_audit_log_says_what_was_sent(log):
    entries = audit.verify(log)
    assert [(entry["round"], entry["bytes"], entry["kind"]) for entry in entries] == [
        (r, 16, "train") for r in range(3)
    ]
    assert entries[0]["arrays"] == {".v": "float64 [2]"}
    assert len({entry["sha256"] for entry in entries}) == 3
    assert log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[1:],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [lines[1], lines[0], lines[2]],
        lambda lines: [lines[0].replace('"bytes": 16', '"bytes": 17'), *lines[1:]],
        lambda lines: [lines[0], "not JSON", lines[2]],
        lambda lines: [lines[0], json.dumps({"a": 1}), lines[2]],
    ],
)
def test_a_changed_audit_log_is_found_out(log, change):
    log.write_text("\n".join(change(log.read_text().splitlines())) + "\n")
    with pytest.raises(DataError, match=r"audit\.jsonl, line"):
        audit.verify(log)


def test_a_line_cut_off_by_a_crash_does_not_stop_the_log(log):
    with open(log, "a") as file:
        file.write('{"arrays": {".v": "flo')
    send(log, 3)
    entries = audit.verify(log)
    assert len(entries) == 5 and "unfinished" in entries[3]


def command(path, *words):
    return CliRunner().invoke(study_app, ["audit", str(path), *map(str, words)])


def test_the_command_says_how_many_entries_from_when_to_when_and_unbroken(log):
    times = [json.loads(line)["time"] for line in log.read_text().splitlines()]
    before = log.read_bytes()
    result = command(log)
    first, last = result.output.splitlines()
    assert result.exit_code == 0
    assert first == f"{log}: 3 entries, from {times[0]} to {times[2]}; unbroken"
    send(log, 3)
    assert log.read_bytes().startswith(before)
    noted = last.removeprefix("fingerprint of the last line: ")
    assert json.loads(log.read_text().splitlines()[3])["previous"] == noted


def test_the_command_names_lines_that_a_crash_cut_off(log):
    with open(log, "ab") as file:
        file.write(b"{" + bytes(20))  # as some file systems leave it
    send(log, 3)
    result = command(log)
    assert result.exit_code == 0 and "4 entries, " in result.output
    assert "cut off by a crash, before anything was sent: line 4" in result.output


# What was done to a log, and the first line that does not fit with it. Line 4 is one that was put at the end.
TAMPERED = {
    "a changed byte": (lambda a, b, c: [a, b.replace(b'"round": 1', b'"round": 7'), c], 3, "does not follow line 2"),
    "a first line removed": (lambda a, b, c: [b, c], 1, "does not begin a log"),
    "a line removed": (lambda a, b, c: [a, c], 2, "does not follow line 1"),
    "two lines swapped": (lambda a, b, c: [b, a, c], 1, "does not begin a log"),
    "the last two swapped": (lambda a, b, c: [a, c, b], 2, "does not follow line 1"),
    "a line twice": (lambda a, b, c: [a, b, b, c], 3, "does not follow line 2"),
    "an end cut off": (lambda a, b, c: [a, b, c[:99]], 3, "not complete"),
    "an end cut off and made a line": (lambda a, b, c: [a, b, c[:99] + b"\n"], 3, "not complete"),
    "an end of line cut off": (lambda a, b, c: [a, b, c[:-1]], 3, "not complete"),
    "an end of line changed": (lambda a, b, c: [a[:-1] + b"\r", b, c], 2, "does not follow line 1"),
    "other words at the end": (lambda a, b, c: [a, b, c, b"hello\n"], 4, "not an entry"),
    "an empty line at the end": (lambda a, b, c: [a, b, c, b"\n"], 4, "not an entry"),
    "a number at the end": (lambda a, b, c: [a, b, c, b"5\n"], 4, "not an entry"),
    "brackets at the end": (lambda a, b, c: [a, b, c, b"[" * 100_000 + b"\n"], 4, "not an entry"),
    "other bytes at the end": (lambda a, b, c: [a, b, c, b"\xff\xfe\n"], 4, "not an entry"),
    "another log's first line at the end": (lambda a, b, c: [a, b, c, a], 4, "does not follow line 3"),
    "an entry without a hash at the end": (lambda a, b, c: [a, b, c, without(c, "previous")], 4, "not an entry"),
    "other spaces in the last line": (lambda a, b, c: [a, b, c.replace(b'"bytes": ', b'"bytes":')], 3, "not an entry"),
    "a last time that is none": (lambda a, b, c: [a, b, c.replace(b'"time": "2', b'"time": "x')], 3, "not an entry"),
}


def without(line, field):
    return json.dumps({k: v for k, v in json.loads(line).items() if k != field}, sort_keys=True).encode() + b"\n"


@pytest.mark.parametrize("tamper, line, words", TAMPERED.values(), ids=TAMPERED)
def test_the_command_names_the_first_line_that_does_not_fit(log, tamper, line, words):
    log.write_bytes(b"".join(tamper(*log.read_bytes().splitlines(keepends=True))))
    result = command(log)
    assert result.exit_code == 1
    assert f"broken: {log}, line {line}: {words}" in result.output and "unbroken" not in result.output


def test_any_changed_byte_before_the_last_line_is_found(log):
    written = log.read_bytes()
    for place in range(written.rstrip().rindex(b"\n") + 1):
        changed = bytearray(written)
        changed[place] ^= 1
        with pytest.raises(DataError, match=r"log, line [1-3]: "):
            audit.chain(bytes(changed), "log")


def test_an_emptied_log_is_no_log(log):
    log.write_bytes(b"")
    result = command(log)
    assert result.exit_code == 1 and "empty; expected a line for every message that was sent" in result.output


def test_lines_removed_from_the_end_show_in_the_fingerprint_alone(log):
    whole = audit.verify(log)
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))
    left = audit.verify(log)
    assert left == whole[:2] and fingerprint(left[-1]) == whole[2]["previous"]
