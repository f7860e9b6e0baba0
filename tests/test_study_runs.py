"""A study's run on the server's disk: never two at once, and none lost by starting another."""

import stat

import pytest
from typer.testing import CliRunner

from fedlap.cli.main import app
from fedlap.errors import ConfigError
from fedlap.study.agreement.contract import Study
from fedlap.study.protocol import checkpoint, runs
from fedlap.study.protocol.terms import Terms
from studies import SMALL


@pytest.fixture
def study(tmp_path):
    """A study without keys: no command gets as far as the network."""
    (tmp_path / "study.toml").write_text(SMALL)
    return Study.read(tmp_path)


def left_behind(study, digest=None, round=15, finished=False):
    """The checkpoint of a run of twenty rounds."""
    path = runs.folder(study) / "checkpoint.npz"
    checkpoint.write(path, checkpoint.Progress(digest or study.digest, "f00d", {}, round, finished), None)
    return path


def run(study, *words):
    """The error with which `fedlap study run` ends."""
    return CliRunner().invoke(app, ["study", "run", str(study.path), *words]).exception


def test_a_second_run_is_told_that_another_is_at_work(study):
    path = left_behind(study, round=20, finished=True)
    with runs.only_one(study):
        for words in ((), ("--again",)):
            error = run(study, *words)
            assert isinstance(error, ConfigError) and "another `fedlap study run` is at work" in str(error)
            assert "\n" not in str(error)
    assert path.exists(), "the second run has set the checkpoint of the first one aside"
    with runs.only_one(study):
        pass  # and the first one has let go


def test_the_lock_is_held_while_the_rounds_are_done(study, monkeypatch):
    seen = []

    class Transport:
        def __init__(self, *_):
            pass

        def exchange(self, *_):
            with pytest.raises(ConfigError, match="at work"), runs.only_one(study):
                pass
            seen.append(stat.S_IMODE(runs.folder(study).stat().st_mode))
            raise KeyboardInterrupt

        def close(self):
            seen.append("closed")

    monkeypatch.setattr("fedlap.flower.environment.prepare", lambda *_: None)
    monkeypatch.setattr("fedlap.flower.transport.GridTransport", Transport)
    result = CliRunner().invoke(app, ["study", "run", str(study.path)])
    assert seen == [0o700, "closed"]
    assert result.exit_code == 130 and "goes on from the last finished round" in result.output


def test_again_keeps_a_run_that_has_not_finished(study):
    path = left_behind(study)
    before = path.read_bytes()
    error = run(study, "--again")
    assert isinstance(error, ConfigError)
    assert str(error) == f"{path}: 15 of 20 rounds are done; leave out --again to go on"
    assert path.read_bytes() == before


def test_again_does_not_promise_to_go_on_with_a_run_of_another_study_file(study):
    path = left_behind(study, "other")
    with pytest.raises(ConfigError, match=r"under another study\.toml, .* not finished; put that study\.toml back"):
        runs.set_aside(study, Terms.of(study))
    assert path.exists()


def test_again_keeps_the_checkpoint_of_a_finished_run_under_its_name(study):
    path = left_behind(study, round=20, finished=True)
    before = path.read_bytes()
    kept = runs.set_aside(study, Terms.of(study))
    assert not path.exists()
    assert kept.name == "checkpoint-f00d.npz" and kept.read_bytes() == before
    assert runs.set_aside(study, Terms.of(study)) is None, "there is nothing more to set aside"


def test_a_run_goes_on_without_members_only(study):
    left_behind(study)
    error = run(study, "--without", "nroth")
    assert isinstance(error, ConfigError) and "unknown member 'nroth'; did you mean 'north'?" in str(error)


def test_again_leaves_nothing_of_the_finished_run_to_go_back_to(study):
    path = left_behind(study, round=20, finished=True)
    checkpoint.keep(path)
    runs.set_aside(study, Terms.of(study))
    assert not checkpoint.previous(path).exists()
