"""`fedlap server`: a SuperLink with TLS that lets in the members of one study, and nobody else."""

import os
import secrets
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from fedlap import files
from fedlap.errors import ConfigError
from fedlap.flower.environment import prepare
from fedlap.flower.erasure import empty_log, erase_messages, ignore_signals, overwrite_deleted
from fedlap.flower.keyring import Keyring, public_keys
from fedlap.study.agreement.contract import CommonStudy
from fedlap.study.agreement.keys import LOOPBACK, canonical, certified_hosts, check_private, write_new

if TYPE_CHECKING:  # Flower is imported once `prepare` has set it up
    from flwr.supercore.control import ControlHttpClient

    from fedlap.flower.door import Door

SECRET, HOST, DATABASE = "secret", "host", "superlink.db"
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # to listen at all addresses, and the one of this machine itself
START = 120  # seconds until the SuperLink must answer on a slow machine
KEEP = 1.0  # seconds between two looks at what is to be done


def state_folder(study: CommonStudy) -> Path:
    """Where the server keeps its secret and Flower's database."""
    return study.folder / "state" / "server"


def private_folder(study: CommonStudy) -> Path:
    """The server's folder, there and closed to every other account: what the members send lies in it."""
    folder = state_folder(study)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)  # one that was there before keeps its mode, so making it is not enough
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made a folder of this account alone ({error.strerror})") from error
    return folder


def secret(study: CommonStudy) -> str:
    """The coordinator's secret, made on the first start; readable by this account only."""
    path = private_folder(study) / SECRET
    if not path.exists():
        write_new(path, secrets.token_hex(32).encode(), private=True)
    return check_private(path).read_text()


def where_to_listen(host: str) -> str:
    """The address to listen at so that members reach this host: loopback if it is this machine, else all addresses."""
    host = canonical(host)
    version_six = ":" in host
    if host in LOOPBACK:
        return "::1" if version_six else "127.0.0.1"
    return "::" if version_six else "0.0.0.0"


def local_address(study: CommonStudy) -> str:
    """Where the coordinator, on the server itself, reaches it: `serve` notes at which host it listens."""
    path = state_folder(study) / HOST
    host = path.read_text() if path.exists() else "127.0.0.1"
    return f"[{host}]:{study.port}" if ":" in host else f"{host}:{study.port}"


def check_certificate(study: CommonStudy, bind: str) -> None:
    """Refuse a certificate that the members, or the coordinator here, would not believe; the cure is one command."""
    hosts, command = certified_hosts(study.folder), f"fedlap study certificate {study.path}"
    further = EVERYWHERE.get(bind, bind)
    for host, purpose, cure in (
        (study.host, "the host of [network] address", command),
        (further, "where the server is to listen", f"{command} --host {further}"),
    ):
        if canonical(host) not in hosts:
            raise ConfigError(
                f"{study.folder / 'server.pem'}: a certificate for {', '.join(hosts)}; expected one for {host}, "
                f"{purpose}: run  {cure}"
            )


def _check_port(host: str, number: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {host}, port {number} ({error.strerror}); is this study's server running already? "
                "else choose another port in [network] of study.toml"
            ) from error


def serve(study: CommonStudy, bind: str, ready: Callable[[], None], tell: Callable[[str], None]) -> None:
    """Run until stopped; `ready` is called once all members are registered, `tell` when somebody's key has changed."""
    os.umask(0o077)  # SQLite makes its files with the mode it is given, and the members' replies are in them
    folder = private_folder(study)
    prepare(folder / "flower")
    key = check_private(study.folder / "server.key")
    check_certificate(study, bind)
    shared_secret = secret(study)
    _check_port(bind, study.port)
    files.write(folder / HOST, EVERYWHERE.get(bind, bind))
    keys = public_keys(study)  # before anything listens: a key that is missing is an error, not a member left out
    database = folder / DATABASE
    erase_messages(database, keys)  # what a power cut has left
    overwrite_deleted()
    import uvicorn
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    from fedlap.flower.door import Door
    from fedlap.flower.gate import Gate

    door, keyring = Door(), Keyring(study, tell)
    rules = {"secret": shared_secret, "keyring": keyring, "door": door, "tell": tell}
    extensions.get_middleware = lambda: (Middleware(Gate, **rules),)
    uvicorn.run = door.listen  # which Flower calls to serve its application
    sys.argv = [
        "flower-superlink",
        *("--ssl-ca-certfile", str(study.folder / "ca.crt")),
        *("--ssl-certfile", str(study.folder / "server.pem")),
        *("--ssl-keyfile", str(key)),
        *("--host", bind),
        *("--port", str(study.port)),
        *("--database", str(database)),
        *("--isolation", "process"),  # no code that arrives over the network is started by the SuperLink
        *("--superexec-auth-secret-file", str(folder / SECRET)),
        "--enable-supernode-auth",
    ]
    keeper = _Keeper(study, shared_secret, door, database, tell)
    threading.Thread(target=keeper.keep, args=(ready,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its default would end this process before the last line
    try:
        flower_superlink()
    finally:
        ignore_signals()
        keeper.over.set()
        erase_messages(database)


class _Keeper:
    """What is to be done while the server runs: let in who has a new key, and leave nothing behind of what is over."""

    def __init__(
        self, study: CommonStudy, shared_secret: str, door: "Door", database: Path, tell: Callable[[str], None]
    ) -> None:
        self.study, self.secret, self.door, self.database, self.tell = study, shared_secret, door, database, tell
        self.keyring, self.over = Keyring(study), threading.Event()
        self.cleaned, self.said = set[int](), set[str]()

    def keep(self, ready: Callable[[], None]) -> None:
        """Register the members once the SuperLink answers; end the process if it does not refuse strangers."""
        from fedlap.flower.link import control_client

        try:
            check_gate(self.study, START)
            if self.door.app is None:
                raise ConfigError("the SuperLink listens without fedlap's limits on connections")
        except ConfigError as error:
            print(f"error: {error}; stopping", file=sys.stderr, flush=True)
            os._exit(2)
        with closing(control_client(self.study, self.secret)) as client:
            registered = self.keyring.names()
            let_in(client, registered)
            ready()
            while not self.over.wait(KEEP):
                try:
                    if (keys := self.keyring.names()) != registered:
                        let_in(client, keys)
                        registered = keys
                    self._tidy()
                except Exception as error:  # on a busy machine Flower's database may be locked for a while
                    self._say_once(f"could not yet tidy up ({type(error).__name__}); trying again every second")

    def _say_once(self, line: str) -> None:
        if line not in self.said:
            self.tell(line)
        self.said.add(line)

    def _tidy(self) -> None:
        """Delete what ended runs have left, and empty the database's log, in which deleted replies still stand."""
        from flwr.common.constant import Status

        state = self.door.app.state.linkstate_factory.state()
        for run in state.get_run_info(statuses=[Status.FINISHED]):
            if run.run_id not in self.cleaned:
                state.cleanup_run(run.run_id)
                self.cleaned.add(run.run_id)
        log = self.database.with_name(f"{self.database.name}-wal")
        if log.exists() and log.stat().st_size:
            with closing(sqlite3.connect(self.database, timeout=KEEP)) as connection:
                empty_log(connection)


def let_in(client: "ControlHttpClient", keys: dict[bytes, str]) -> None:
    """Register with Flower the keys that it does not know. Whom the gate refuses, Flower is never asked about."""
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest

    known = {node.public_key for node in client.ListNodes(ListNodesRequest()).nodes_info}
    for key, name in keys.items():
        if key not in known:
            client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))


def check_gate(study: CommonStudy, seconds: float) -> None:
    """Raise should the gate not be there, for then anyone could register a key, or nobody answer for so long."""
    import httpx
    from flwr.proto.control_pb2 import ListRunsRequest

    from fedlap.flower.link import control_client

    status, end = None, time.monotonic() + seconds
    with closing(control_client(study, "not the secret")) as client:
        while status is None:
            try:
                client.ListRuns(ListRunsRequest())
                status = 200
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
            except httpx.TransportError as error:  # not yet listening
                if time.monotonic() > end:
                    raise ConfigError(
                        f"the server does not answer at {local_address(study)} after {seconds:.0f} s ({error})"
                    ) from error
                time.sleep(0.1)
    if status != 403:
        raise ConfigError(f"the SuperLink answers strangers (status {status})")
