"""`fedlap node`: a loop around a `Site`, in one process that holds the data and the compiled program.

It asks the SuperLink for a message, answers it and asks again. Nothing that a server sends is ever run.
"""

import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from fedlap.errors import ConfigError, DataError
from fedlap.flower.environment import prepare
from fedlap.study.agreement.contract import CommonStudy
from fedlap.study.agreement.keys import check_private
from fedlap.study.protocol.messages import Reply, Request
from fedlap.study.protocol.refusals import Reason
from fedlap.study.protocol.respondent import Respondent

if TYPE_CHECKING:  # Flower and its packages are imported once `prepare` has set them up
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from flwr.app import RecordDict

    from fedlap.flower.fleet import Fleet

# Seconds between two questions whether there is a message. Each costs the SuperLink some 7 ms (TLS, a P-384 signature,
# SQL), so a node asks the less often the more nodes there are; Flower's fixed 3 s suit a hundred.
POLL = (0.2, 0.03, 3.0)  # at least, for each member, at most
AGAIN = 3.0  # seconds until a node that is not heard asks again


class OutOfPatience(ConfigError):
    """A node was not heard for as long as its user would wait; the message is what was wrong last."""


class Trouble:
    """What keeps a node from its server: told once, waited for, and after so many seconds an error."""

    def __init__(self, address: str, patience: float, tell: Callable[[str], None]) -> None:
        self.address, self.patience, self.tell = address, patience, tell
        self.since: float | None = None
        self.told: str | None = "nothing yet"

    def wait(self, words: str) -> None:
        """Return when it is time to try again."""
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        if now - self.since >= self.patience:
            raise OutOfPatience(words)
        kind = re.sub(r"[0-9]+", "", words)  # a number may be another one at every attempt
        if kind != self.told:
            self.tell(f"{words}; trying again every {AGAIN:.0f} s")
        self.told = kind
        time.sleep(AGAIN)

    def over(self) -> None:
        """The server has answered."""
        if self.told:
            self.tell(f"connected to {self.address}")
        self.since = self.told = None


def serve(
    study: CommonStudy,
    site: Respondent,
    folder: Path,
    key: Path,
    tell: Callable[[str], None],
    patience: float = float("inf"),
) -> None:
    """Connect and answer until stopped. Whatever goes wrong is told once and tried again for so many seconds."""
    prepare(folder / "flower")
    private, authority = _private_key(key), _authority(study.folder / "ca.crt")
    connect = _connector(study.address, authority, private)
    trouble = Trouble(study.address, patience, tell)
    least, per_member, most = POLL
    poll = min(max(least, per_member * len(study.members)), most)
    while True:
        try:
            with closing(connect(trouble.wait)) as fleet:
                while True:
                    answered = answer_next(fleet, site)
                    trouble.over()
                    if not answered:
                        time.sleep(poll)
        except OutOfPatience:
            raise
        except Exception as error:  # a node must stay: what it cannot go on with it begins anew
            trouble.wait(_one_line(error))


def _connector(
    address: str, authority: bytes, key: "EllipticCurvePrivateKey"
) -> "Callable[[Callable[[str], None]], Fleet]":
    """How to be let in by the server."""
    from fedlap.flower.fleet import Fleet

    return lambda wait: Fleet(address, authority, key, wait)


def answer_next(fleet: "Fleet", site: Respondent) -> bool:
    """Answer the next message; whether there was one."""
    from fedlap.flower import wire
    from fedlap.flower.fleet import RunOver

    try:
        arrived = fleet.receive()
        if arrived is None:
            return False
        began = time.monotonic()
        content = wire.content(answer(site, arrived.content))
        fleet.reply(arrived.message, content, time.monotonic() - began)
    except RunOver:
        pass  # whoever asked has stopped, and asks again if he still wants to know
    return True


def _private_key(path: Path) -> "EllipticCurvePrivateKey":
    """The key by which the server knows this member."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    path = check_private(path)
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a file of your own") from error
    except TypeError as error:  # what cryptography raises where it misses a passphrase
        raise ConfigError(
            f"{path}: the key has a passphrase; expected a key without a passphrase: ssh-keygen -p -f {path} removes it"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: not a private key; expected the file that the coordinator gave you") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: not an ECDSA key; expected the file that the coordinator gave you")
    return key


def _authority(path: Path) -> bytes:
    """The certificate by which this member knows the server, as the bytes that Flower takes."""
    from cryptography.x509 import load_pem_x509_certificates

    try:
        content = path.read_bytes()
        load_pem_x509_certificates(content)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); expected the ca.crt that the coordinator gave you, in the "
            "folder of study.toml"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: not a certificate; expected the ca.crt that the coordinator gave you") from error
    return content


def answer(site: Respondent, records: "RecordDict") -> Reply:
    """The site's reply to what has arrived, whatever it is."""
    from fedlap.flower import wire

    try:
        request = wire.read(records, Request)
    except DataError as error:
        site.log(f"refused: {error}")
        return Reply(site.member, "", Reason.UNREADABLE.value)
    try:
        return site.answer(request)
    except Exception as error:  # a site must stay; what went wrong is for its own log, not for the network
        site.log(f"could not answer: {_one_line(error)}")
        return Reply(site.member, request.digest, Reason.OTHER.value)


def _one_line(error: Exception) -> str:
    """An error in one line; one that nobody foresaw says where it was raised, for whoever mends it."""
    from fedlap.flower.fleet import Refused

    words = " ".join(str(error).split())
    if isinstance(error, Refused):
        return words
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    place = f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {words}{place}"
