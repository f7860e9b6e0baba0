"""Small disks that are really full or really read-only, where the system lets us mount one."""

import subprocess
from contextlib import contextmanager

import pytest

FILLER = "filler"


class SmallDisk:
    """A disk of its own at a folder."""

    def __init__(self, folder):
        self.folder = folder

    def fill(self):
        """Leave no room for one more byte."""
        with open(self.folder / FILLER, "ab", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass

    def free(self):
        """Make room again."""
        (self.folder / FILLER).unlink()

    def read_only(self, on):
        """Let nothing be written, or let it again."""
        mount("-o", "remount,ro" if on else "remount,rw", self.folder)


def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)


@contextmanager
def maybe_small_disk(folder, kilobytes=512):
    """A disk at a folder, which is made if it is not there; None where none can be mounted."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        mount("-t", "tmpfs", "-o", f"size={kilobytes}k,mode=700", "fedlap-test", folder)
    except (OSError, subprocess.CalledProcessError):
        yield None
        return
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def small_disk(folder):
    """The same; the test is skipped where no disk can be mounted."""
    with maybe_small_disk(folder) as disk:
        if disk is None:
            pytest.skip("no disk can be mounted here")
        yield disk
