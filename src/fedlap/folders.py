"""Where fedlap keeps what it can make or fetch again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`fedlap` below the platform's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(base) / "fedlap"
