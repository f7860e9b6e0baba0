"""Commands that train: one experiment, or a grid of settings."""

import datetime
from pathlib import Path
from typing import Annotated

import typer

from fedlap import __version__
from fedlap.cli.data import DataDir

Jobs = Annotated[int | None, typer.Option(min=1, help="Processes for larger models; one a core if not given.")]


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPEC.toml] [ALGORITHM]...", help="What to run; all on the hospitals if not given."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, for example delta=0.1.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The results folder; if not given, a new one in results/.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Finish the run in this results folder.")] = None,
    data_dir: DataDir = None,
):
    """Train, show the progress, print the table, and write a results folder."""
    from fedlap.cli.display import Display, downloading
    from fedlap.data import bring
    from fedlap.errors import ConfigError
    from fedlap.experiments import experiment, spec
    from fedlap.experiments.summary import curves, markdown, summarise
    from fedlap.files import atomic
    from fedlap.stopping import resumable

    if resume is not None:
        if words or settings or output:
            raise ConfigError("--resume takes everything from its folder; leave out the other arguments")
        folder, wanted = resume, experiment.reopen(resume)
    else:
        words = words or []
        file = words.pop(0) if words and spec.is_file(words[0]) else None
        wanted = spec.read(file, words, settings or [])
        folder = output or Path("results") / f"{wanted.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    with downloading() as progress:
        bring(wanted.federation["dataset"], data_dir, progress)
    if resume is None:  # only now: without its data there is nothing to resume
        experiment.begin(wanted, folder)
    with resumable(f"fedlap run --resume {folder} goes on where this stopped"):
        display = Display(wanted, folder)
        try:
            with display:
                for step in experiment.carry_out(wanted, folder, data_dir):
                    display.show(step)
        except OSError:  # no room to write it down, but what has finished is worth a look
            display.table(display.finished)
            raise
        display.table(display.runs)
        rows = summarise(display.runs, wanted.train.target_accuracy)
        atomic.write(folder / "table.md", markdown(rows, wanted.train.target_accuracy))
        curves(display.runs, wanted.name, folder / "curves.png")
    written = f"Written: {folder}/table.md, curves.png, rounds.jsonl, configuration.json"
    display.console.print(written, soft_wrap=True)  # a path in two lines is nothing to copy


def sweep(
    spec: Annotated[Path, typer.Argument(help="A TOML file with a [sweep] section.")],
    algorithms: Annotated[list[str] | None, typer.Argument(help="Only these of its algorithms.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, for example rounds=5; may be repeated."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUES", help="Only these values of an axis: epochs=1,5; may be repeated."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The results file; results/NAME.jsonl if not given.")] = None,
    data_dir: DataDir = None,
    jobs: Jobs = None,
):
    """Run every setting and seed of a grid, once: a second call runs what is missing. Ends with a table of winners."""
    from fedlap.experiments import results
    from fedlap.experiments import sweep as cells

    wanted = cells.read(spec, algorithms or [], settings or []).narrow(only or [])
    file = output or Path("results") / f"{wanted.name}.jsonl"
    display = watch(wanted, file, data_dir, jobs)
    display.table(wanted.select(results.load(file)))


def watch(sweep, file, data_dir, jobs, quick=None, version=__version__):
    """Carry out a sweep while somebody looks on."""
    import jax

    from fedlap.cli.display import downloading
    from fedlap.cli.sweep_display import Display
    from fedlap.data import bring
    from fedlap.experiments.runner import carry_out
    from fedlap.stopping import resumable

    with downloading() as progress:
        bring(sweep.table["federation"]["dataset"], data_dir, progress)
    if sweep.precision == "float64":
        jax.config.update("jax_enable_x64", True)
    with resumable("the same command goes on where this stopped"), Display(sweep, file) as display:
        for event in carry_out(sweep, file, data_dir, jobs, quick, version):
            display.show(event)
    return display
