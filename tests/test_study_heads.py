"""The head of a site's audit log travels with each reply: whoever shortens the log is found out, on both sides."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import sites
from closeness import same_bits
from fedlap.cli.study import study_app
from fedlap.errors import ConfigError, DataError
from fedlap.study.agreement import scaffold
from fedlap.study.protocol import audit, heads, runs
from fedlap.study.protocol.chained import line_hashes
from fedlap.study.protocol.heads import Doubt, Head, Heads
from fedlap.study.protocol.messages import Reply, Request, decode, encode
from studies import SMALL

TERMS = sites.make_terms(sites.make_algorithm("fedlap_cov"))
ASKED = Request("train", study="digest", run="run1", round=0)
REPLY = Reply("ash", ASKED.digest, facts={"metrics": {"nll": 0.1}}, arrays={".v": np.arange(3.0)})


def recorded(path, reply=REPLY, request=ASKED):
    """A reply with the line that records it, as it comes out of the network."""
    record = audit.append(path, reply.member, request, reply)
    return decode(encode(dataclasses.replace(reply, recorded=record)), Reply)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "audit-ash.jsonl"


@pytest.fixture
def server(tmp_path):
    return Heads(tmp_path / "run" / heads.FILE)


def test_a_reply_names_the_line_that_records_it(log):
    for number in range(1, 4):
        reply = recorded(log)
        lines = log.read_bytes().splitlines()
        assert reply.recorded.line == len(lines) == number
        assert reply.recorded.head == line_hashes(log.read_bytes())[-1]
        assert json.loads(lines[-1])["previous"] == reply.recorded.previous
        assert audit.is_of(reply.recorded, ASKED, reply) and audit.holds(log, reply.recorded)


def change(reply, **changes):
    return dataclasses.replace(reply, **changes)


def deep(levels):
    return {"a": deep(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    "tamper",
    [
        lambda reply: change(reply, arrays={".v": np.array([0.0, 1.0, 2.0000000000000004])}),
        lambda reply: change(reply, arrays={".v": np.arange(3.0, dtype=np.float32)}),
        lambda reply: change(reply, facts={"metrics": {"nll": 0.2}}),
        lambda reply: change(reply, facts=deep(900)),
        lambda reply: change(reply, refusal="no"),
        lambda reply: change(reply, recorded=dataclasses.replace(reply.recorded, head="0" * 64)),
        lambda reply: change(reply, recorded=dataclasses.replace(reply.recorded, previous="1" * 64)),
    ],
)
def test_a_head_that_is_not_of_its_reply_is_announced(log, server, tamper):
    reply = tamper(recorded(log))
    assert server.take("ash", ASKED, reply) is Doubt.ANOTHER
    assert server.take("ash", dataclasses.replace(ASKED, round=1), recorded(log)) is Doubt.ANOTHER
    assert server.take("ash", ASKED, recorded(log)) is None


def test_what_is_not_recorded_is_announced_unless_there_is_nothing_in_it(server):
    assert server.take("ash", ASKED, Reply("ash", ASKED.digest, "its disk is full")) is None
    assert not server.path.exists()
    assert server.take("ash", ASKED, REPLY) is Doubt.UNRECORDED
    assert server.take("ash", ASKED, change(REPLY, refusal="no", arrays={})) is Doubt.UNRECORDED


def shorten(log, lines):
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:lines]))


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_shortened_log_shows_with_the_next_reply_and_once(log, server, left):
    for _ in range(3):
        assert server.take("ash", ASKED, recorded(log)) is None
    shorten(log, left)
    server = Heads(server.path)  # a coordinator that was started again knows what the first one knew
    assert server.take("ash", ASKED, recorded(log)) is Doubt.BACKWARDS
    assert server.take("ash", ASKED, recorded(log)) is None


def test_a_log_whose_last_line_was_changed_shows_with_the_next_reply(log, server):
    for _ in range(3):
        server.take("ash", ASKED, recorded(log))
    log.write_bytes(log.read_bytes()[:-20].replace(b'"bytes": 24', b'"bytes": 23') + log.read_bytes()[-20:])
    assert server.take("ash", ASKED, recorded(log)) is Doubt.BACKWARDS


def test_lost_replies_a_cut_line_and_a_reply_that_comes_twice_are_no_reason_for_doubt(log, server):
    server.take("ash", ASKED, recorded(log))
    recorded(log)  # lost on the way
    with open(log, "ab") as file:
        file.write(b'{"arrays": {".v')  # and a power cut
    twice = recorded(log)
    assert twice.recorded.line == 4
    for reply in (twice, twice, recorded(log)):
        assert server.take("ash", ASKED, reply) is None
    assert server.take("birch", ASKED, recorded(log.with_name("birch"), change(REPLY, member="birch"))) is None


def test_a_cut_line_in_the_servers_file_is_no_end_but_a_changed_one_is(log, server):
    for _ in range(2):
        server.take("ash", ASKED, recorded(log))
    whole = server.path.read_bytes()
    server.path.write_bytes(whole + b'{"doubt": ')
    assert Heads(server.path).take("ash", ASKED, recorded(log)) is None
    server.path.write_bytes(whole.replace(b'"line": 1', b'"line": 3'))
    with pytest.raises(ConfigError, match=r"audit-heads.jsonl, line 2: does not follow .* move this one away"):
        Heads(server.path).take("ash", ASKED, recorded(log))


GOOD = {"line": 3, "time": "2026-11-18T10:00:00.000+00:00", "previous": "a" * 64, "head": "0" * 64}


@pytest.mark.parametrize(
    "changes",
    [
        {"line": 0},
        {"line": -1},
        {"line": 2**53},
        {"line": True},
        {"line": "3"},
        {"line": 3.0},
        {"time": "x" * 41},
        {"time": None},
        {"previous": "a" * 63},
        {"head": "A" * 64},
        {"head": "0" * 64 + "\n"},
        {"more": 1},
    ],
)
def test_a_record_is_as_agreed_or_refused(changes):
    header = {**REPLY.header, "recorded": GOOD}
    assert Reply.read(header, {}).recorded.line == 3
    with pytest.raises(DataError, match="record"):
        Reply.read({**header, "recorded": {**GOOD, **changes}}, {})
    with pytest.raises(DataError):
        Reply.read({key: value for key, value in header.items() if key != "recorded"}, {})


# Both sides of a whole study -----------------------------------------------------------------------------------------


def run(folder, fault=None):
    events, transport = [], sites.Loopback(TERMS, folder, fault)
    outcome = sites.make_coordinator(TERMS, folder, transport, tell=events.append).run()
    return outcome, [event for event in events if event.kind == "audit"]


def test_the_server_keeps_the_head_of_every_reply_and_an_honest_run_has_no_doubts(tmp_path):
    _, doubts = run(tmp_path)
    assert doubts == []
    kept = heads.entries(tmp_path / "server" / heads.FILE)
    for name in sites.NAMES:
        path = tmp_path / name / f"audit-{name}.jsonl"
        entries, hashes = audit.verify(path), line_hashes(path.read_bytes())
        own = [entry for entry in kept if entry["member"] == name]
        assert [(entry["kind"], entry["round"]) for entry in own] == [(e["kind"], e["round"]) for e in entries]
        assert [Head(entry["line"], entry["head"]) for entry in own] == list(map(Head, range(1, 99), hashes))
        heads.check(path.read_bytes(), path, heads.known(str(tmp_path / "server" / heads.FILE), name))


def test_a_log_that_is_shortened_during_a_study_is_announced_by_name_and_the_study_goes_on(tmp_path):
    log = tmp_path / "birch" / "audit-birch.jsonl"

    def fault(request, member, data):
        if (request.kind, request.round, member) == ("train", 1, "birch"):
            shorten(log, 1)
        return data

    outcome, doubts = run(tmp_path, fault)
    assert [(event.member, event.step, event.note) for event in doubts] == [("birch", "round 3", Doubt.BACKWARDS)]
    assert same_bits(outcome.server, sites.simulate(TERMS).server)
    with pytest.raises(DataError, match="line 2: not the one that the server has the fingerprint of"):
        heads.check(log.read_bytes(), log, heads.known(str(tmp_path / "server" / heads.FILE), "birch"))


def command(*words):
    return CliRunner().invoke(study_app, ["audit", *map(str, words)])


@pytest.fixture
def study(tmp_path):
    """A study at its server, with three replies of a member whose log is elsewhere."""
    made = scaffold.new_study(tmp_path / "small", SMALL)
    server = Heads(runs.folder(made) / heads.FILE)
    for _ in range(3):
        server.take("ash", ASKED, recorded(tmp_path / "audit-ash.jsonl"))
    return made


def test_the_command_holds_a_sites_log_against_what_the_server_says(study, log):
    said = command(study.folder)
    assert said.exit_code == 0 and "3 replies; unbroken" in said.output, said.output
    assert said.output.splitlines()[-1] == "no log has ever gone backwards"
    (line,) = [line for line in said.output.splitlines() if line.startswith("ash: at line 3 of its log on ")]
    head, file = line.split("--head ")[1], runs.folder(study) / heads.FILE
    assert command(file).output == said.output and command(study.path).output == said.output
    for given in (head, file):
        result = command(log, "--head", given)
        assert result.exit_code == 0 and ", the last of them line 3\n" in result.output, result.output
    recorded(log)
    assert command(log, "--head", head).exit_code == 0
    whole = log.read_bytes()
    shorten(log, 2)
    assert command(log).exit_code == 0, "the chain itself is whole"
    for given in (head, file):
        result = command(log, "--head", given)
        assert (
            result.exit_code == 1 and "ends with line 2, but the server has the fingerprint of line 3" in result.output
        )
    log.write_bytes(whole.splitlines(keepends=True)[0])
    for _ in range(3):
        recorded(log)
    result = command(log, "--head", head)
    assert result.exit_code == 1 and "line 3: not the one that the server" in result.output


def test_the_command_at_the_server_names_who_has_gone_backwards(study, log):
    shorten(log, 1)
    Heads(runs.folder(study) / heads.FILE).take("ash", ASKED, recorded(log))
    result = command(study.folder)
    assert result.exit_code == 1 and "ash: its audit log does not go on where it stood" in result.output
    assert "no log has ever" not in result.output
    path = runs.folder(study) / heads.FILE
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    result = command(study.folder)
    assert result.exit_code == 1 and "broken: " in result.output and "line 1: does not begin a log" in result.output


@pytest.mark.parametrize("text", ["", "3", "3:abc", ":" + "0" * 64, "0:" + "0" * 64, "9" * 5000 + ":" + "0" * 64])
def test_a_head_that_is_none_is_an_error_of_words(study, log, text):
    error = command(log, "--head", text).exception
    assert isinstance(error, ConfigError) and "expected LINE:FINGERPRINT" in str(error)


def test_a_head_without_a_log_and_a_study_without_heads_are_errors_of_words(study, log, tmp_path):
    error = command(study.folder, "--head", "1:" + "0" * 64).exception
    assert isinstance(error, ConfigError) and "--head goes with a site's log" in str(error)
    (runs.folder(study) / heads.FILE).unlink()
    result = command(study.folder)
    assert result.exit_code == 1 and "from the first reply of a member on" in result.output
