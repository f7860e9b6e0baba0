"""What reads a user's files: a process that gives damaged ones to the commands, one at a time, within limits.

Its parent writes the number of a file, or a path to one kept before, on a line; it answers with a line of JSON.
"""

import contextlib
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import fuzz_files

SECONDS = 10.0  # of CPU for one file
MEMORY = 2**31  # bytes beyond what the process has when it begins
STUDY = """\
[study]
name = "small"
members = ["north", "south", "west"]
minimum_rows = 2
test_fraction = 0.2
ignored_columns = ["patient_id"]
[columns]
age = { kind = "number", unit = "years", minimum = 0, maximum = 120 }
dose = { kind = "number", unit = "mg", missing = "mean" }
ward = { kind = "category", categories = ["surgery", "medicine", "missing"], missing = "category" }
sex = { kind = "category", categories = ["female", "male"], missing = "drop" }
[target]
name = "outcome"
classes = ["well", "ill"]
missing = "drop"
[model]
name = "mlp"
hidden = [3]
[solver]
name = "adam"
epochs = 2
batch = 4
[algorithm]
name = "fedlap"
delta = 1.0
[network]
address = "127.0.0.1:9443"
quorum = 2
deadline = 30
retries = 3
"""
REGRESSION = """\
[study]
name = "dose"
members = ["north", "south", "west"]
minimum_rows = 2
ignored_columns = ["patient_id", "ward", "outcome"]
[columns]
age = { kind = "number", unit = "years", minimum = 0, maximum = 120 }
dose = { kind = "number", unit = "mg", missing = "drop" }
sex = { kind = "category", categories = ["female", "male"], missing = "drop" }
[regression]
formula = "dose ~ age + sex"
family = "gaussian"
prior_sd = 2.5
parameters_per_row = 0.5
robust = true
[network]
deadline = 30
"""
POLICY = """\
members = 3
columns = ["age", "dose", "ward", "sex", "outcome", "ill", "died"]
runs = 1
minimum_rows = 10
parameters_per_row = 0.1
metrics = true
"""
SPEC = """\
[federation]
dataset = "heart"
[model]
name = "mlp"
hidden = [5]
[solver]
name = "adam"
epochs = 2
batch = 8
learning_rate = 0.01
[train]
rounds = 3
seeds = [0, 1]
participation = 1.0
[algorithms]
fedlap = { delta = 1.0 }
fedavg = {}
[sweep]
validation = 0.2
finals = "winners"
[sweep.fedlap]
delta = [1.0, 0.1]
"""


class TooLong(BaseException):
    """A file that took more time than a file may."""


def fedlap(*words: object) -> None:
    """A command of fedlap, in this process."""
    import click

    from fedlap.cli.main import app

    if code := app([str(word) for word in words], standalone_mode=False):
        raise click.exceptions.Exit(code)


# Sound files ----------------------------------------------------------------------------------------------------------


def make_samples(folder: Path) -> None:
    """One sound file of each kind, and what the commands need beside it."""
    import numpy as np
    from pyarrow import csv, parquet

    from fedlap.study.protocol import audit, store
    from fedlap.study.protocol.messages import Reply, Request, encode

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        (folder / f"{name}.csv").write_text(_patients(rng))
    table = csv.read_csv(folder / "north.csv")
    parquet.write_table(table, folder / "north.parquet")
    for name, text in {
        "study": STUDY,
        "regression": REGRESSION,
        "spec": SPEC,
        "settings": STUDY,
        "policy": POLICY,
    }.items():
        (folder / f"{name}.toml").write_text(text)
    fedlap("study", "new", folder / "keys", "--from", folder / "study.toml")
    for name in ("server.pem", "server.key"):
        shutil.copy(folder / "keys" / name, folder / name)
    _make_models(folder)
    request = Request("train", "0" * 64, "run", 1, 0, {"a": np.ones((2, 3), np.float32), "b": np.arange(4)})
    (folder / "message.bin").write_bytes(encode(request))
    for _ in range(3):
        audit.append(folder / "audit.jsonl", "north", request, Reply("north", request.digest, "", {"rows": 3}, {}))
    owner = {"study": "0" * 64, "member": "north", "run": "run"}
    store.write(folder / "state.npz", {**owner, "data": "x"}, {"a": np.ones((5, 3), np.float32), "b": np.arange(9)})


def _patients(rng):
    lines = ["patient_id,age,dose,ward,sex,outcome"]
    for place in range(40):
        ward, sex = rng.choice(["surgery", "medicine", ""]), rng.choice(["female", "male"])
        dose = "" if rng.random() < 0.1 else f"{rng.normal(3):.2f}"
        lines.append(f"P{place},{rng.integers(20, 90)},{dose},{ward},{sex},{rng.choice(['well', 'ill'])}")
    return "\n".join(lines) + "\n"


def _make_models(folder):
    import jax
    import jax.numpy as jnp
    import numpy as np

    from fedlap.algebra.vector import Vector
    from fedlap.study import model
    from fedlap.study.agreement.contract import Study
    from fedlap.study.table import encoding

    study = Study.read(folder / "study.toml")
    inputs = jnp.zeros((1, len(encoding.features(study))))
    weights = Vector(study.method.make_model().init(jax.random.key(0), inputs, 2))
    pooled = encoding.Pooled(np.float64(8), np.array([8.0, 7.0]), np.array([50.0, 2.0]), np.array([10.0, 1.0]))
    model.save(folder / "model", study, pooled, weights, card={"rounds": 20})
    for name in ("model.safetensors", "card.json"):
        shutil.copy(folder / "model" / name, folder / name)
    files = (folder / "north.csv", folder / "south.csv")
    fedlap("fit", *files, "--formula", "dose ~ age + sex", "--output", folder / "fitted")
    shutil.copy(folder / "fitted" / "model" / "regression.json", folder / "regression.json")


# Readers: a damaged file takes the place of the sound one in a command ------------------------------------------------


def _check(samples, file, number):
    ways = (
        ("study", "check", samples / "study.toml", "--data", file, "--name", "north"),
        ("study", "check", samples / "regression.toml", "--data", file),
        ("study", "new", file.parent / "new", "--members", "north,south", "--columns-from", file),
        ("predict", samples / "model", file, "--output", file.parent / "predictions.csv"),
        ("predict", samples / "fitted" / "model", file, "--output", file.parent / "predictions.csv"),
        (
            "node",
            samples / "study.toml",
            "--name",
            "north",
            "--data",
            file,
            "--explain",
            "--state",
            file.parent / "state",
        ),
        ("fit", file, samples / "south.csv", "--formula", "dose ~ age + sex", "--output", file.parent / "fitted"),
    )
    fedlap(*ways[number % len(ways)])


def _study(samples, file, number):
    ways = (
        ("study", "check", file, "--data", samples / "north.csv", "--name", "north"),
        ("study", "check", file, "--data", samples / "north.csv"),
        (
            "node",
            file,
            "--name",
            "north",
            "--data",
            samples / "north.csv",
            "--explain",
            "--state",
            file.parent / "state",
        ),
        ("study", "new", file.parent / "new", "--from", file),
    )
    fedlap(*ways[number % len(ways)])


def _spec(samples, file, number):
    from fedlap.experiments import sweep

    sweep.read(file, [], []).narrow([])


def _settings(samples, file, number):
    from fedlap.settings import plain_value

    text = file.read_text(errors="replace")
    for line in text.splitlines()[:40]:
        plain_value(line.partition("=")[2])
    _study(samples, file, number)


def _policy(samples, file, number):
    from fedlap.study import SitePolicy

    SitePolicy.beside(file.parent / "patients.csv")


def _model(samples, file, number):
    """A model with a damaged file; half of the arrays are those that the card was written for."""
    folder = file.parent / "model"
    shutil.copytree(samples / "model", folder)
    shutil.copy(file, folder / file.name)
    if file.name == "model.safetensors" and number % 5:
        card = json.loads((folder / "card.json").read_text())
        card["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        (folder / "card.json").write_text(json.dumps(card))
    fedlap("predict", folder, samples / "south.csv", "--output", file.parent / "predictions.csv")


def _regression_model(samples, file, number):
    fedlap("predict", file.parent, samples / "south.csv", "--output", file.parent / "predictions.csv")


def _audit(samples, file, number):
    fedlap("study", "audit", file)


def _state(samples, file, number):
    from fedlap.study.protocol import store

    store.read(file)


def _message(samples, file, number):
    from fedlap.study.protocol.messages import Reply, Request, decode

    decode(file.read_bytes(), Reply if number % 4 == 3 else Request)


def _keys(samples, file, number):
    folder = file.parent / "keys"
    shutil.copytree(samples / "keys", folder)
    names = ("server.pem", "ca.crt") if file.suffix == ".pem" else ("server.key", "ca.key")
    shutil.copy(file, folder / names[number % 2])
    os.chmod(folder / names[number % 2], 0o600)
    if file.suffix == ".pem" and number % 4 == 0:
        from fedlap.study.agreement.keys import certified_hosts

        certified_hosts(folder)
    fedlap("study", "certificate", folder)


READERS: dict[str, Callable[[Path, Path, int], None]] = {
    **dict.fromkeys(("csv", "parquet"), _check),
    **dict.fromkeys(("study", "regression"), _study),
    "spec": _spec,
    "settings": _settings,
    "policy": _policy,
    **dict.fromkeys(("safetensors", "card"), _model),
    "regression_card": _regression_model,
    "audit": _audit,
    "state": _state,
    "message": _message,
    **dict.fromkeys(("certificate", "key"), _keys),
}


# The process ----------------------------------------------------------------------------------------------------------


def outcome(samples: Path, kind: str, file: Path, number: int) -> dict[str, str]:
    """What a reader makes of a file: fine, words, traceback, too long or too large, with the words."""
    import click

    from fedlap.errors import FedlapError

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), limited():
            READERS[kind](samples, file, number)
    except (FedlapError, OSError) as error:  # what the command line says in a line
        return {"outcome": "words", "said": str(error)}
    except click.exceptions.Exit as error:
        return {"outcome": "words" if error.exit_code else "fine", "said": said.getvalue()}
    except TooLong:
        return {"outcome": "too long", "said": traceback.format_exc(limit=-4)}
    except MemoryError:
        return {"outcome": "too large", "said": traceback.format_exc(limit=-4)}
    except BaseException:
        return {"outcome": "traceback", "said": traceback.format_exc(limit=-6)}
    return {"outcome": "fine", "said": ""}


@contextlib.contextmanager
def limited():
    """Limits of CPU: an exception where Python runs, the end of the process where a library does not come back."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + 3 * SECONDS) + 1, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_long(signal_number, frame):
    raise TooLong


def read_one(samples: Path, scratch: Path, word: str, seed: int) -> dict[str, str]:
    """The outcome of the file of a number, or of one that was kept, whose name begins with its kind and its number."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    if word.isdigit():
        number = int(word)
        kind, content = fuzz_files.damaged(samples, seed, number)
    else:
        kind, number, content = (
            Path(word).name.split("-")[0],
            int(Path(word).name.split("-")[1]),
            Path(word).read_bytes(),
        )
    file = scratch / fuzz_files.KINDS[kind].sound
    file.write_bytes(content)
    return {"kind": kind, "file": str(file), **outcome(samples, kind, file, number)}


def main(samples: Path, scratch: Path, seed: int) -> None:
    """Read what standard input names."""
    import warnings

    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGPROF, _too_long)
    if not samples.exists():
        with contextlib.redirect_stdout(io.StringIO()):
            make_samples(samples)
    for kind in fuzz_files.KINDS.values():  # what is slow the first time is no fault of a file
        name = next(name for name, each in fuzz_files.KINDS.items() if each is kind)
        for number in range(7 if name in ("csv", "study") else 1):
            found = _sound(samples, scratch, name, number)
            if found["outcome"] != "fine":
                raise SystemExit(f"the sound file {kind.sound}, {number}: {found}")
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(read_one(samples, scratch, line.strip(), seed)), file=answers, flush=True)


def _sound(samples, scratch, kind, number):
    kept = scratch.parent / f"{kind}-{number}-sound"
    shutil.copy(samples / fuzz_files.KINDS[kind].sound, kept)
    found = read_one(samples, scratch, str(kept), 0)
    kept.unlink()
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
