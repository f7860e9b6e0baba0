"""How Flower is set up before it is imported: offline, quiet, in a folder of ours, and by nobody else.

Flower reads its environment when it is imported, so `prepare` comes first in every process that uses it.
"""

import importlib
import logging
import os
import warnings
from importlib import metadata
from pathlib import Path

from fedlap import files
from fedlap.errors import ConfigError

VERSIONS = ((1, 41), (1, 43))  # tested from the first up to, not including, the second
ANY_VERSION = "FEDLAP_ANY_FLOWER"  # for tools/flower_canary.py: 1 lets a version pass that was never tested
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

SERVER_POLL = 0.1  # seconds between two questions of the coordinator whether there is a reply


def prepare(home: str | Path) -> None:
    """Environment, version check, and of Flower's own log the errors alone."""
    home = Path(home)
    with files.writing(home):
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = {**SETTINGS, "FLWR_HOME": str(home.resolve())}
    _forget_others(settings)
    os.environ.update(settings)
    _check_version()
    logger = importlib.import_module("flwr.supercore").log.__self__
    logger.setLevel(logging.ERROR)


def _forget_others(settings: dict[str, str]) -> None:
    """Take Flower's variables out of the environment: some open further ports, others switch its logins on or off."""
    found = sorted(name for name in os.environ if name.startswith("FLWR_"))
    for name in found:
        del os.environ[name]
    if others := [name for name in found if name not in settings]:
        warnings.warn(f"{', '.join(others)}: set in the environment, and of no effect here", stacklevel=3)


def _check_version() -> None:
    found = _version("flwr") or _version("flwr-nightly")
    if not found:
        raise ConfigError(
            'the network needs the package flwr, which is not installed here: pip install "fedlap[flower]"'
        )
    number = tuple(int(part) for part in found.split(".")[:2])
    if VERSIONS[0] <= number < VERSIONS[1] or os.environ.get(ANY_VERSION) == "1":
        return
    raise ConfigError(f'flwr {found} is installed; expected 1.41 or 1.42: pip install "fedlap[flower]"')


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
