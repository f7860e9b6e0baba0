"""Shards of a sweep: who has which runs, and how their results come together."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from fedlap.cli import cluster
from fedlap.cli import run as cli
from fedlap.errors import ConfigError, DataError, FedlapError
from fedlap.experiments import results, shards
from fedlap.experiments import sweep as cells
from fedlap.experiments.results import Curve, Result
from fedlap.experiments.runner import carry_out
from fedlap.experiments.shards import Awaiting, Gathered, SweepShard
from fedlap.experiments.summary import summarise, winners
from sweeping import TABLE, make, run

SPEC = """
[federation]
dataset = "heart"
[model]
name = "logistic"
[train]
rounds = 1
seeds = [1, 2]
[solver]
batch = 32
[algorithms]
fedavg = {}
"""


def share(sweep, shard, found=None, small=False):
    return shards.share(sweep, None, found or {}, shard, lambda cell: small)


def made(cell, accuracy=0.5):
    """A result of a cell that has not run."""
    curve = Curve.of([accuracy], [1.0])
    return Result.of(cell, {"test": curve, **({"validation": curve} if cell.held_out else {})}, 1.0, 2)


def digests(members):
    return [cell.digest for cell in members]


# Who has which runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 25])
def test_every_run_has_one_shard(count, small):
    sweep = make(every={"epochs": [1, 2, 7]})
    parts = [share(sweep, SweepShard(count, number), small=small) for number in range(1, count + 1)]
    dealt = [digest for each in parts for digest in digests([*each.search, *each.final])]
    assert sorted(dealt) == sorted(digests([*sweep.search(), *sweep.final()]))
    assert [digests(each.search) for each in parts] == [
        digests(share(sweep, SweepShard(count, number), small=small).search) for number in range(1, count + 1)
    ]


def test_shards_have_as_much_to_do_as_each_other():
    """By cost, not by number: runs of 40 epochs are few and long."""
    sweep = make(every={"epochs": [1, 2, 3, 40]}, search_seeds=list(range(12)))
    parts = [share(sweep, SweepShard(4, number)) for number in range(1, 5)]
    loads = [sum(cell.cost for cell in (*each.search, *each.final)) for each in parts]
    assert max(loads) - min(loads) <= min(cell.cost for cell in sweep.search()) * 3


def test_seeds_of_a_small_model_stay_together_while_there_is_a_setting_for_each_shard():
    sweep = make()
    for number in (1, 2, 3):
        dealt = share(sweep, SweepShard(3, number), small=True).search
        assert set(Counter((cell.algorithm, str(cell.setting)) for cell in dealt).values()) == {2}
    for number in range(1, 21):  # 12 settings, searched and trained on all rows, of 2 seeds
        dealt = share(sweep, SweepShard(20, number), small=True)
        assert 1 <= len([*dealt.search, *dealt.final]) <= 2


def test_a_run_that_two_settings_stand_for_is_dealt_once():
    cell = make().search()[0]
    assert [shards.deal([[[cell], [cell]], [[cell]]], SweepShard(2, number)) for number in (1, 2)] == [[cell], []]


def test_winners_wait_for_the_search_of_all_shards_and_change_nothing_about_what_was_dealt():
    table = {**TABLE, "algorithms": {"fedavg": {}, "fedlap": {"delta": 1.0}, "bcm": {"delta": 1.0}}}
    sweep = cells.make("tiny", {**table, "sweep": {"finals": "winners", "fedavg": {"epochs": [1, 2]}}})
    searched = {cell.digest: made(cell, accuracy=0.5 + 0.1 * (cell.epochs == 2)) for cell in sweep.search()}
    early = dict(list(searched.items())[1:])
    before = [share(sweep, SweepShard(3, number), early) for number in (1, 2, 3)]
    after = [share(sweep, SweepShard(3, number), searched) for number in (1, 2, 3)]
    assert {each.awaited for each in before} == {1} and {each.awaited for each in after} == {0}
    assert {cell.algorithm for each in before for cell in each.final} == {
        "fedlap",
        "bcm",
    }  # which have nothing to choose
    for first, then in zip(before, after, strict=True):
        assert digests(then.search) == digests(first.search)
        assert digests(then.final)[: len(first.final)] == digests(first.final)
    chosen = winners(list(searched.values()), sweep)
    assert chosen["fedavg"] == [{"epochs": 2}]
    assert sorted(digest for each in after for digest in digests(each.final)) == sorted(digests(sweep.final(chosen)))


def test_of_settings_that_do_equally_well_the_first_of_the_grid_wins():
    """Not the one whose run finished first: shards, and a call that puts them together, must choose alike."""
    sweep = make(finals="winners")
    ran = [made(cell) for cell in sweep.search()]
    assert winners(sweep.select(ran), sweep) == winners(sweep.select(ran[::-1]), sweep)
    assert winners(sweep.select(ran[::-1]), sweep)["fedavg"] == [{"epochs": 1}]


# How results come together --------------------------------------------------------------------------------------------


def test_shards_carry_out_a_sweep_and_a_call_without_one_puts_them_together(tmp_path):
    section = {"finals": "winners", "search_seeds": [1], "every": {"epochs": [1, 2]}}
    sweep = cells.make("tiny", {**TABLE, "algorithms": {"fedavg": {}}, "sweep": section})
    path = tmp_path / "tiny.jsonl"
    first, ran = run(sweep, path, shard=SweepShard(2, 1))
    assert [each.runs for each in first if isinstance(each, Awaiting)] == [1] and len(ran) == 1
    assert {result.held_out for result in ran} == {0.2}
    second, _ = run(sweep, path, shard=SweepShard(2, 2))  # it ends the search, and goes on
    assert not [each for each in second if isinstance(each, Awaiting)]
    _, ran = run(sweep, path, shard=SweepShard(2, 1))
    assert {result.held_out for result in ran} == {0.0}
    assert not path.exists()
    events, ran = run(sweep, path)
    assert isinstance(events[0], Gathered) and events[0].absent == () and ran == []
    lines = [json.loads(line)["cell"] for line in path.read_text().splitlines()]
    found = results.load(path)
    assert len(lines) == len(set(lines)) == sum(len(results.load(tmp_path / f"tiny-{k}-of-2.jsonl")) for k in (1, 2))
    assert set(lines) == set(digests([*sweep.search(), *sweep.final(winners(sweep.select(found), sweep))]))
    assert [winner.seeds for winner in summarise(sweep, found)] == [2]
    events, ran = run(sweep, path)  # once more: nothing is counted twice
    assert events[0] == Gathered((SweepShard(2, 1), SweepShard(2, 2)), []) and ran == [] and results.load(path) == found


def merged(path):
    with results.writer(path) as (earlier, append):
        return shards.merge(path, earlier, append)


def test_a_run_that_several_shards_have_made_counts_once(tmp_path):
    """As when an array is submitted again with another number of shards."""
    path, (one, two, three, *_) = tmp_path / "results.jsonl", [made(cell) for cell in make().search()]
    path.write_text(one.line())
    (tmp_path / "results-1-of-2.jsonl").write_text(one.line() + two.line())
    (tmp_path / "results-3-of-4.jsonl").write_text(two.line() + three.line())
    (tmp_path / "results-3-of-4.jsonl.checkpoints").mkdir()
    (tmp_path / "others-1-of-2.jsonl").write_text("of something else")
    event = merged(path)
    assert event.results == [two, three] and results.load(path) == [one, two, three]
    assert list(map(str, event.absent)) == ["2 of 2", "1 of 4", "2 of 4", "4 of 4"]


def test_what_a_killed_shard_left_half_written_does_not_count(tmp_path):
    path, (one, two, *_) = tmp_path / "results.jsonl", [made(cell) for cell in make().search()]
    (tmp_path / "results-1-of-1.jsonl").write_text(one.line() + two.line()[:40])
    assert merged(path).results == [one]


def test_a_shard_at_work_is_waited_for(tmp_path):
    path = tmp_path / "results.jsonl"
    with results.writer(SweepShard(2, 1).file(path)):
        with pytest.raises(DataError, match=r"results-1-of-2.jsonl: shard 1 of 2 is still at work on it; wait"):
            merged(path)
        with pytest.raises(DataError, match="another process is writing"):
            next(carry_out(make(), path, shard=SweepShard(2, 1)))
    assert merged(path).results == []


def test_a_damaged_file_of_a_shard_is_named(tmp_path):
    (tmp_path / "results-2-of-2.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"results-2-of-2.jsonl, line 1: not a result"):
        merged(tmp_path / "results.jsonl")


def test_shards_share_a_folder_of_one_experiment(tmp_path):
    folder, sweep = tmp_path / "out", make()
    folder.mkdir()
    (folder / "configuration.json.part").mkdir()  # as if another shard were writing: no two write to one file
    results.join(sweep, folder)
    results.join(sweep, folder)
    assert results.reopen(folder).as_dict() == sweep.as_dict()
    assert {path.name for path in folder.iterdir()} == {"configuration.json", "configuration.json.part"}
    with pytest.raises(DataError, match="out: holds results of other settings than these"):
        results.join(sweep.narrow(["epochs=1"]), folder)


# The command line -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0/8", "9/8", "2-8", "2/", "/8", "-1/8", "2/8/1", "1.5/8", "a/b", "0/0", "２/8", ""])
def test_a_shard_is_a_number_and_a_count(text):
    with pytest.raises(ConfigError, match=r"--shard .*: expected NUMBER/COUNT .* 2/8"):
        SweepShard.parse(text)


def test_a_shard_is_read_as_it_is_written():
    assert SweepShard.parse("2/8") == SweepShard(8, 2) and str(SweepShard(8, 2)) == "2 of 8"
    assert SweepShard(8, 2).file(Path("a/results.jsonl")) == Path("a/results-2-of-8.jsonl")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"shard": "1/2"}, "--shard: expected --output too, the same folder for all shards"),
        ({"shard": "3/2", "output": Path("out")}, "--shard 3/2: expected NUMBER/COUNT"),
        ({"shards": 2}, "say where, with --on slurm"),
        ({"slurm": ["time=3"]}, "say where, with --on slurm"),
        ({"on": "moon", "shards": 2}, "unknown --on 'moon'"),
        ({"on": "local"}, "--on local: expected the number of jobs, as in --shards 8"),
        ({"on": "local", "shards": 2, "shard": "1/2"}, "leave out --shard"),
        ({"on": "local", "shards": 2, "slurm": ["time=3"]}, "--slurm: of no use with --on local"),
        ({"on": "slurm", "shards": 2, "slurm": ["time"]}, "--slurm time: expected KEY=VALUE"),
        ({"on": "slurm", "shards": 2}, "expected the minutes that a shard may take, as in --slurm time=240"),
        ({"on": "slurm", "shards": 2, "slurm": ["time=3", "partion=a"]}, "did you mean 'partition'"),
        ({"on": "slurm", "shards": 2, "slurm": ["time=3"]}, "no sbatch and srun on this machine"),
    ],
)
def test_words_that_do_not_go_together_are_refused_before_anything_is_written(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=re.escape(message)):
        cli.run(**words)
    assert list(tmp_path.iterdir()) == []


def test_without_submitit_there_are_words(monkeypatch):
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--on local: submitit is not here; .*fedlap\[slurm\]"):
        cluster.Array.of("local", 2, [])


def test_slurm_gets_an_array_of_jobs_with_what_it_was_told(tmp_path, monkeypatch):
    """A stand-in for sbatch keeps what it is given; another one refuses it."""
    for name, does in (("sbatch", f'cp "$1" {tmp_path}/given; echo Submitted batch job 7'), ("srun", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    array = cluster.Array.of("slurm", 3, ["time=240", "partition=cpu", "cpus_per_task=4"])
    jobs = array.submit(tmp_path / "out", ["--jobs", "4"])
    given = (tmp_path / "given").read_text()
    for line in ("--array=0-2", "--time=240", "--partition=cpu", "--cpus-per-task=4", "--job-name=fedlap"):
        assert f"#SBATCH {line}" in given
    assert [job.job_id for job in jobs.values()] == ["7_0", "7_1", "7_2"]
    command = jobs[SweepShard(3, 2)].submission().function.command
    assert command[1:] == ["-m", "fedlap", "run", "--resume", str(tmp_path / "out"), "--shard", "2/3", "--jobs", "4"]
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho invalid partition specified: cpu >&2; exit 1\n")
    with pytest.raises(ConfigError, match=r"refused \(.*invalid partition specified: cpu.*change what --slurm"):
        array.submit(tmp_path / "out", [])


def test_jobs_of_this_machine_carry_out_a_sweep(tmp_path):
    """Real processes: a command that submits two shards and waits, then one that fails."""
    (tmp_path / "tiny.toml").write_text(SPEC)
    command = [sys.executable, "-m", "fedlap", "run", "tiny.toml", "--on", "local", "--shards", "2", "--output", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "2 runs of 2 shards put together." in done.stdout and "0 runs in" in done.stdout  # none was left over
    for name in ("results-1-of-2.jsonl", "results-2-of-2.jsonl"):
        assert len(results.load(tmp_path / "out" / name)) == 1
    assert {result.seed for result in results.load(tmp_path / "out/results.jsonl")} == {1, 2}
    assert "fedavg" in (tmp_path / "out/table.md").read_text()
    with pytest.raises(
        FedlapError, match=r"shard 1 of 1 has failed .*cannot be resumed.* --on local --shards 1 goes on"
    ):
        cluster.Array.of("local", 1, []).carry_out(tmp_path / "other", [], Console())


@pytest.mark.parametrize(("finals", "times"), [("all", 1), ("winners", 2)])
def test_winners_are_jobs_after_the_search(finals, times, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(cluster.Array, "carry_out", lambda self, folder, words, console: given.append(words))
    cli.submit(make(finals=finals), cluster.Array("local", 2, {}), tmp_path, tmp_path, 3)
    assert given == [["--data-dir", str(tmp_path), "--jobs", "3"]] * times
