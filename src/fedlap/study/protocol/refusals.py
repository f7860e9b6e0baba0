"""Why a site does not answer: to the server one of a few fixed sentences, in the site's own log all of it.

An error names files, folders, rows and counts, which help whoever sits at the site and are nobody else's business.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from fedlap.errors import DataError


class Reason(StrEnum):
    """All that a refusal says on the network."""

    STUDY = "its study.toml is not the server's; expected the same at the server and at every member"
    UNREADABLE = "it cannot read the request"
    REQUEST = "it does not know such a request"
    CONSENT = "its study file does not let it share points"
    ARRAYS = "what the server sent is not what the study needs"
    SIZES = "the server's numbers of training rows cannot be right"
    BEGINNING = "the server changes what the run began with"
    DATA = "its data are not those that the run began with"
    LOST = "its state folder has nothing of this run"
    RESTORE = "its state folder has nothing of this run, and it asks for its state back"
    DAMAGED = "a file in its state folder cannot be used"
    GAP = "its state is not the one that this round continues from"
    DISK = "it cannot write to its own disk, which may be full or read-only; it goes on by itself once it can"
    VANISHED = "its state folder is not the one that it has used so far"
    LATE = "this round is over there"
    CHANGED = "it has answered another request under this number"
    BUDGET = "it has answered as many requests as one run may have"
    NOT_LOST = "nobody there has asked for a state back that is lost"
    POLICY = "its own policy does not allow this; its log names the rule"
    UNASKED = "its study file does not allow such a question"
    OTHER = "an error, of which its own log has the words"


class Refusal(DataError):
    """A request that a site does not answer: the reason is for the server, the message for the site's own log."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@contextmanager
def refusing(reason: Reason) -> Iterator[None]:
    """Whatever turns out to be wrong in here is told to the server as this reason and no more."""
    try:
        yield
    except DataError as error:
        raise Refusal(reason, str(error)) from error
