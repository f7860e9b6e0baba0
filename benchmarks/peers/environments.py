"""An environment for each peer, made once by venv and pip from the pins in `requirements/`."""

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent


def default_folder() -> Path:
    return Path.home() / ".cache" / "fedlap-peers"


def interpreter(peer: str, folder: Path) -> Path:
    """The Python of a peer's environment, which is made if it is not there or was made from other pins."""
    pins = HERE / "requirements" / f"{peer}.txt"
    home, digest = folder / peer, hashlib.sha256(pins.read_bytes()).hexdigest()
    python, made = home / "bin" / "python", home / "made-from"
    if not made.exists() or made.read_text() != digest:
        print(f"making an environment for {peer}, in {home}", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--requirement", pins], check=True)
        made.write_text(digest)
    return python


def versions(python: Path, packages: list[str]) -> dict[str, str]:
    """What is installed there."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    printed = subprocess.run([python, "-c", code, *packages], check=True, capture_output=True, text=True).stdout
    return dict(zip(packages, printed.split(), strict=True))
