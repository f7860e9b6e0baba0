"""The commands of a study that need no network: make one, check a file or a log, predict with its model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedlap.cli.help import Commands
from fedlap.stopping import raise_on_interrupt

if TYPE_CHECKING:
    from fedlap.study.agreement.contract import CommonStudy, Study
    from fedlap.study.agreement.policy import SitePolicy
    from fedlap.study.agreement.regression import RegressionStudy
    from fedlap.study.table.table import Checked

study_app = typer.Typer(cls=Commands, help="A study across real sites, each with its own file.", no_args_is_help=True)

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="study.toml, or the folder it is in.")]


@study_app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="The folder to make; its name is the study's name.")],
    members: Annotated[
        str, typer.Option(help="The members' names, separated by commas.")
    ] = "cleveland,hungarian,switzerland,va",
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the members will reach the server.")
    ] = "127.0.0.1:9443",
    columns_from: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draft the columns from this CSV or Parquet file.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="With --columns-from: what to predict; the last column if not given."),
    ] = None,
    study_file: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A study file to make keys for, such as that of fedlap fit."),
    ] = None,
) -> None:
    """Make a study: its file, a certificate for the server and a key pair for each member."""
    from fedlap.errors import ConfigError
    from fedlap.study.agreement import example, scaffold
    from fedlap.study.agreement.draft import draft_columns
    from fedlap.study.agreement.sections import check_address
    from fedlap.study.agreement.template import study_text

    check_address("--address", address)
    names = [name.strip() for name in members.split(",") if name.strip()]
    title = folder.resolve().name
    if study_file is not None:
        if columns_from is not None or target is not None:
            raise ConfigError("--from has all of the study in it; leave out --columns-from and --target")
        made = scaffold.new_from(folder, study_file)
        typer.echo(_after_new(made, folder, "as in its file"))
        return
    if columns_from is not None:
        columns, predicted, ignored = draft_columns(columns_from, target)
        text = study_text(title, names, columns, predicted, ignored=ignored, address=address, drafted=True)
    elif target is not None:
        raise ConfigError("--target goes with --columns-from; else name the target in study.toml")
    else:
        text = example.example_study(names, name=title, address=address)
    raise_on_interrupt()
    study = scaffold.new_study(folder, text)
    drafted = "the columns are a DRAFT from one file: read each line" if columns_from else "an example: four hospitals"
    typer.echo(_after_new(study, folder, drafted))


def _after_new(study: "CommonStudy", folder: Path, origin: str) -> str:
    width = max(len(member.name) for member in study.members)
    to_members = "\n".join(
        f"       {member.name:<{width}}  study.toml, ca.crt, members/{member.name}.key" for member in study.members
    )
    return f"""\
The study {study.name!r} is in {folder} ({origin}).

Next:
  1. Edit {folder / "study.toml"}: read every line, and the address. Agree on it with all members.
  2. Give each member its files, in a folder of their own and with the same names:
{to_members}
     A .key file is secret: it goes to its own member and to nobody else, by a channel you trust. It is for this
     study alone: a member of two studies has two keys, so that neither server can be entered with the other's.
     ca.key, server.key, server.pem and the .pub files stay here.
  3. Each member checks its file, which sends nothing:
       fedlap study check study.toml --name NAME --data FILE.csv
  4. Here: fedlap server {folder / "study.toml"}. Each member: fedlap node study.toml --name NAME --data FILE.csv
  5. Here, once they have joined: fedlap study run {folder / "study.toml"}"""


@study_app.command()
def certificate(
    study: StudyFile,
    host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A further host that the server is reached at.")
    ] = None,
) -> None:
    """Sign the server's certificate anew, for the present address: after that was changed."""
    from fedlap.study.agreement import keys
    from fedlap.study.agreement.reading import read_study

    contract = read_study(study)
    keys.renew_certificate(contract.folder, [contract.host, *(host or ())])
    typer.echo(_after_certificate(contract, keys.certified_hosts(contract.folder)))


def _after_certificate(contract: "CommonStudy", hosts: tuple[str, ...]) -> str:
    return f"""\
{contract.folder / "server.pem"}: a new certificate, for {", ".join(hosts)}. Members keep their ca.crt and their keys.

Next:
  1. Here: stop `fedlap server` if it is running, and start it again.
  2. Each member that reaches the server at a new address writes it into [network] of its study.toml, and starts
     `fedlap node` again: address = "{contract.address}", or another that the certificate is for."""


@study_app.command()
def revoke(
    study: StudyFile,
    name: Annotated[str, typer.Option(metavar="MEMBER", help="Whose key is to be let in no more.")],
) -> None:
    """Revoke a member's key, at the server: it is refused from now on, also by a server that is running."""
    from fedlap.flower.keyring import revoke as revoke_key
    from fedlap.study.agreement.reading import read_study

    contract = read_study(study)
    noted = revoke_key(contract, name)
    typer.echo(f"""\
{name}'s key is revoked: a running server refuses it from its next request on, and so does every later one.
It is noted in {noted}. To let {name} in again, with a new key (ssh-keygen -t ecdsa -b 384), put its public half
there as {contract.member(name).public_key}; the server need not be started again.""")


@study_app.command()
def check(
    study: StudyFile,
    data: Annotated[Path, typer.Option(metavar="FILE", help="The CSV or Parquet file to check.")],
    name: Annotated[str | None, typer.Option(metavar="MEMBER", help="Which member's file it is.")] = None,
) -> None:
    """Check a whole file against the study. Nothing is sent, nothing is written."""
    from fedlap.errors import DataError
    from fedlap.study.agreement.contract import Study
    from fedlap.study.agreement.reading import read_study

    contract = read_study(study)
    if name is not None:
        contract.member(name)
    policy = contract.policy(data)
    try:
        if isinstance(contract, Study):
            lines = _checked_for_model(contract, data, name, policy)
        else:
            lines = _checked_for_regression(contract, data, policy)
    except DataError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        typer.echo("\nNothing was sent. Correct the file and check it again.", err=True)
        raise typer.Exit(1) from error
    typer.echo("\n".join([*lines, "Nothing was sent."]))


@study_app.command()
def agree(
    study: StudyFile,
    name: Annotated[str, typer.Option(metavar="MEMBER", help="Which member this is.")],
    state: Annotated[
        Path | None, typer.Option(help="Where this member's state is kept; by default beside STUDY.")
    ] = None,
) -> None:
    """At a member: agree to one more run of the study than have begun here. Nothing is sent."""
    from fedlap.study.agreement.reading import read_study
    from fedlap.study.protocol.permits import Permits

    contract = read_study(study)
    contract.member(name)
    permits = Permits(state or contract.folder / "state" / name, contract.digest, name)
    agreed, begun = permits.agree(), len(permits.begun())
    typer.echo(
        f"runs of {contract.name!r} begun at {name}: {begun}; agreed to: {agreed.runs} in all. The audit log will "
        f"record it when the next run begins. To take it back before, delete {permits.path}"
    )


def _checked_for_model(contract: "Study", data: Path, name: str | None, policy: "SitePolicy") -> list[str]:
    """What is said of a file that fits a study of a model that predicts."""
    from fedlap.study.protocol.guard import check_size
    from fedlap.study.protocol.terms import Terms
    from fedlap.study.table import encoding, table

    checked = table.check_file(contract, data)
    # Which rows train depends on the member's name; without one, all rows stand for them.
    train, test = (checked, None) if name is None else checked.split(contract, name)
    encoding.statistics(contract, train)
    check_size(policy, data.name, len(train), Terms.of(contract).covariances)
    classes = ", ".join(
        f"{(checked.known_labels() == label).sum()} {name}" for label, name in enumerate(contract.target.classes)
    )
    rules = {column.name: column.missing for column in (*contract.columns, contract.target)}
    lines = [*_fits(contract, checked), f"{contract.target.name}: {classes}", *_empty_cells(checked, rules)]
    if test is not None:
        lines.append(f"to train on: {len(train)} rows; kept back to test on: {len(test)} rows")
        lines += encoding.warnings(contract, train)
    return lines


def _checked_for_regression(contract: "RegressionStudy", data: Path, policy: "SitePolicy") -> list[str]:
    """What is said of a file that fits a regression."""
    from fedlap.study.protocol.guard import check_size
    from fedlap.study.protocol.regression.records import RegressionRecords

    records = RegressionRecords(contract, data)
    check_size(policy, data.name, records.opening.complete, contract.model.size)
    rules = {column.name: column.missing for column in contract.columns}
    sizes = f"{records.opening.complete} rows for {contract.model.size} coefficients"
    events = [f"events: {records.opening.events:g}"] if contract.regression.event is not None else []
    return [
        *_fits(contract, records.checked),
        f"{contract.regression.formula}: {sizes}",
        *events,
        *_empty_cells(records.checked, rules),
        *records.warnings(),
    ]


def _fits(contract: "CommonStudy", checked: "Checked") -> list[str]:
    return [
        f"{checked.path.name} fits the study {contract.name!r}; its digest, the same at all members, "
        f"begins {contract.digest[:12]}",
        f"rows: {len(checked)} usable, {len(checked.dropped)} dropped for missing values",
    ]


def _empty_cells(checked: "Checked", rules: dict[str, str]) -> list[str]:
    empty = [f"  {column}: {count} ({rules[column]})" for column, count in checked.missing.items() if count]
    return ["empty cells, and what the study does with them:", *empty] if empty else ["empty cells: none"]


@study_app.command()
def audit(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A site's log, state/NAME/audit-NAME.jsonl; at the server, the STUDY."),
    ],
    head: Annotated[
        str | None,
        typer.Option(
            metavar="LINE:FINGERPRINT", help="What the server has of this site's log; or its file audit-heads.jsonl."
        ),
    ] = None,
) -> None:
    """Verify the log of what a site has sent: that no line was changed, removed or put in. Nothing is written.

    At the server: where each member's log stood when it last replied, and whether any has ever gone backwards.
    """
    from fedlap.errors import ConfigError, DataError
    from fedlap.study.protocol.heads import FILE

    at_server = file.is_dir() or file.suffix == ".toml" or file.name == FILE
    if at_server and head is not None:
        raise ConfigError("--head goes with a site's log; at the server there is nothing to hold it against")
    try:
        lines, doubtful = _heads_of(file) if at_server else (_verified(file, head), False)
    except DataError as error:
        typer.secho(f"broken: {error}", fg="red", err=True)
        raise typer.Exit(1) from error
    typer.echo("\n".join(lines))
    if doubtful:
        raise typer.Exit(1)


def _verified(file: Path, head: str | None) -> list[str]:
    """What is said of a site's log that is whole, and has what the server knows of it."""
    from fedlap.study.protocol import audit, heads
    from fedlap.study.protocol.chained import fingerprint

    log = file.read_bytes()
    entries = audit.chain(log, file)
    whole = [entry for entry in entries if "unfinished" not in entry]
    cut = [str(number) for number, entry in enumerate(entries, 1) if "unfinished" in entry]
    count = "1 entry" if len(whole) == 1 else f"{len(whole)} entries"
    lines = [f"{file}: {count}, from {whole[0]['time']} to {whole[-1]['time']}; unbroken"]
    if cut:
        lines.append(f"cut off by a crash, before anything was sent: line {', '.join(cut)}")
    if head is not None:
        known = heads.known(head, str(whole[-1]["member"]))
        heads.check(log, file, known)
        lines.append(f"it has all {len(known)} lines that the server knows of, the last of them line {known[-1].line}")
    lines.append(f"fingerprint of the last line: {fingerprint(whole[-1])}")
    return lines


def _heads_of(path: Path) -> tuple[list[str], bool]:
    """What is said of all members' logs at the server, and whether there is a doubt about any."""
    from fedlap.errors import DataError
    from fedlap.study.agreement.reading import read_study
    from fedlap.study.protocol import heads, runs

    file = path if path.name == heads.FILE else runs.folder(read_study(path)) / heads.FILE
    if not file.exists():
        raise DataError(f"{file}: there is no such file; expected one, from the first reply of a member on")
    entries = heads.entries(file)
    lines = [f"{file}: {len(entries)} replies; unbroken"]
    for member, last in sorted(heads.last(entries).items()):
        time = next(entry["time"] for entry in reversed(entries) if entry["member"] == member)
        lines.append(f"{member}: at line {last.line} of its log on {time}; it can check that with  --head {last}")
    doubts = [entry for entry in entries if entry["doubt"]]
    lines += [f"{entry['member']}: {entry['doubt']} ({entry['kind']}, {entry['time']})" for entry in doubts]
    return lines if doubts else [*lines, "no log has ever gone backwards"], bool(doubts)


def predict(
    model: Annotated[Path, typer.Argument(help="The folder of a fitted model.")],
    file: Annotated[Path, typer.Argument(help="New patients: a CSV or Parquet file with the study's columns.")],
    output: Annotated[Path, typer.Option(help="Where to write the probabilities.")] = Path("predictions.csv"),
    posterior: Annotated[
        bool, typer.Option("--posterior", help="Average probabilities over the posterior, not at the point estimate.")
    ] = False,
    link: Annotated[str | None, typer.Option(help="With --posterior: probit, the default, or samples.")] = None,
    samples: Annotated[int | None, typer.Option(help="With --link samples: how many draws.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draws.")] = None,
    interval: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Write intervals too, that hold this share: 0.9.")
    ] = None,
    observation: Annotated[
        bool, typer.Option("--observation", help="Of a regression: where a new outcome lies, not its mean alone.")
    ] = False,
) -> None:
    """Predict with a study's model, for every row of a file: the probability of each class, or what is expected."""
    from fedlap.errors import ConfigError
    from fedlap.study.results import CARD

    if output.exists() and output.resolve() == file.resolve():
        raise ConfigError(f"--output {output} is the patients' own file; expected another name")
    options = {"posterior": posterior or None, "link": link, "samples": samples, "seed": seed}
    options = {name: value for name, value in options.items() if value is not None}
    if (model / CARD).exists():
        for name in options:
            raise ConfigError(f"--{name} goes with a model of classes; a regression has --interval and --observation")
        checked, what = _expected(model, file, output, interval, observation), "what is expected"
    else:
        if observation:
            raise ConfigError("--observation goes with a regression; a model of classes has --posterior --interval")
        options |= {} if interval is None else {"interval": interval}
        for name in (name for name in options if not posterior):
            raise ConfigError(f"--{name} is of the posterior; expected --posterior too")
        checked, what = _probabilities(model, file, output, options), "probabilities"
    typer.echo(f"{output}: {what} of {len(checked)} rows")
    if len(checked.dropped):
        typer.echo(f"{len(checked.dropped)} rows have no prediction: a value is missing that the study needs")


def _probabilities(model: Path, file: Path, output: Path, options: dict[str, Any]) -> "Checked":
    from fedlap.study import model as fitted
    from fedlap.study.table import table
    from fedlap.study.table.predictions import write

    loaded = fitted.load(model)
    checked = table.check_inputs(loaded.study, file)
    found = loaded.predict(checked, **options)
    write(output, loaded.study.target.classes, checked, found if isinstance(found, tuple) else [found])
    return checked


def _expected(model: Path, file: Path, output: Path, interval: float | None, observation: bool) -> "Checked":
    from fedlap.study.results import load_regression
    from fedlap.study.table.predictions import write_columns

    loaded = load_regression(model)
    checked = loaded.check(file)
    several = bool(loaded.study.design.classes)  # an interval of several probabilities at once is not to be had
    wanted = 0.95 if interval is None and not several else interval
    table = loaded.predict(checked, wanted, observation)
    names = [f"probability_{name}" if several else str(name) for name in table.columns]
    write_columns(output, names, checked, table.to_numpy(), ".10g")
    return checked
