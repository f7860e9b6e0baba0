"""Processes that end with the one that started them: on success, on failure, on Ctrl-C and on SIGTERM."""

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedlap.errors import ConfigError

GRACE = 5.0  # seconds between asking a process to end and ending it


class Processes:
    """A group of named fedlap commands, each writing to a log file of its own."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "Processes":
        atexit.register(self.stop)
        # Without this a SIGTERM would end this process and leave its children behind.
        with suppress(ValueError):  # not the main thread: whoever is will take care
            self._before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        atexit.unregister(self.stop)
        with suppress(ValueError, AttributeError):
            signal.signal(signal.SIGTERM, self._before)

    def log(self, name: str) -> Path:
        """The file that a process writes to."""
        return self.folder / f"{name}.log"

    def start(self, name: str, *arguments: object) -> subprocess.Popen[bytes]:
        """Run `fedlap WORDS` in a process group of its own."""
        with open(self.log(name), "ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "fedlap", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        return self.running[name]

    def wait_for(self, name: str, text: str, seconds: float) -> None:
        """Wait until a process has written a text to its log."""
        self._until(lambda: text in self.read(name), name, f"to say {text!r}", seconds)

    def wait_until_over(self, name: str, seconds: float) -> None:
        """Wait until a process has ended by itself, without an error."""
        self._until(lambda: self.running[name].poll() is not None, name, "to finish", seconds)
        if self.running[name].returncode:
            raise ConfigError(f"{name} failed:\n{self._tail(name)}")

    def _until(self, done: Callable[[], bool], name: str, what: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not done():
            if self.running[name].poll():
                raise ConfigError(f"{name} failed:\n{self._tail(name)}")
            if time.monotonic() > end:
                raise ConfigError(f"waited {seconds:.0f} s for {name} {what}:\n{self._tail(name)}")
            time.sleep(0.1)

    def read(self, name: str) -> str:
        """What a process has written so far."""
        return self.log(name).read_text(errors="replace") if self.log(name).exists() else ""

    def _tail(self, name: str) -> str:
        return "\n".join(self.read(name).splitlines()[-20:])

    def kill(self, name: str) -> None:
        """End a process at once, as a power cut would."""
        process = self.running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all of them: first politely, then at once."""
        for process in self.running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        end = time.monotonic() + GRACE
        for name in list(self.running):
            with suppress(subprocess.TimeoutExpired):
                self.running[name].wait(max(0.0, end - time.monotonic()))
            self.kill(name)


def free_port() -> int:
    """A port of the loopback interface that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
