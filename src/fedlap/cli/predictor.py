"""`fedlap fit --model`: a model that predicts, by FedLap-Cov on the files of several sites."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from fedlap.documents import parse_toml
from fedlap.errors import ConfigError, DataError
from fedlap.files import write
from fedlap.study.agreement.contract import TABLE_MODELS, resolve
from fedlap.study.agreement.draft import draft_columns, draft_union, read_cells
from fedlap.study.agreement.policy import OWN_FILES
from fedlap.study.agreement.template import study_text
from fedlap.study.model import save_outcome
from fedlap.study.protocol.coordinator import Coordinator
from fedlap.study.protocol.inquiry import Event
from fedlap.study.protocol.messages import Reply, Request
from fedlap.study.protocol.site import Site
from fedlap.study.table.columns import Target

HIDDEN = (20,)  # units of an mlp's layer


class InProcess:
    """A transport to sites in this process."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites = sites

    def exchange(
        self, requests: dict[str, Request], seconds: float, resend: float
    ) -> Iterator[tuple[str, Reply | DataError]]:
        """Every site's reply, in turn."""
        for name, request in requests.items():
            yield name, self.sites[name].answer(request)


def fit_predictor(files: Sequence[Path], target: str, model: str, folder: Path, unfinished: Path) -> None:
    """Draft the study of all files, run it here, and write the model's folder and the study's file."""
    if model not in TABLE_MODELS:
        raise ConfigError(f"--model {model}: expected {' or '.join(TABLE_MODELS)}")
    paths = {path.stem: path for path in files}
    if len(paths) < len(files) or len(files) < 2:
        raise ConfigError("expected two files or more, a site each, with different names")
    text = _drafted(paths, target, model, folder.resolve().name)
    write(unfinished / "study.toml", text)
    study = resolve(parse_toml(text, "the drafted study"), folder / "study.toml")
    typer.echo(f"{study.name}: {len(study.columns)} columns, {len(study.members)} sites, {study.rounds} rounds")
    with tempfile.TemporaryDirectory(prefix="fedlap-fit-") as state:
        sites = {name: Site.of(study, name, path, Path(state) / name, rules=OWN_FILES) for name, path in paths.items()}
        outcome = Coordinator.of(study, InProcess(sites), Path(state) / "server", _tell).run()
    save_outcome(unfinished / "model", study, outcome)
    last = outcome.history[-1]
    typer.echo(f"After {last.round} rounds, on the rows held back: {last.score}")
    typer.echo(f"Written: {folder}/model/ (read its report.html), study.toml")
    typer.echo(f"Predict with it: fedlap predict {folder / 'model'} FILE.csv")


def _tell(event: Event) -> None:
    if event.kind in ("round", "refused"):
        typer.echo(f"{event.step}: {event.note}")


def _drafted(paths: dict[str, Path], target: str, model: str, name: str) -> str:
    """The text of a study of all files; columns of the first one that are text are ignored, and so are further ones."""
    cells = {name: read_cells(path) for name, path in paths.items()}
    first = next(iter(paths.values()))
    columns, _, ignored = draft_columns(first, target)
    classes = sorted({text for each in cells.values() for text in each.columns.get(target, ()) if text})
    wanted = draft_union(cells, [column.name for column in columns])
    others = {name for each in cells.values() for name in each.columns} - {column.name for column in wanted} - {target}
    missing = any(not text for each in cells.values() for text in each.columns.get(target, ()))
    return study_text(
        name,
        list(paths),
        wanted,
        Target(target, tuple(classes), "drop" if missing else "refuse"),
        ignored=sorted({*ignored, *others}),
        drafted=True,
        model={"name": "mlp", "hidden": list(HIDDEN)} if model == "mlp" else None,
    )
