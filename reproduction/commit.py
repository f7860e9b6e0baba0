"""Which code made a result: the version, and the commit of the clone."""

import functools
import subprocess
from pathlib import Path

import fedlap

CLONE = Path(__file__).parents[1]


@functools.cache
def version(clone: Path = CLONE) -> str:
    """The version of fedlap with the commit of the clone, `.changed` if src/ has changes that are not committed.

    Two results of one version may be of different code.
    """

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", clone, *arguments], capture_output=True, text=True, timeout=30)

    if not (clone / ".git").exists():
        return fedlap.__version__
    try:
        commit = git("rev-parse", "--short=10", "HEAD").stdout.strip()
        changed = git("diff", "--quiet", "HEAD", "--", "src").returncode
    except (OSError, subprocess.TimeoutExpired):
        return fedlap.__version__
    return f"{fedlap.__version__}+{commit}{'.changed' if changed else ''}" if commit else fedlap.__version__
