"""What a run takes from its machine: cores, and a place on disk for compiled programs."""

import ctypes
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import jax

from fedlap.files import cache_folder
from fedlap.stopping import sweep_up

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's numbers of its options


def keep_compiled_programs() -> None:
    """Turn JAX's persistent cache on, unless the user has chosen a place for it or switched it off."""
    sweep_up(forget_programs)
    if _kept_in() is not None or os.environ.get("FEDLAP_COMPILATION_CACHE") == "off":
        return
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a read-only home is no reason not to train
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def forget_programs(seconds: float) -> None:
    """Remove the compiled programs of the last so many seconds.

    JAX would warn of half a program for ever, and never replace it.
    """
    if (folder := _kept_in()) is None:
        return
    since = time.time() - seconds
    for path in Path(folder).glob("*-cache"):
        with suppress(OSError):  # another process may have been faster
            if path.stat().st_mtime >= since:
                path.unlink()


def cores() -> list[int]:
    """The cores that this process may use, which may be fewer than there are."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def memory() -> int:
    """How many bytes of memory there are for this process: the machine's, or fewer in a container."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 33
    limits = [whole]
    with suppress(OSError):
        groups = [line.partition("::")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()]
        for group in [Path("/sys/fs/cgroup" + own) for own in groups if own]:
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # without a limit it says "max"
                    limits.append(int((folder / "memory.max").read_text()))
    return min(limits)


def reuse_memory() -> None:
    """Have the C library keep what is freed for the next who asks, where it is glibc.

    Each client of a network takes and frees some thirty megabytes. Handed back to the system, they are taken page by
    page and filled with zeros again for the next client, which costs a third of the time.
    """
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        if mallopt(M_MMAP_THRESHOLD, 1 << 30) or mallopt(M_MMAP_THRESHOLD, 1 << 25):  # older ones know a limit
            mallopt(M_TRIM_THRESHOLD, 1 << 28)


def give_memory_back() -> None:
    """Have the C library, where it is glibc, hand all that is free to the system.

    Each thread keeps its own, and JAX begins several a core: where memory is what there is little of, that is half a
    gigabyte.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def stay_on(numbers: Iterable[int]) -> None:
    """Keep this process on the cores of these numbers, where the system can.

    A process runs as many threads as it sees cores, and two that share none do not wait for each other.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, numbers)


def double_precision(wanted: bool) -> AbstractContextManager:
    """JAX in float64 or in float32 for a while, in this thread, whatever its switch for the process says."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(wanted)
    from jax import experimental  # where it was before JAX 0.8

    return experimental.enable_x64(wanted)  # pyright: ignore[reportAttributeAccessIssue]


def threads(count: int) -> ThreadPoolExecutor:
    """So many threads that compute in the precision of the one that asks for them."""
    precise = jax.dtypes.canonicalize_dtype(float) == "float64"
    return ThreadPoolExecutor(max_workers=count, initializer=lambda: double_precision(precise).__enter__())


def _kept_in() -> str | None:
    """The folder of JAX's persistent cache; JAX makes its options attributes when it runs."""
    return jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
