"""Try fedlap's network with a Flower that it was never tested with, before its users do.

    python tools/flower_canary.py                     the nightly
    python tools/flower_canary.py flwr==1.42.0        a version
    python tools/flower_canary.py --keep FOLDER       keep the environment, and use it again

It makes an environment of its own with that Flower and this clone, runs `fedlap study demo` in it, and says what has
happened. The exit code is 0 if the network ended in the simulation's bits, 1 if it did not, and 2 if that Flower could
not be installed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
NIGHTLY = "flwr-nightly>=1.41.0.dev0"  # pip takes a development version if one is named
NAME = "from flwr.supercore.version import package_name, package_version as v; print(package_name, v)"
NEEDED = """
from importlib.metadata import requires
from flwr.supercore.version import package_name
print("\\n".join(each for each in requires(package_name) if "extra ==" not in each))
"""
DEMO = ("study", "demo", "--rounds", "2")
PATIENCE = 900  # seconds for the demo on a slow machine
SAME, DIFFERENT, NOT_INSTALLED = 0, 1, 2


class NotInstalled(Exception):
    """What was asked for cannot be had here; the message says why."""


def environment(folder: Path, flower: str) -> Path:
    """A new environment with this clone and that Flower in it; its Python.

    That Flower comes last and alone: asked for all at once, pip would settle for an older one that fits.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip(python, "uninstall", "--yes", "flwr", "flwr-nightly")
    pip(python, "install", "--editable", f"{HERE}[flower]")
    pip(python, "uninstall", "--yes", "flwr")
    pip(python, "install", "--no-deps", flower)
    needed = output(python, NEEDED).splitlines()
    try:
        pip(python, "install", *needed)
    except NotInstalled:
        for each in needed:
            try:
                pip(python, "install", each)
            except NotInstalled:
                print(f"it needs {each}, which is not to be had here; going on without", flush=True)
    return python


def pip(python: Path, *words: str) -> None:
    """Run pip, whose error is the last that it said."""
    quiet = ("--quiet", "--disable-pip-version-check")
    done = subprocess.run([python, "-m", "pip", *words, *quiet], capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(done.stderr or done.stdout)


def output(python: Path, code: str) -> str:
    """What a few lines print in an environment."""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(done.stderr)
    return done.stdout.strip()


def last_line(said: object) -> str:
    """The last line of a text that says anything."""
    return next((line for line in reversed(str(said).splitlines()) if line.strip()), "nothing was said")


def tried(python: Path) -> tuple[int, str]:
    """The demo's exit code and all that it said."""
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    command = [python, "-m", "fedlap", *DEMO]
    try:
        done = subprocess.run(
            command,
            env={**variables, "FEDLAP_ANY_FLOWER": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
        return DIFFERENT, f"{said.decode(errors='replace')}\nnot over after {PATIENCE} s"
    return done.returncode, done.stdout + done.stderr


def canary(folder: Path, flower: str) -> int:
    """Install, try, say what has happened, and return the exit code."""
    print(f"{flower}: setting up {folder} (some minutes, the first time) …", flush=True)
    try:
        python = environment(folder, flower)
        name = output(python, NAME)
    except NotInstalled as error:
        print(f"{flower} could not be installed: {last_line(error)}")
        return NOT_INSTALLED
    print(f"{name}: running  fedlap {' '.join(DEMO)}", flush=True)
    code, said = tried(python)
    print("".join(f"    {line}\n" for line in said.splitlines()), end="")
    if code == 0 and "identical, bit for bit" in said:
        print(f"{name}: the network works, and ends in the simulation's bits")
        return SAME
    print(f"{name}: the network does NOT work: {last_line(said)}")
    return DIFFERENT


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flower", nargs="?", default=NIGHTLY, help="what pip is to install")
    parser.add_argument("--keep", type=Path, help="a folder for the environment")
    asked = parser.parse_args()
    if asked.keep:
        return canary(asked.keep.resolve(), asked.flower)
    with tempfile.TemporaryDirectory(prefix="fedlap-canary-") as folder:
        return canary(Path(folder), asked.flower)


if __name__ == "__main__":
    sys.exit(main())
