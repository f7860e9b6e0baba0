"""The commands that use the network: `fedlap server`, `fedlap node`, `fedlap study run` and `fedlap study demo`."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fedlap.cli.study import StudyFile
from fedlap.stopping import raise_on_interrupt

if TYPE_CHECKING:
    from fedlap.study.agreement.contract import CommonStudy, Study
    from fedlap.study.agreement.policy import SitePolicy
    from fedlap.study.agreement.regression import RegressionStudy
    from fedlap.study.protocol.inquiry import Event, Transport
    from fedlap.study.protocol.respondent import Respondent

Found = TypeVar("Found")


def server(
    study: StudyFile,
    bind: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where to listen; if not given, here alone if the study is, else at all."),
    ] = None,
) -> None:
    """Start the study's server: members connect to it, and the coordinator runs the study from another window."""
    from fedlap.errors import ConfigError
    from fedlap.flower.server import serve, state_folder, where_to_listen
    from fedlap.memory import never_dump
    from fedlap.study.agreement.keys import canonical
    from fedlap.study.agreement.reading import read_study

    never_dump()
    contract = read_study(study)
    if bind and bind.count(":") == 1:  # an IPv6 address has more
        raise ConfigError(
            f"--bind is {bind!r}; expected a host alone: its port is that of [network] in {contract.path}"
        )
    bind = canonical(bind or where_to_listen(contract.host))
    typer.echo(
        f"{contract.name}: server for {', '.join(member.name for member in contract.members)}, TLS, members' keys only"
    )
    typer.echo(f"listening at {bind}, port {contract.port}; its state is in {state_folder(contract)}")

    def ready() -> None:
        typer.echo("ready. Next, at each member:  fedlap node STUDY --name MEMBER --data FILE")
        typer.echo(f"and in another window here:   fedlap study run {contract.path}      (Ctrl-C stops the server)")

    raise_on_interrupt()
    serve(contract, bind, ready, typer.echo)


def node(
    study: StudyFile,
    name: Annotated[str, typer.Option(help="Which member this is.")],
    data: Annotated[Path, typer.Option(help="This member's file, CSV or Parquet. It does not leave this machine.")],
    explain: Annotated[bool, typer.Option("--explain", help="Only say what would be sent; send nothing.")] = False,
    state: Annotated[
        Path | None, typer.Option(help="Where this member's state is kept; by default beside STUDY.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="This member's private key; by default members/NAME.key.")] = None,
    patience: Annotated[float, typer.Option(help="Seconds to keep trying if the server does not let us in.")] = 1e9,
    restore: Annotated[
        bool, typer.Option("--restore", help="This member's state is lost: ask the server for what it has of it.")
    ] = False,
) -> None:
    """Take part in a study as one of its members; the file is checked whole before anything is sent."""
    from fedlap.memory import never_dump
    from fedlap.study.agreement.reading import read_study

    never_dump()
    contract = read_study(study)
    member = contract.member(name)
    folder = state or contract.folder / "state" / name
    policy = contract.policy(data)
    site, about, warnings, rounds = _site(contract, name, data, folder, policy)
    site.restore = restore
    typer.echo(f"{data}: {about}")
    if explain:
        for line in warnings:
            typer.echo(line)
        _explain(site, rounds)
        for line in policy.lines():
            typer.echo(line)
        return
    typer.echo(f"what this site allows: {policy.source}; `--explain` lists it")
    from fedlap.flower.node import serve

    raise_on_interrupt()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its default would leave no time to say good-bye
    typer.echo(f"connecting to {contract.address} as {name}; what is sent is recorded in {site.audit_log}")
    try:
        serve(contract, site, folder, key or member.private_key, typer.echo, patience)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on")
        raise typer.Exit(130) from None


def _site(
    contract: "Study | RegressionStudy", name: str, data: Path, folder: Path, policy: "SitePolicy"
) -> "tuple[Respondent, str, list[str], str]":
    """A member's site; in words its rows, what to be warned of, and how many rounds there are."""
    from fedlap.study.agreement.contract import Study

    if not isinstance(contract, Study):
        from fedlap.study.protocol.regression.records import RegressionRecords
        from fedlap.study.protocol.regression.site import RegressionSite

        rows = RegressionRecords(contract, data)
        about = f"{rows.opening.complete} rows for {contract.model.size} coefficients"
        site = RegressionSite(contract, name, rows, folder, policy, typer.echo)
        return site, about, rows.warnings(), "in each round, of which there are mostly fewer than ten"
    from fedlap.machine import keep_compiled_programs
    from fedlap.study.protocol.records import FileRecords
    from fedlap.study.protocol.site import Site
    from fedlap.study.protocol.terms import Terms
    from fedlap.study.table import encoding

    keep_compiled_programs()
    terms, records = Terms.of(contract), FileRecords(contract, name, data)
    about = f"{len(records.train)} rows to train on, {len(records.test)} held back to report on"
    site = Site(terms, name, records, folder, policy, typer.echo)
    return site, about, encoding.warnings(contract, records.train), f"in each of {terms.last_round + 1} rounds"


def _explain(site: "Respondent", rounds: str) -> None:
    """Show what a site would send, as a table."""
    from rich.console import Console
    from rich.table import Table

    from fedlap.cli.screen import show

    table = Table(title=f"what {site.member} would send")
    for head in ("when", "name", "shape", "bytes"):
        table.add_column(head, no_wrap=head in ("shape", "bytes"))
    sent = site.explain()
    for item in sent:
        table.add_row(item.when, item.name, " × ".join(map(str, item.shape)) or "1", f"{item.bytes:,}")
    show(Console(), table, names=2)
    every_round = sum(item.bytes for item in sent if item.when.startswith("every"))
    typer.echo(f"{every_round:,} bytes {rounds}. Nothing has been sent.")


def run(
    study: StudyFile,
    output: Annotated[
        Path | None, typer.Option(help="Where the model goes; by default model/ beside STUDY, of a regression result/.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Start a new run after one that has finished.")] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Go on without a member whose state is lost, for good; may be repeated."),
    ] = None,
) -> None:
    """Run the study's rounds on the server, or go on with them, and write what they have found."""
    from fedlap.flower.environment import prepare
    from fedlap.flower.server import private_folder
    from fedlap.memory import never_dump
    from fedlap.study.agreement.contract import Study
    from fedlap.study.agreement.reading import read_study
    from fedlap.study.protocol import runs
    from fedlap.study.protocol.terms import Terms

    never_dump()
    contract, lost = read_study(study), tuple(without or ())
    for name in lost:
        contract.member(name)
    terms = Terms.of(contract) if isinstance(contract, Study) else None
    raise_on_interrupt()
    with runs.only_one(contract):
        if again and (kept := runs.set_aside(contract, terms)):
            typer.echo(f"a new run; the checkpoint of the finished one is kept as {kept}")
            typer.echo(f"each member must agree to it:  fedlap study agree {contract.path.name} --name MEMBER")
        prepare(private_folder(contract) / "flower-run")
        said = _trained(contract, output, lost) if isinstance(contract, Study) else _fitted(contract, output, lost)
    typer.echo(said)


def _trained(contract: "Study", output: Path | None, without: tuple[str, ...]) -> str:
    """Run a study of a model that predicts; what to tell at the end."""
    from fedlap.machine import keep_compiled_programs
    from fedlap.study.model import save_outcome
    from fedlap.study.protocol.coordinator import Coordinator
    from fedlap.study.protocol.terms import Terms

    keep_compiled_programs()
    ask = lambda transport, tell: Coordinator.of(contract, transport, tell=tell, without=without).run()
    terms = Terms.of(contract)
    outcome = _carry_out(contract, terms.last_round + 1, ask, terms.contribution_bytes())
    output = save_outcome(output or contract.folder / "model", contract, outcome)
    return f"the model is in {output}, with a report.html to read. Next:  fedlap predict {output} NEW_PATIENTS.csv"


def _fitted(contract: "RegressionStudy", output: Path | None, without: tuple[str, ...]) -> str:
    """Run a regression; its summary, and where the files are."""
    from fedlap.study.protocol.regression.coordinator import RegressionCoordinator
    from fedlap.study.results import save_regression

    ask = lambda transport, tell: RegressionCoordinator(contract, transport, tell=tell, without=without).run()
    outcome = _carry_out(contract, None, ask, 8 * contract.model.size**2)
    output = save_regression(output or contract.folder / "result", contract, outcome)
    return f"{outcome.summary}\n\nthe tables are in {output}, and the model is in {output / 'model'}"


def _carry_out(
    study: "CommonStudy",
    rounds: int | None,
    ask: "Callable[[Transport, Callable[[Event], None]], Found]",
    contribution: int,
) -> "Found":
    """All rounds that are still to be done, shown as they go; a member contributes about so many bytes to each."""
    from fedlap.flower.server import secret
    from fedlap.flower.transport import GridTransport
    from fedlap.study.watch import Watch

    with Watch([member.name for member in study.members], rounds) as watch:
        transport = GridTransport(study, secret(study), watch.note, contribution)
        try:
            return ask(transport, watch.tell)
        except KeyboardInterrupt:
            typer.echo(f"stopped; `fedlap study run {study.path}` goes on from the last finished round")
            raise typer.Exit(130) from None
        finally:
            transport.close()


def demo(
    rounds: Annotated[int, typer.Option(help="How many rounds.")] = 5,
    algorithm: Annotated[str, typer.Option(help="Which algorithm.")] = "fedlap_cov",
    keep: Annotated[Path | None, typer.Option(help="A new folder to work in and leave behind.")] = None,
) -> None:
    """All of it on this machine: four hospitals, real processes, TLS and keys; then compare with the simulation."""
    from fedlap.cli.demo import play

    raise_on_interrupt()
    if not play(rounds, algorithm, keep, typer.echo):
        raise typer.Exit(1)
