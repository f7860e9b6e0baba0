"""Where fedlap keeps what it can make or fetch again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`fedlap` below the platform's cache folder."""
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "fedlap"
