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
from fedlap.study.agreement.contract import CommonStudy
from fedlap.study.agreement.keys import LOOPBACK, canonical, certified_hosts, check_private

if TYPE_CHECKING:  # Flower is imported once `prepare` has set it up
    from flwr.supercore.control import ControlHttpClient

SECRET, HOST, DATABASE = "secret", "host", "superlink.db"
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # to listen at all addresses, and the one of this machine itself
START = 120  # seconds until the SuperLink must answer on a slow machine


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
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    return check_private(path).read_text()


def public_keys(study: CommonStudy) -> dict[bytes, str]:
    """The members' names by their public keys, in Flower's form."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    keys = {}
    for member in study.members:
        try:
            key = load_ssh_public_key(member.public_key.read_bytes())
            if not isinstance(key, EllipticCurvePublicKey):
                raise ValueError("not an ECDSA key")
            keys[public_key_to_bytes(key)] = member.name
        except (OSError, ValueError) as error:
            raise ConfigError(f"{member.public_key}: expected the public key of {member.name} ({error})") from error
    if len(keys) < len(study.members):
        raise ConfigError(f"{study.folder / 'members'}: two members have the same key; expected one of their own each")
    return keys


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


def serve(study: CommonStudy, bind: str, ready: Callable[[], None]) -> None:
    """Run until stopped; `ready` is called once all members are registered."""
    os.umask(0o077)  # SQLite makes its files with the mode it is given, and the members' replies are in them
    folder = private_folder(study)
    prepare(folder / "flower")
    key = check_private(study.folder / "server.key")
    check_certificate(study, bind)
    shared_secret = secret(study)
    _check_port(bind, study.port)
    files.write(folder / HOST, EVERYWHERE.get(bind, bind))
    public_keys(study)  # before anything listens: a key that is missing is an error, not a member left out
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    from fedlap.flower.gate import Gate

    extensions.get_middleware = lambda: (Middleware(Gate, secret=shared_secret),)
    sys.argv = [
        "flower-superlink",
        *("--ssl-ca-certfile", str(study.folder / "ca.crt")),
        *("--ssl-certfile", str(study.folder / "server.pem")),
        *("--ssl-keyfile", str(key)),
        *("--host", bind),
        *("--port", str(study.port)),
        *("--database", str(folder / DATABASE)),
        *("--isolation", "process"),  # no code that arrives over the network is started by the SuperLink
        *("--superexec-auth-secret-file", str(folder / SECRET)),
        "--enable-supernode-auth",
    ]
    threading.Thread(target=_register, args=(study, shared_secret, ready), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its default would end this process before the last line
    try:
        flower_superlink()
    finally:
        erase_messages(folder / DATABASE)


def erase_messages(database: Path) -> None:
    """Write a database of Flower's anew: of the messages it has deleted, its log and its free pages keep every byte.

    It is not deleted, for it also knows the nodes: one that was left running would not be let in again, and end.
    """
    if not database.exists():
        return
    try:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("VACUUM")
            (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("another program reads it")
    except sqlite3.Error as error:
        raise ConfigError(
            f"{database}: still holds what members have sent ({error}); start and stop the server again to erase it"
        ) from error


def _register(study: CommonStudy, shared_secret: str, ready: Callable[[], None]) -> None:
    """Register the members' keys once the SuperLink answers; end the process if it does not refuse strangers."""
    from fedlap.flower.link import control_client

    try:
        check_gate(study, START)
    except ConfigError as error:
        print(f"error: {error}; stopping", file=sys.stderr, flush=True)
        os._exit(2)
    with closing(control_client(study, shared_secret)) as client:
        let_in(client, public_keys(study))
    ready()


def let_in(client: "ControlHttpClient", keys: dict[bytes, str]) -> None:
    """Make the keys that Flower's database knows those of the members: a key that was replaced is let in no more."""
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest

    known = {}
    for node in client.ListNodes(ListNodesRequest()).nodes_info:
        if node.public_key in keys:
            known[node.public_key] = node
        elif not node.unregistered_at:
            client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
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
