"""Commands that train: an experiment into a folder, or into one file of results."""

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedlap import __version__
from fedlap.cli.answer import AsJson, answering
from fedlap.cli.data import DataDir

if TYPE_CHECKING:
    from fedlap.cli.cluster import Array
    from fedlap.experiments.shards import SweepShard
    from fedlap.experiments.sweep import Sweep

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, for example delta=0.1; may be repeated."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUES", help="Only these values of an axis: epochs=1,5; may be repeated."),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs, or batches of runs, at a time; one a core if not given.")]
ShardOf = Annotated[
    str | None,
    typer.Option(
        "--shard", metavar="NUMBER/COUNT", help="Only this part of the runs, 2/8 say; without it, all are put together."
    ),
]


def run(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPEC.toml] [ALGORITHM]...", help="What to run; all on the hospitals if not given."),
    ] = None,
    settings: Settings = None,
    only: Only = None,
    output: Annotated[
        Path | None, typer.Option(help="The results folder; if not given, a new one in results/.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Finish the run in this results folder.")] = None,
    data_dir: DataDir = None,
    jobs: Jobs = None,
    shard: ShardOf = None,
    on: Annotated[
        str | None, typer.Option(metavar="slurm|local", help="Submit the runs as jobs, wait, and put them together.")
    ] = None,
    shards: Annotated[int | None, typer.Option(min=1, help="How many jobs to submit.")] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="What to tell Slurm: time=240, partition=cpu; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train, show the progress, print the table, and write a results folder."""
    from fedlap.cli import cluster
    from fedlap.errors import ConfigError
    from fedlap.experiments import results, spec
    from fedlap.experiments import sweep as cells
    from fedlap.experiments.shards import SweepShard, found

    part = None if shard is None else SweepShard.parse(shard)
    array = None if on is None else cluster.Array.of(on, shards, slurm or [])
    if array is None and (shards is not None or slurm):
        raise ConfigError("--shards and --slurm are of jobs to submit; say where, with --on slurm")
    if array is not None and part is not None:
        raise ConfigError("--on submits all shards; leave out --shard")
    with answering(as_json) as answer:  # also while settings are read: they may name code that prints
        if resume is not None:
            if arguments or settings or only or output:
                raise ConfigError("--resume takes everything from its folder; leave out the other arguments")
            folder, wanted = resume, results.reopen(resume)
        else:
            if part is not None and output is None:
                raise ConfigError("--shard: expected --output too, the same folder for all shards")
            arguments = arguments or []
            file = arguments.pop(0) if arguments and spec.is_file(arguments[0]) else None
            wanted = cells.read(file, arguments, settings or []).narrow(only or [])
            folder = output or Path("results") / f"{wanted.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
        bring_data(wanted, data_dir)
        file = folder / results.RESULTS
        new = resume is None and not (part or array or found(file))
        if resume is None:  # only now: without its data there is nothing to resume
            begin = results.begin if new else results.join
            begin(wanted, folder)
        if part is not None:
            train_shard(wanted, file, data_dir, jobs, part, f"fedlap run --resume {folder}")
            answer({"folder": folder, "shard": str(part)})
            return
        if array is not None:
            submit(wanted, array, folder, data_dir, jobs)
        train(wanted, file, data_dir, jobs, f"fedlap run --resume {folder}", folder, new)
        answer({"folder": folder, "rows": summed(file)})


def sweep(
    spec: Annotated[Path, typer.Argument(help="A TOML file, with or without a [sweep] section.")],
    algorithms: Annotated[list[str] | None, typer.Argument(help="Only these of its algorithms.")] = None,
    settings: Settings = None,
    only: Only = None,
    output: Annotated[Path | None, typer.Option(help="The results file; results/NAME.jsonl if not given.")] = None,
    data_dir: DataDir = None,
    jobs: Jobs = None,
    shard: ShardOf = None,
    as_json: AsJson = False,
) -> None:
    """As run, into one file of results: every setting and seed once, and a second call runs what is missing."""
    from fedlap.experiments import sweep as cells
    from fedlap.experiments.shards import SweepShard

    part = None if shard is None else SweepShard.parse(shard)
    with answering(as_json) as answer:
        wanted = cells.read(spec, algorithms or [], settings or []).narrow(only or [])
        file = output or Path("results") / f"{wanted.name}.jsonl"
        bring_data(wanted, data_dir)
        if part is None:
            train(wanted, file, data_dir, jobs)
            answer({"file": file, "rows": summed(file)})
        else:
            train_shard(wanted, file, data_dir, jobs, part, "the same command without --shard")
            answer({"file": file, "shard": str(part)})


def summed(file: Path) -> list[dict]:
    """What a file of results says of each method and setting, as `fedlap compare --json` has it, without the curves."""
    from fedlap.experiments import comparison

    rows = [row.as_dict() for row in comparison.read([file])]
    return [{key: value for key, value in row.items() if key != "curves"} for row in rows]


def bring_data(sweep: "Sweep", data_dir: Path | None) -> None:
    """Download what is not here, while somebody looks on."""
    from fedlap.cli.display import downloading
    from fedlap.data import DATASETS, bring

    name = sweep.table["federation"]["dataset"]
    if name in DATASETS:  # one of somebody's own brings itself
        with downloading() as progress:
            bring(name, data_dir, progress)


def train(
    sweep: "Sweep",
    file: Path,
    data_dir: Path | None,
    jobs: int | None,
    again: str = "the same command",
    folder: Path | None = None,
    new: bool = False,
) -> None:
    """Carry out what the file of results lacks, then print what it says; into a folder, also write that down.

    A new folder goes again if the runs are refused.
    """
    from rich.console import Console

    from fedlap import files
    from fedlap.cli.display import show_table
    from fedlap.experiments import plots, results, summary
    from fedlap.stopping import resumable

    console = Console()

    def table(complete: bool = False) -> tuple[list, "summary.Text"] | None:
        winners = summary.summarise(sweep, results.load(file))
        if complete:
            winners = [winner for winner in winners if winner.seeds == len(sweep.final_seeds)]
        if not winners:
            return None
        text = summary.as_text(sweep, winners)
        show_table(console, text)
        return winners, text

    with resumable(f"{again} goes on where this stopped"), results.taken_back(folder if new else None):
        if folder is not None:
            plots.fetch()
        try:
            _follow(sweep, file, folder or file, data_dir, jobs)
        except OSError:  # no room to write it down, but what has finished is worth a look
            table(complete=True)
            raise
        shown = table()
        if folder is not None and shown is not None:
            winners, text = shown
            files.write(folder / results.TABLE, text.markdown())
            if plots.can_draw():
                summary.curves(winners, sweep.name, folder / results.CURVES)
            else:
                missing = f"{results.CURVES} is not drawn: matplotlib is not here; {plots.CURE}"
                console.print(missing, soft_wrap=True, markup=False)
    if folder is not None:
        names = (results.TABLE, results.CURVES, results.RESULTS, results.CONFIGURATION)
        written = ", ".join(name for name in names if (folder / name).exists())
        console.print(f"Written: {folder}/{written}", soft_wrap=True)  # a path in two lines is nothing to copy


def train_shard(
    sweep: "Sweep", file: Path, data_dir: Path | None, jobs: int | None, shard: "SweepShard", whole: str
) -> None:
    """Carry out what the shards' files lack of one shard; `whole` puts all of them together."""
    from fedlap.stopping import resumable

    with resumable("the same command goes on where this stopped"):
        _follow(sweep, file, shard.file(file), data_dir, jobs, shard=shard)
    typer.echo(f"Shard {shard} has done its part. When all have: {whole} puts them together and prints the table.")


def submit(sweep: "Sweep", array: "Array", folder: Path, data_dir: Path | None, jobs: int | None) -> None:
    """Have the runs carried out as jobs, the winners' after the search; what is left then is to put them together."""
    from rich.console import Console

    from fedlap.stopping import resumable

    words = [] if data_dir is None else ["--data-dir", str(data_dir.absolute())]
    words += [] if jobs is None else ["--jobs", str(jobs)]
    with resumable(array.after_a_stop(folder)):
        for _ in range(2 if sweep.finals == "winners" and sweep.search() else 1):
            array.carry_out(folder.absolute(), words, Console())


def watch(
    sweep: "Sweep",
    file: Path,
    data_dir: Path | None,
    jobs: int | None,
    quick: dict | None = None,
    version: str = __version__,
) -> None:
    """Bring the data and carry out what the file of results lacks, while somebody looks on."""
    from fedlap.stopping import resumable

    bring_data(sweep, data_dir)
    with resumable("the same command goes on where this stopped"):
        _follow(sweep, file, file, data_dir, jobs, quick, version)


def _follow(
    sweep: "Sweep",
    file: Path,
    place: Path,
    data_dir: Path | None,
    jobs: int | None,
    quick: dict | None = None,
    version: str = __version__,
    shard: "SweepShard | None" = None,
) -> None:
    """Carry out what the file of results lacks, and show it; `place` is where people look for it."""
    import jax

    from fedlap.cli.display import Display
    from fedlap.experiments.runner import Finished, carry_out
    from fedlap.run import divergence

    if sweep.precision == "float64":
        jax.config.update("jax_enable_x64", True)
    with Display(sweep, place) as display:
        for event in carry_out(sweep, file, data_dir, jobs, quick, version, shard):
            display.show(event)
            if isinstance(event, Finished) and not sweep.is_grid:  # a grid is expected to have settings that diverge
                for text in event.diverged:
                    divergence.tell(text)
