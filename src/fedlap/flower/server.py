"""`fedlap server`: a SuperLink with TLS that lets in the members of one study, and nobody else."""

import os
import secrets
import socket
import sys
import threading
import time
from contextlib import closing

from ..errors import ConfigError
from ..study.keys import check_private
from .environment import prepare

SECRET, DATABASE = "secret", "superlink.db"


def state_folder(study):
    """Where the server keeps its secret and Flower's database."""
    return study.folder / "state" / "server"


def secret(study):
    """The coordinator's secret, made on the first start; readable by this account only."""
    path = state_folder(study) / SECRET
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    return check_private(path).read_text()


def public_keys(study):
    """The members' names by their public keys, in Flower's form."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    keys = {}
    for member in study.members:
        try:
            keys[public_key_to_bytes(load_ssh_public_key(member.public_key.read_bytes()))] = member.name
        except (OSError, ValueError) as error:
            raise ConfigError(f"{member.public_key}: expected the public key of {member.name} ({error})") from error
    if len(keys) < len(study.members):
        raise ConfigError(f"{study.folder / 'members'}: two members have the same key; expected one of their own each")
    return keys


def port(study):
    return int(study.address.rpartition(":")[2])


def _check_port(host, number):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {host}, port {number} ({error.strerror}); is this study's server running already? "
                "else choose another port in [network] of study.toml"
            ) from error


def serve(study, host, ready):
    """Run until stopped; `ready` is called once all members are registered."""
    prepare(state_folder(study) / "flower")
    key = check_private(study.folder / "server.key")
    words = secret(study)
    _check_port(host, port(study))
    public_keys(study)  # before anything listens: a key that is missing is an error, not a member left out
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    from .gate import Gate

    extensions.get_middleware = lambda: (Middleware(Gate, secret=words),)
    sys.argv = [
        "flower-superlink",
        *("--ssl-ca-certfile", str(study.folder / "ca.crt")),
        *("--ssl-certfile", str(study.folder / "server.pem")),
        *("--ssl-keyfile", str(key)),
        *("--host", host),
        *("--port", str(port(study))),
        *("--database", str(state_folder(study) / DATABASE)),
        *("--isolation", "process"),  # no code that arrives over the network is started by the SuperLink
        *("--superexec-auth-secret-file", str(state_folder(study) / SECRET)),
        "--enable-supernode-auth",
    ]
    threading.Thread(target=_register, args=(study, words, ready), daemon=True).start()
    flower_superlink()


def _register(study, words, ready):
    from .link import control_client

    _check_gate(study)
    with closing(control_client(study, words)) as client:
        let_in(client, public_keys(study))
    ready()


def let_in(client, keys):
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


def _check_gate(study):
    """End at once should the gate not be there: then anyone could register a key."""
    import httpx
    from flwr.proto.control_pb2 import ListRunsRequest

    from .link import control_client

    status = None
    with closing(control_client(study, "not the secret")) as client:
        while status is None:
            try:
                client.ListRuns(ListRunsRequest())
                status = 200
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
            except httpx.TransportError:  # not yet listening
                time.sleep(0.1)
    if status != 403:
        print(f"error: the SuperLink answers strangers (status {status}); stopping", file=sys.stderr)
        os._exit(2)
