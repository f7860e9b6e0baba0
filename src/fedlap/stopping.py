"""The end of work that has to stop, by Ctrl-C or because the disk is full: one line says how to go on.

A KeyboardInterrupt may be raised inside a destructor or a library's callback, where Python prints it and goes on, and
compiled code that is still at work can make the interpreter's own end a crash. So on the command line a thread waits
for the signal and ends the process as a kill would, which every file that fedlap writes survives.
"""

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fedlap.errors import DataError

INTERRUPTED = 130  # what a shell reports of a process that Ctrl-C ended
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room on the disk, in the account's share of it, in one file
SHOW_CURSOR = b"\x1b[?25h\n"  # a progress bar hides it

LATELY = 5.0  # seconds: what is older than that was written whole before Ctrl-C

_ways: list[str] = []  # how to go on, the innermost last
_sweepers: list[Callable[[float], None]] = []  # they remove what may be half written, so many seconds back
_critical = threading.Lock()  # held while something must not be left half done


def end_on_interrupt() -> None:
    """From now on Ctrl-C ends this process, at once; not where whoever started it has Ctrl-C ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    threading.Thread(target=_wait, args=(reading,), daemon=True).start()
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGINT, _left_to_the_thread)


def ignore_interrupts() -> None:
    """From now on Ctrl-C does nothing: the work is done, and Python's own end is not to be mistaken for a failure."""
    if signal.getsignal(signal.SIGINT) is _left_to_the_thread:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def raise_on_interrupt() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt: for a command that has servers to stop or secrets to remove."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def sweep_up(function: Callable[[float], None]) -> None:
    """Before this process is stopped, call function(seconds): what was written since then may be damaged."""
    if function not in _sweepers:
        _sweepers.append(function)


@contextmanager
def resumable(way: str) -> Iterator[None]:
    """A block of work that can be gone on with; `way` says how, for whoever stops it and for whoever has no room."""
    _ways.append(way)
    began = time.monotonic()
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        for function in _sweepers:
            function(time.monotonic() - began)
        file = error.filename or "a file"
        raise DataError(f"{file}: cannot be written ({error.strerror}); make room on the disk, then {way}") from error
    finally:
        _ways.pop()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A short block that Ctrl-C waits for."""
    with _critical:
        yield


def _left_to_the_thread(*_: object) -> None:
    pass


def _wait(reading: int) -> None:
    while signal.SIGINT not in os.read(reading, 1):
        pass
    with _critical:
        _end()


def _end() -> None:
    processes = sys.modules.get("multiprocessing")
    for child in processes.active_children() if processes else ():
        child.kill()
    for function in _sweepers:
        function(LATELY)
    with suppress(OSError):  # a closed screen is no reason to stay
        if os.isatty(1):
            os.write(1, SHOW_CURSOR)
        os.write(2, os.fsencode("; ".join(["Interrupted", *_ways[-1:]]) + ".\n"))
    os._exit(INTERRUPTED)
