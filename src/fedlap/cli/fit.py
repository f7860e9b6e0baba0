"""`fedlap fit`: from files to a table of coefficients, a report, and the study file that runs the same on a network."""

import csv
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fedlap.cli.answer import AsJson, answering

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedlap.regression.design import SiteRows
    from fedlap.regression.report.assessment import Assessment, Unassessed
    from fedlap.study.agreement.draft import Cells
    from fedlap.study.agreement.regression import RegressionStudy
    from fedlap.study.protocol.regression.coordinator import RegressionOutcome
    from fedlap.study.table.columns import Column
    from fedlap.study.table.table import Checked

EXAMPLE = "diagnosis ~ age + sex + chest_pain + resting_blood_pressure + maximum_heart_rate + exercise_angina"
FEW = 10  # rows of a site: with fewer of them a real site would be refused
REPORT, COEFFICIENTS, STUDY = "report.html", "coefficients.csv", "study.toml"


class Asked(NamedTuple):
    """What is to be fitted, as the command line says it."""

    formula: str
    family: str | None
    duration: str | None
    success: str | None
    columns: dict[str, str | None]  # by their roles: weights, offset, exposure, trials
    ties: str | None
    prior_sd: float | None


def fit(
    files: Annotated[
        list[Path] | None, typer.Argument(help="A CSV or Parquet file a site; the four bundled hospitals if none.")
    ] = None,
    formula: Annotated[str | None, typer.Option(help='What to fit, such as "outcome ~ age + sex".')] = None,
    family: Annotated[
        str | None,
        typer.Option(help="gaussian, binomial, poisson, negative_binomial, gamma, multinomial or cox."),
    ] = None,
    site: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="One file: the column that names the site.")
    ] = None,
    duration: Annotated[str | None, typer.Option(metavar="COLUMN", help="With cox: the time to the event.")] = None,
    success: Annotated[str | None, typer.Option(metavar="VALUE", help="The outcome that counts as 1.")] = None,
    weights: Annotated[str | None, typer.Option(metavar="COLUMN", help="How many rows a row stands for.")] = None,
    offset: Annotated[str | None, typer.Option(metavar="COLUMN", help="A part of the predictor.")] = None,
    exposure: Annotated[str | None, typer.Option(metavar="COLUMN", help="Of counts: years, persons.")] = None,
    trials: Annotated[str | None, typer.Option(metavar="COLUMN", help="The outcome is so many of them.")] = None,
    ties: Annotated[str | None, typer.Option(help="With cox: efron or breslow.")] = None,
    prior_sd: Annotated[float | None, typer.Option(help="A normal prior on standardised columns; 2.5 is weak.")] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="With --model: what to predict.")] = None,
    model: Annotated[str | None, typer.Option(help="logistic or mlp: a model to predict, not a regression.")] = None,
    output: Annotated[Path | None, typer.Option(help="The folder to make; results/fit-TIME if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a regression to the files of several sites as if they were pooled; print it, and write a report."""
    from fedlap.errors import ConfigError
    from fedlap.files import new_folder

    folder = output or Path("results") / f"fit-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    asked = Asked(
        formula or "",
        family,
        duration,
        success,
        {"weights": weights, "offset": offset, "exposure": exposure, "trials": trials},
        ties,
        prior_sd,
    )
    with answering(as_json) as answer:
        if model is not None or target is not None:
            if formula is not None or family is not None or site is not None:
                raise ConfigError("--model and --target fit a model that predicts; leave out --formula and its options")
            if not files or model is None or target is None:
                raise ConfigError("a model that predicts needs a file a site, --model and --target")
            from fedlap.cli.predictor import fit_predictor

            with new_folder(folder) as unfinished:
                fit_predictor(files, target, model, folder, unfinished)
        elif files and formula is None:
            raise ConfigError('--formula is missing; expected what to fit, such as --formula "outcome ~ age + sex"')
        elif formula is not None and not files:
            raise ConfigError("no files; expected one a site, as in: fedlap fit north.csv south.csv --formula ...")
        else:
            with new_folder(folder) as unfinished:
                if not files:
                    files, asked = _example(unfinished), asked._replace(formula=EXAMPLE, success="ill")
                    typer.echo(f"The four bundled hospitals, as files in {folder / 'data'}")
                _fit(files, site, asked, folder, unfinished)
        answer({"folder": folder, "coefficients": _coefficients(folder / COEFFICIENTS)})


def _coefficients(file: Path) -> list[dict[str, Any]] | None:
    """The table of coefficients that was written, a row each; None of a model that predicts."""
    if not file.exists():
        return None
    with open(file, newline="", encoding="utf-8") as lines:
        return [{key: _read_cell(cell) for key, cell in row.items()} for row in csv.DictReader(lines)]


def _read_cell(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _example(folder: Path) -> list[Path]:
    from fedlap.study.agreement import example

    return list(example.example_files(folder / "data").values())


def _fit(files: "Sequence[Path]", site: str | None, asked: Asked, folder: Path, unfinished: Path) -> None:
    """Fit the files; what is to be in the folder is written to another, which takes its place at the end."""
    from fedlap.documents import parse_toml
    from fedlap.files import write
    from fedlap.study.agreement.draft import draft_union, read_cells
    from fedlap.study.agreement.regression import resolve_regression
    from fedlap.study.agreement.template import regression_text

    cells = _named(files, site, read_cells)
    settings = _settings(asked, cells)
    columns = draft_union(cells, _used(settings, site))
    members = _members(cells, site, columns)
    own = [column for column in columns if column.name != site]
    ignored = sorted({name for each in cells.values() for name in each.columns} - {column.name for column in own})
    text = regression_text(folder.resolve().name, members, own, settings, ignored=ignored, drafted=True)
    write(unfinished / STUDY, text)
    study = resolve_regression(parse_toml(text, "the drafted study"), folder / STUDY)
    checked = _checked(study, columns, cells, site)
    _carry_out(study, checked, folder, unfinished)


def _named(files: "Sequence[Path]", site: str | None, read: Any) -> "dict[str, Cells]":
    """Every file by the name of its site, which is that of the file."""
    from fedlap.errors import ConfigError

    if site is not None and len(files) > 1:
        raise ConfigError(f"--site {site} divides one file, and there are {len(files)}; leave it out, or join them")
    if site is None and len(files) < 2:
        raise ConfigError(f"{files[0]}: one file; expected one a site, or --site with the column that names the site")
    names = [path.stem for path in files]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(f"two files are named {name!r}, and sites are named by their files; rename one")
    return {name: read(path) for name, path in zip(names, files, strict=True)}


def _settings(asked: Asked, cells: "Mapping[str, Cells]") -> dict[str, Any]:
    """The section [regression]; what the outcome decides is said on the screen."""
    from fedlap.errors import ConfigError
    from fedlap.regression.formulas import parse

    settings: dict[str, Any] = {"formula": asked.formula, "prior_sd": asked.prior_sd, **asked.columns}
    if asked.family == "cox" or asked.duration is not None:
        if asked.family not in ("cox", None):
            raise ConfigError(f"--duration goes with --family cox, not with {asked.family}")
        left, tilde, right = asked.formula.partition("~")
        if not tilde or not left.strip() or asked.duration is None:
            raise ConfigError('a Cox regression needs --duration and the event, as in --formula "died ~ age"')
        event = left.strip()
        return {**settings, "formula": right.strip(), "duration": asked.duration, "event": event, "ties": asked.ties}
    if asked.ties is not None:
        raise ConfigError("--ties goes with --family cox")
    family = asked.family
    if family is None:
        outcome = parse(asked.formula).outcome
        family, why = _family(outcome, asked, cells)
        typer.echo(f"family: {family}, as {why}; --family names another")
    return {**settings, "family": family, "success": _value(asked.success, parse(asked.formula).outcome, cells)}


def _family(outcome: str | None, asked: Asked, cells: "Mapping[str, Cells]") -> tuple[str, str]:
    """The family that an outcome suggests, and why."""
    texts = {text for each in cells.values() for text in each.columns.get(outcome or "", ()) if text}
    if asked.columns["trials"] is not None or asked.success is not None or len(texts) == 2:
        return "binomial", f"{outcome} has two values" if len(texts) == 2 else "there are successes"
    try:
        _ = [float(text) for text in texts]
    except ValueError:
        return "multinomial", f"{outcome} has {len(texts)} different texts"
    return "gaussian", f"{outcome or 'the outcome'} is a number"


def _value(success: str | None, outcome: str | None, cells: "Mapping[str, Cells]") -> Any:
    """The success as the column holds it: a number where that is numbers."""
    texts = [text for each in cells.values() for text in each.columns.get(outcome or "", ()) if text]
    try:
        numbers = {float(text) for text in texts}
        return None if success is None else next((n for n in numbers if float(success) == n), success)
    except ValueError:
        return success


def _used(settings: dict[str, Any], site: str | None) -> list[str]:
    """The columns that are read: those of the formula and of the roles, and the one that names sites."""
    from fedlap.regression.formulas import parse

    parsed = parse(settings["formula"])
    roles = ("weights", "offset", "exposure", "trials", "duration", "event")
    named = [settings[role] for role in roles if settings.get(role) is not None]
    return list(dict.fromkeys([*parsed.left_needs, *parsed.right_needs, *named, *([site] if site else [])]))


def _members(cells: "Mapping[str, Cells]", site: str | None, columns: "Sequence[Column]") -> list[str]:
    if site is None:
        return list(cells)
    (only,) = cells.values()
    return sorted({text for text in only.columns[site] if text})


def _checked(
    study: "RegressionStudy", columns: "Sequence[Column]", cells: "Mapping[str, Cells]", site: str | None
) -> "dict[str, Checked]":
    """The rows of every site: each file is held to the study, whole, and all its problems are told at once."""
    import numpy as np

    from fedlap.study.table.table import check_rows

    if site is None:
        return {name: check_rows(study.columns, each.path, 1, study.ignored_columns) for name, each in cells.items()}
    (only,) = cells.values()
    ignored = [name for name in study.ignored_columns if name != site]
    whole = check_rows(columns, only.path, 1, ignored)
    column = next(each for each in columns if each.name == site)
    names = np.array(column.categories)[whole.values[site]] if column.kind == "category" else whole.values[site]
    texts = [name if isinstance(name, str) else f"{name:g}" for name in names.tolist()]
    return {member.name: whole.take(np.array([text == member.name for text in texts])) for member in study.members}


def _carry_out(study: "RegressionStudy", checked: "Mapping[str, Checked]", folder: Path, unfinished: Path) -> None:
    """Fit, print, and write the folder."""
    from fedlap.regression.glm import GlmModel
    from fedlap.regression.model import fit_here
    from fedlap.regression.report.assessment import hold_out
    from fedlap.regression.report.page import write_report
    from fedlap.study.protocol.regression.coordinator import RegressionOutcome
    from fedlap.study.results import save_regression

    rows = {name: _rows(study, name, each) for name, each in checked.items()}
    held = hold_out(study.model, rows) if isinstance(study.model, GlmModel) else None
    facts = _facts(study, checked, rows)
    found = fit_here(study.model, rows)
    summary = str(found.summary())
    typer.echo(f"\n{summary}\n")
    outcome = RegressionOutcome("fit", found, summary, found.llnull)
    save_regression(unfinished, study, outcome)
    write_report(found, unfinished / REPORT, title=f"Regression over {len(rows)} sites", facts=facts, assessment=held)
    _tell(study, checked, outcome, held, folder)


def _rows(study: "RegressionStudy", name: str, checked: "Checked") -> "SiteRows":
    frame = checked.frame(study.columns)
    rows = study.design.matrix(frame, where=name, numbers=checked.row_numbers)
    return rows._replace(kept=checked.row_numbers[rows.kept])


def _facts(
    study: "RegressionStudy", checked: "Mapping[str, Checked]", rows: "Mapping[str, SiteRows]"
) -> dict[str, Any]:
    """What the report says of sites, beyond what the fit knows."""
    sites = {}
    for name, each in checked.items():
        part = rows[name]
        outcome = part.event if part.event is not None else part.y
        facts: dict[str, float] = {"rows": len(part.x), "missing": len(each.dropped)}
        if part.event is not None:
            facts["events"] = float(part.event.sum())
        elif outcome is not None:
            facts["mean"] = float(outcome.mean())
        sites[name] = facts
    date = f"{datetime.datetime.now():%Y-%m-%d %H:%M}"
    return {"date": date, "study": study.name, "sites": sites, "digest": study.digest}


def _tell(
    study: "RegressionStudy",
    checked: "Mapping[str, Checked]",
    outcome: "RegressionOutcome",
    held: "Assessment | Unassessed | None",
    folder: Path,
) -> None:
    """What was written, what a network would refuse, and how to run the same there."""
    from fedlap.regression.report.assessment import Unassessed

    if isinstance(held, Unassessed):
        typer.echo(f"Not assessed on held-out rows: {held.reason}")
    for name, each in checked.items():
        if len(each) < FEW or len(each) * study.parameters_per_row < study.model.size:
            typer.echo(f"{name}: {len(each)} rows for {study.model.size} parameters; a network would refuse so few")
    if not outcome.fit.converged:
        typer.secho("NOT CONVERGED: do not use these numbers", fg="red", err=True)
    written = ", ".join([REPORT, COEFFICIENTS, "summary.txt", "rounds.jsonl", "model/", STUDY])
    typer.echo(f"Written: {folder}/{written}")
    typer.echo(f"The same over a real network: fedlap study new FOLDER --from {folder / STUDY}, and on as it says")
