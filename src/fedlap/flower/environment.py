"""How Flower is set up before it is imported: offline, quiet, in a folder of ours, and with shorter waits.

Flower reads its environment when it is imported, so `prepare` comes first in every process that uses it.
"""

import importlib
import logging
import os
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from fedlap.errors import ConfigError

VERSIONS = ((1, 41), (1, 43))  # tested from the first up to, not including, the second
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

# Seconds between two questions whether there is a message. Each costs the SuperLink some 7 ms (TLS, a P-384 signature,
# SQL), so a node asks the less often the more nodes there are; Flower's fixed 3 s suit a hundred.
SERVER_POLL = 0.1
NODE_POLL = (0.2, 0.03, 3.0)  # at least, for each member, at most
HEARTBEAT = 10  # seconds, Flower's minimum: after two of them without a sign a killed node may come back; 30 otherwise
RETRY = 3  # seconds


def prepare(home: str | Path, level: int = logging.ERROR) -> None:
    """Environment, version check, and of Flower's own log only what is at this level."""
    home = Path(home)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.environ.update(SETTINGS, FLWR_HOME=str(home.resolve()))
    try:
        found = metadata.version("flwr")
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            'the network needs the package flwr, which is not installed here: pip install "fedlap[flower]"'
        ) from error
    number = tuple(int(part) for part in found.split(".")[:2])
    if not VERSIONS[0] <= number < VERSIONS[1]:
        raise ConfigError(f'flwr {found} is installed; expected 1.41 or 1.42: pip install "fedlap[flower]"')
    logger = importlib.import_module("flwr.supercore").log.__self__
    logger.setLevel(level)


class Refused(Exception):
    """The SuperLink would not let this node in."""


def shorten_node_waits(members: int) -> None:
    """Replace what Flower's SuperNode loop has no setting for, in this process only.

    - its idle wait of 3 s and its reply wait of 0.5 s (`time.sleep` in its main loop) are capped by NODE_POLL;
    - its heartbeat, which decides how long a killed node is locked out (code 2004), is HEARTBEAT instead of 30 s;
    - its longest wait between two attempts to reach a SuperLink that has gone is RETRY;
    - where it ends the process because the SuperLink does not answer or refuses, it raises `Refused` instead, so
      that `fedlap node` can wait and try again.
    """
    loop = _module("flwr.supernode.start_client_internal", "time", "start_client_internal")
    connection = _module("flwr.supernode.fleet_http_connection", "flwr_exit", "HEARTBEAT_DEFAULT_INTERVAL")
    heartbeat = _module("flwr.supercore.heartbeat", "HEARTBEAT_DEFAULT_INTERVAL")
    least, per_member, most = NODE_POLL
    poll = min(max(least, per_member * members), most)
    loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, poll)))
    connection.HEARTBEAT_DEFAULT_INTERVAL = heartbeat.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT

    def refuse(code: int, message: str | None = None, **_: object) -> NoReturn:
        raise Refused(message or f"Flower's exit code {code}")

    connection.flwr_exit = refuse
    _module("flwr.supercore.retry.http_retry", "MAX_RETRY_DELAY").MAX_RETRY_DELAY = RETRY


def _module(name: str, *attributes: str) -> Any:
    """A module of Flower whose attributes are to be replaced, if it still looks as it did when this was written."""
    module = importlib.import_module(name)
    missing = [attribute for attribute in attributes if not hasattr(module, attribute)]
    if missing:
        raise ConfigError(f"{name} of flwr {metadata.version('flwr')} has no {missing[0]}; expected flwr 1.41 or 1.42")
    return module
