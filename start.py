"""Set fedlap up in this folder and run it: needs Python 3.11 or newer and nothing else.

    python3 start.py fit           a regression over the four hospitals, and its report (or: fit FILE … --formula …)
    python3 start.py run           train every algorithm on the four hospitals (or: run SPEC.toml …)
    python3 start.py test          run the tests
    python3 start.py study demo    a real federation of four hospitals on this machine
    python3 start.py reproduction table 1    the paper's tables, ours beside theirs

The first use makes an environment in .venv; later uses find it there.
"""

import os
import signal
import sys


def stop(*_):
    """Ctrl-C: one line, and nothing is waited for."""
    os.write(2, b"Interrupted; the same command begins where this stopped.\n")
    os._exit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, stop)  # before what takes longer to import

import hashlib  # noqa: E402
import subprocess  # noqa: E402
import venv  # noqa: E402
from pathlib import Path  # noqa: E402

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE / ".venv"
BIN = ENVIRONMENT / ("Scripts" if os.name == "nt" else "bin")

COVERAGE = ("--cov=fedlap", "--cov-report=")  # how much of the package all tests run: a line at the end
NETWORK = ("study", "server", "node", "predict")  # commands that need the extra for real federations


def install(extra):
    """Install the package as it lies here, unless this very pyproject.toml is installed already."""
    wanted = hashlib.sha256((HERE / "pyproject.toml").read_bytes()).hexdigest() + extra
    mark = ENVIRONMENT / f"installed{extra or '-run'}"
    if mark.exists() and mark.read_text() == wanted:
        return
    print(f"Setting up {ENVIRONMENT} (a minute or two, once) …", flush=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which ends the processes begun here, too
    try:
        # pip comes last into a new environment: without it, making one was cut short, and is done again.
        if not (BIN / ("pip.exe" if os.name == "nt" else "pip")).exists():
            venv.create(ENVIRONMENT, with_pip=True)
    except (subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"{ENVIRONMENT}: cannot be made ({error}); on Debian and Ubuntu: apt install python3-venv")
    pip = [str(BIN / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, "--editable", f"{HERE}{extra}"]).returncode:
        sys.exit("pip could not install what fedlap needs, see above; the same command tries again")
    mark.write_text(wanted)


def become(*command, cwd=None):
    """Hand this process over to a command: its exit code is ours, and Ctrl-C reaches it alone."""
    if os.name == "nt":  # where a process cannot become another
        sys.exit(subprocess.run(command, cwd=cwd).returncode)
    os.chdir(cwd or ".")
    os.execv(command[0], command)


def main():
    if sys.version_info < (3, 11):  # noqa: UP036 (this file is what an older Python runs first)
        sys.exit(f"fedlap needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    command, *rest = sys.argv[1:] or ["help"]
    if command == "test":
        install("[dev]")
        become(str(BIN / "python"), "-m", "pytest", *(rest or COVERAGE), cwd=HERE)
    if command == "reproduction":
        install("[plots]")
        become(str(BIN / "python"), "-m", "reproduction", *rest, cwd=HERE)
    if command in ("help", "-h", "--help"):
        sys.exit(__doc__)
    if command == "fit" and "--model" not in rest:
        install("[stats]")
    else:
        install("[flower,stats]" if command in (*NETWORK, "fit") else "[plots]")
    become(str(BIN / "python"), "-m", "fedlap", command, *rest)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        stop()
