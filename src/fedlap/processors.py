"""Cores, where the system tells which of them a process may use; macOS does not."""

import os


def cores():
    """Those this process may use, which may be fewer than there are."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def stay_on(some):
    """A process runs as many threads as it sees cores, and two that share none do not wait for each other."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, some)
