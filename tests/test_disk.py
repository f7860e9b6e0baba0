"""Disks that are full, read-only or gone, at a site and at the server: one sentence, nothing half written."""

import errno
import os
import re
import resource
import signal
from collections import Counter

import pytest

import regression_studies as regressions
import sites
from closeness import same_bits
from disks import small_disk
from fedlap import files
from fedlap.cli.main import run as run_commands
from fedlap.errors import DataError
from fedlap.files import WriteError
from fedlap.study.protocol import heads
from fedlap.study.protocol.audit import verify
from fedlap.study.protocol.messages import Request
from fedlap.study.protocol.refusals import Reason
from fedlap.study.results import load_regression, save_regression

TERMS = sites.make_terms(sites.make_algorithm("fedlap_cov"))
STATISTICS = Request("statistics", TERMS.digest, "run1")


@pytest.fixture(scope="module")
def undisturbed():
    return sites.simulate(TERMS)


# What each error says -------------------------------------------------------------------------------------------------


@pytest.fixture
def largest():
    """Set how many bytes a file may have in this process, which is a disk with no more room."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_file_that_may_not_grow_is_named_with_its_size_and_the_old_one_stays(tmp_path, largest):
    path = tmp_path / "card.json"
    files.write(path, "old")
    largest(1000)
    with pytest.raises(WriteError) as caught:
        files.write(path, "x" * 2000)
    assert (
        str(caught.value) == f"{path}: cannot be written (File too large); allow files of 2,000 bytes there (ulimit -f)"
    )
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named_with_the_room_that_is_needed(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        path = disk.folder / "run" / "checkpoint.npz"
        files.write_arrays(path, {"round": 1}, {})
        disk.fill()
        with pytest.raises(WriteError) as caught:
            files.write_arrays(path, {"round": 2}, {})
        pattern = r"checkpoint\.npz: cannot be written \(No space left on device\); make room for \d{3} bytes in (.*), "
        (folder,) = re.search(pattern + r"where 0 bytes are free$", str(caught.value)).groups()
        assert folder == str(path.parent) and [each.name for each in path.parent.iterdir()] == [path.name]
        assert files.read_arrays(path)[0] == {"round": 1}
        disk.free()
        files.write_arrays(path, {"round": 2}, {})


def test_a_disk_that_is_read_only_says_so(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        disk.read_only(True)
        for path in (disk.folder / "card.json", disk.folder / "a" / "b" / "setup.npz"):
            with pytest.raises(WriteError, match=rf"Read-only file system\); make the disk of {disk.folder} one that"):
                files.write_arrays(path, {}, {})
        with pytest.raises(OSError) as caught:
            (disk.folder / "model").mkdir()
        assert "it is mounted read-only" in files.in_words(caught.value)


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "state").write_text("no folder")
    with pytest.raises(WriteError, match=rf"setup\.npz: .*expected a folder in the place of {tmp_path / 'state'}$"):
        files.write_arrays(tmp_path / "state" / "ash" / "setup.npz", {}, {})


@pytest.mark.parametrize(
    "number, words",
    [
        (errno.EACCES, "let this account write to "),
        (errno.EDQUOT, "make room in "),
        (errno.ENOENT, "bring the folder "),
        (errno.EIO, "look after the disk of "),
    ],
)
def test_every_error_has_a_cure_and_the_same_command_is_given_again(tmp_path, number, words, capsys):
    error = OSError(number, os.strerror(number))

    def command():
        with files.writing(tmp_path / "checkpoint.npz"):
            raise error

    with pytest.raises(SystemExit) as caught:
        run_commands(command)
    said = capsys.readouterr().err
    assert caught.value.code == 2 and said.count("\n") == 1
    assert f"checkpoint.npz: cannot be written ({os.strerror(number)}); {words}" in said
    assert said.endswith(", then give the same command again\n")


# Any write that fails, wherever ---------------------------------------------------------------------------------------


@pytest.fixture
def now_and_then_full(monkeypatch):
    """Let some writes to every file fail, the first among them, when its bytes are to be on disk; by file, how many."""
    written, sync = Counter(), os.fsync

    def fsync(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        written[path] += 1
        if not os.path.isdir(path) and written[path] in (1, 4, 8):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs to see which file is written")
    monkeypatch.setattr(os, "fsync", fsync)
    return written


def until_it_ends(run):
    """What a command comes to that is given again whenever its own disk was full."""
    said = []
    while len(said) < 50:
        try:
            return run(), said
        except WriteError as error:
            said.append(os.path.basename(error.filename))
    raise AssertionError(said)


def check_files(folder, members):
    """Logs without a gap, in which a refusal is a line if there is room; no head went backwards; no half a file."""
    for name in members:
        entries = verify(folder / name / f"audit-{name}.jsonl")
        assert not any("unfinished" in entry for entry in entries)
        assert not any(entry["refusal"] not in ("", Reason.DISK) for entry in entries)
    assert not any(entry["doubt"] for entry in heads.entries(folder / "server" / heads.FILE))
    assert not list(folder.rglob("*.part"))


def test_whichever_write_fails_a_study_ends_in_the_same_bits(tmp_path, undisturbed, now_and_then_full):
    outcome, said = until_it_ends(lambda: sites.make_coordinator(TERMS, tmp_path).run())
    assert same_bits(outcome.server, undisturbed.server)
    names = {os.path.basename(path) for path in now_and_then_full}
    stored = {f"round-{number:06d}.npz.part" for number in range(3)}
    assert names >= {"setup.npz.part", *stored, "audit-birch.jsonl", heads.FILE, "checkpoint.npz.part"}
    assert set(said) == {heads.FILE, "checkpoint.npz", "checkpoint-previous.npz"}
    check_files(tmp_path, sites.NAMES)
    for name in sites.NAMES:  # a round that found no room, in a log that did
        entries = verify(tmp_path / name / f"audit-{name}.jsonl")
        assert ("train", Reason.DISK) in [(entry["kind"], entry["refusal"]) for entry in entries]


def test_whichever_write_fails_a_regression_ends_in_the_same_bits(tmp_path, now_and_then_full, monkeypatch):
    settings = {"formula": "ill ~ age", "family": "binomial"}
    study, data = regressions.make(tmp_path, ["ill", "age"], settings)
    outcome, said = until_it_ends(lambda: regressions.run(study, data, tmp_path)[0])
    check_files(tmp_path, regressions.MEMBERS)
    assert {"step-000000.npz", "moments.npz", heads.FILE, "checkpoint.npz"} <= set(said)
    folder, said = until_it_ends(lambda: save_regression(tmp_path / "result", study, outcome))
    assert set(said) == {"coefficients.csv", "summary.txt", "rounds.jsonl", "regression.json"}
    assert load_regression(folder / "model").card["run"] == outcome.run and not list(folder.rglob("*.part"))
    monkeypatch.undo()
    whole, _ = regressions.run(study, data, tmp_path / "undisturbed")
    assert (outcome.fit.params == whole.fit.params).all() and outcome.summary == whole.summary


# A disk that is really full, or gone ----------------------------------------------------------------------------------


class Interfered(sites.Loopback):
    """A network in which something is done to a site's disk before a request, and undone before the next try."""

    def __init__(self, terms, folder, moment, do, undo):
        super().__init__(terms, folder)
        self.moment, self.do, self.undo, self.said = moment, do, undo, []

    def site(self, name):
        site = super().site(name)
        site._log = self.said.append
        if self.asked[-1] == self.moment:
            (self.do if self.asked.count(self.moment) == 1 else self.undo)()
        return site


@pytest.mark.parametrize("kind", ["full", "read-only"])
@pytest.mark.parametrize("moment", [("birch", "statistics", -1), ("birch", "begin", -1), ("birch", "train", 1)])
def test_a_site_whose_disk_is_full_or_read_only_says_so_and_goes_on_by_itself(tmp_path, undisturbed, kind, moment):
    with small_disk(tmp_path / "birch") as disk:
        do, undo = {
            "full": (disk.fill, disk.free),
            "read-only": (lambda: disk.read_only(True), lambda: disk.read_only(False)),
        }[kind]
        if moment[1] == "statistics":  # nothing is there yet, and one line finds room on a page that another has begun
            (disk.folder / "audit-birch.jsonl").touch()
        transport, events = Interfered(TERMS, tmp_path, moment, do, undo), []
        outcome = sites.make_coordinator(TERMS, tmp_path, transport, tell=events.append).run()
        assert same_bits(outcome.server, undisturbed.server)
        refused = [(event.member, event.note) for event in events if event.kind == "refused"]
        assert refused == [("birch", f"birch refuses: {Reason.DISK.value}")]
        (said,) = [line for line in transport.said if "refused" in line]
        assert (
            "cannot be written (" in said and str(disk.folder) in said and said.endswith("; it then goes on by itself")
        )
        assert ("make room for " if kind == "full" else "mounted read-only") in said and "\n" not in said
        check_files(tmp_path, sites.NAMES)


def test_a_reply_that_cannot_be_recorded_does_not_leave(tmp_path, monkeypatch):
    site = sites.Loopback(TERMS, tmp_path).site("ash")
    assert site.answer(STATISTICS).arrays
    before, write = site.audit_log.read_bytes(), os.write

    def half(descriptor, data):
        write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", half)
    reply = site.answer(STATISTICS)
    assert (reply.refusal, reply.arrays, reply.facts, reply.recorded) == (Reason.DISK, {}, {}, None)
    assert site.audit_log.read_bytes() == before, "half a line stays"
    monkeypatch.undo()
    assert site.answer(STATISTICS).recorded.line == 2


def test_a_site_goes_on_with_the_folder_that_it_has_used_and_with_no_empty_one(tmp_path):
    said = []
    site = sites.Loopback(TERMS, tmp_path).site("ash")
    site._log = said.append
    assert site.answer(STATISTICS).recorded.line == 1
    (tmp_path / "ash").rename(tmp_path / "away")
    for _ in range(2):
        reply = site.answer(STATISTICS)
        assert (reply.refusal, reply.recorded) == (Reason.VANISHED, None)
        assert not (tmp_path / "ash").exists(), "a new folder is none that was used so far"
    assert f"{tmp_path / 'ash'} back as it was, or start `fedlap node` again" in said[-1]
    (tmp_path / "away").rename(tmp_path / "ash")
    assert site.answer(STATISTICS).recorded.line == 2
    site.audit_log.write_bytes(b"")
    assert site.answer(STATISTICS).refusal == Reason.VANISHED
    again = sites.Loopback(TERMS, tmp_path).site("ash")  # its operator has started it again
    assert again.answer(STATISTICS).recorded.line == 1


def test_a_log_that_takes_no_more_words_is_no_reason_to_end(tmp_path):
    full, lines = os.open("/dev/full", os.O_WRONLY), []

    def say(line):
        lines.append(line)
        os.write(full, line.encode())

    site = sites.Loopback(TERMS, tmp_path).site("ash")
    site._log = say
    assert site.answer(STATISTICS).arrays and site.answer(STATISTICS).recorded.line == len(lines) == 2
    os.close(full)


def test_a_state_file_that_may_not_be_read_is_no_damaged_one(tmp_path):
    path = tmp_path / "ash" / "setup.npz"
    path.mkdir(parents=True)  # root may read any file
    with pytest.raises(IsADirectoryError):
        files.read_arrays(path)
    path.rmdir()
    path.write_bytes(b"damaged")
    with pytest.raises(ValueError):
        files.read_arrays(path)


def test_the_servers_full_disk_is_one_sentence_and_the_same_command_goes_on(tmp_path, undisturbed):
    with small_disk(tmp_path / "server") as disk:

        def fill(request, member, data):
            if (request.kind, request.round, member) == ("train", 1, "cedar"):
                disk.fill()
            return data

        with pytest.raises(
            WriteError, match=r"server/checkpoint-previous\.npz: cannot be .*; make room for [\d,]+ bytes"
        ):
            sites.make_coordinator(TERMS, tmp_path, sites.Loopback(TERMS, tmp_path, fill)).run()
        disk.free()
        transport = sites.Loopback(TERMS, tmp_path)
        outcome = sites.make_coordinator(TERMS, tmp_path, transport).run()
        assert same_bits(outcome.server, undisturbed.server)
        assert ("ash", "train", 0) not in transport.asked
        check_files(tmp_path, sites.NAMES)


def test_an_error_of_the_servers_disk_is_no_members_fault(tmp_path):
    """A DataError would be taken for one, and a regression would be over for good."""
    assert not issubclass(WriteError, DataError)
