"""What is in memory stays there: a process that crashes leaves neither patients' rows nor private keys on disk."""

import ctypes
import resource
import sys

SET_DUMPABLE = 4  # Linux's number for the option of prctl


def never_dump() -> None:
    """From now on a crash leaves no image of this process on disk.

    The limit alone is not enough: a system that hands its images to a program, as many do, ignores it. On Linux the
    process is therefore also closed to debuggers and to the other processes of its account.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)
