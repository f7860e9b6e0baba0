"""The shards of a sweep as jobs of a cluster, or as processes of this machine; submitit submits them."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlap.errors import ConfigError, FedlapError, unknown
from fedlap.experiments.shards import SweepShard
from fedlap.files import results_folder

if TYPE_CHECKING:
    from rich.console import Console
    from submitit import Job

SLURM, LOCAL = "slurm", "local"
PLACES = (SLURM, LOCAL)
JOBS = "jobs"  # the folder of what submitit writes: scripts and logs
LOG = "submitit.log"
LONG = 60 * 24 * 365  # minutes that a process of this machine may take
UNSAID = {"job_name", "additional_parameters", "setup", "teardown", "srun_args"}  # ours, or no plain values
CURE = "to get it: pip install submitit, or fedlap[slurm]"


@dataclass(frozen=True)
class Array:
    """Jobs to submit: where, how many, and what Slurm is told about them."""

    place: str
    count: int
    settings: dict[str, Any]

    @classmethod
    def of(cls, place: str, count: int | None, settings: Sequence[str]) -> "Array":
        """The array that these words of the command line ask for, checked before anything is written."""
        if place not in PLACES:
            raise unknown("--on", place, PLACES)
        if count is None:
            raise ConfigError(f"--on {place}: expected the number of jobs, as in --shards 8")
        wanted = dict(_pair(text) for text in settings)
        if place == LOCAL and wanted:
            raise ConfigError("--slurm: of no use with --on local; leave it out")
        if importlib.util.find_spec("submitit") is None:
            raise ConfigError(f"--on {place}: submitit is not here; {CURE}")
        if place == SLURM:
            _check_slurm(wanted)
        return cls(place, count, wanted)

    def submit(self, folder: Path, words: Sequence[str]) -> "dict[SweepShard, Job]":
        """Submit the shards of the experiment in a folder; `words` are further words of each one's command."""
        import submitit
        from submitit.core.utils import CommandFunction, FailedJobError, FailedSubmissionError

        executor, jobs = submitit.AutoExecutor(folder / JOBS, cluster=self.place), {}
        if self.place == LOCAL:
            executor.update_parameters(timeout_min=LONG)
        else:
            executor.update_parameters(name="fedlap", **{f"slurm_{key}": self.settings[key] for key in self.settings})
        try:
            with _stderr_to(folder / JOBS / LOG), executor.batch():
                for number in range(1, self.count + 1):
                    command = [sys.executable, "-m", "fedlap", "run", "--resume", str(folder)]
                    command += ["--shard", f"{number}/{self.count}", *words]
                    jobs[SweepShard(self.count, number)] = executor.submit(CommandFunction(command))
        except (FailedJobError, FailedSubmissionError) as error:
            said = " ".join(str(error).split())
            raise ConfigError(f"--on slurm: the jobs were refused ({said}); change what --slurm says") from error
        return jobs

    def after_a_stop(self, folder: Path) -> str:
        """How to go on when the command that waits is stopped: processes of this machine stop with it."""
        jobs = "the jobs go on, and when they have ended, " if self.place == SLURM else ""
        return f"{jobs}fedlap run --resume {folder} puts their results together and carries out the rest"

    def carry_out(self, folder: Path, words: Sequence[str], console: "Console") -> None:
        """Submit the shards, say where they are, and wait until all have ended."""
        jobs = self.submit(folder, words)
        array, _, _ = jobs[SweepShard(self.count, 1)].job_id.partition("_")
        look = f"squeue --job {array} shows them, and " if self.place == SLURM else ""
        console.print(
            f"{self.count} shards submitted: {look}{folder / JOBS} has their logs. This command waits for them.",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
        failures = [words for shard, job in jobs.items() if (words := _failure(shard, job))]
        if failures:
            again = f"fedlap run --resume {folder} --on {self.place} --shards {self.count}"
            again += "".join(f" --slurm {key}={value}" for key, value in self.settings.items())
            raise FedlapError(f"{'; '.join(failures)}; what has finished is kept, and {again} goes on")


def _check_slurm(settings: Collection[str]) -> None:
    """Check that this machine can submit jobs, and that submitit knows each of these settings."""
    import submitit

    if "time" not in settings:
        raise ConfigError("--on slurm: expected the minutes that a shard may take, as in --slurm time=240")
    known = submitit.SlurmExecutor._valid_parameters() - UNSAID
    for key in settings:
        if key not in known:
            raise unknown("key of --slurm", key, sorted(known))
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise ConfigError("--on slurm: no sbatch and srun on this machine; expected one that can submit jobs")


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """A block in which new processes write their errors to a file: submitit's own print a trace on Ctrl-C."""
    results_folder(path.parent)
    screen = os.dup(2)
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)


def _pair(text: str) -> tuple[str, Any]:
    """A key and its value, from KEY=VALUE."""
    key, _, value = text.partition("=")
    if not (key and value):
        raise ConfigError(f"--slurm {text}: expected KEY=VALUE, as in --slurm partition=cpu")
    return key, int(value) if value.isdecimal() else value


def _failure(shard: SweepShard, job: "Job") -> str:
    """What became of a job that has ended: nothing to say if it did its part."""
    if job.exception() is None:
        return ""
    said = [line for line in (job.stderr() or "").splitlines() if line.startswith("error: ")]
    return f"shard {shard} has failed ({said[-1].removeprefix('error: ') if said else f'see {job.paths.stderr}'})"
