"""Work on many items at once, in threads or in processes; none outlives the one that began it."""

import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import jax

from fedlap.errors import FedlapError
from fedlap.machine import cores, stay_on
from fedlap.stopping import uninterrupted

# A function of an item and of a function that takes its news; it returns what comes of the item.
Work = Callable[[Any, Callable[[Any], None]], Any]

NEWS, DONE, FAILED, IDLE = "news", "done", "failed", "idle"
ENDED = (
    "a process was ended from outside, perhaps because memory ran out; what has finished is kept, "
    "and the same command goes on with the rest: try fewer processes, --jobs 1"
)


class Worker(NamedTuple):
    """A process, and the pipe through which it gets items and tells what comes of them."""

    process: BaseProcess
    pipe: Connection

    def give(self, item: object) -> None:
        """Send it an item to work on."""
        try:
            self.pipe.send(item)
        except OSError as error:
            raise FedlapError(ENDED) from error

    def hear(self) -> tuple[str, Any]:
        """The kind of its next message, and what it holds."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return FAILED, FedlapError(ENDED)

    def end(self) -> None:
        """Kill the process and close its pipe."""
        self.process.kill()  # whatever it was doing: what it has written down is whole
        self.process.join()
        self.pipe.close()


class _Stopped(Exception):
    """The end of a thread to which nobody listens any more."""


def on_threads(workers: int, work: Work, items: Iterable) -> Iterator:
    """As `on_processes`, in threads of this process: where compilation takes the time, Python is free meanwhile.

    They share all cores, so that it changes no bits how many they are.
    """
    left, messages, stopped = deque(items), queue.SimpleQueue(), threading.Event()

    def tell(news: object) -> None:
        if stopped.is_set():
            raise _Stopped
        messages.put((NEWS, news))

    def serve() -> None:
        try:
            while left and not stopped.is_set():
                messages.put((DONE, work(left.popleft(), tell)))
        except (_Stopped, IndexError):  # another thread was faster
            pass
        except Exception as error:
            messages.put((FAILED, error))
        messages.put((IDLE, None))

    threads = [threading.Thread(target=serve) for _ in range(min(workers, len(left)))]
    busy = len(threads)
    try:
        for thread in threads:
            thread.start()
        while busy:
            kind, message = messages.get()
            if kind == FAILED:
                raise message
            if kind == IDLE:
                busy -= 1
            else:
                yield message
    finally:
        stopped.set()
        for thread in threads:  # to the end of a round, or of a compilation: Python cannot end below either
            thread.join()


def on_processes(workers: int, work: Work, items: Iterable) -> Iterator:
    """The news of work(item, tell) while it runs, then what it returns: of all items, in no certain order.

    Each of that many workers has its share of the cores, even if there are too few items to begin them all.
    """
    left, busy = deque(items), []
    resource_tracker.ensure_running()  # it would change which signals are blocked, were it begun with the first worker
    try:
        for share in deal(cores(), workers)[: len(left)]:
            busy.append(_begin(work, share))
        for worker in busy:
            worker.give(left.popleft())
        while busy:
            failure = None
            ready = wait([worker.pipe for worker in busy])
            for worker in [worker for worker in busy if worker.pipe in ready]:
                kind, message = worker.hear()
                if kind == FAILED:  # it comes last: what finished beside it is kept
                    failure = failure or message
                    continue
                if kind == DONE and left:
                    worker.give(left.popleft())
                elif kind == DONE:
                    busy.remove(worker)
                    worker.end()
                yield message
            if failure:
                raise failure
    finally:
        for worker in busy:
            worker.end()


def deal(cores: list[int], workers: int) -> list[list[int]]:
    """The cores of each worker, as many for one as for another; the rest stay idle.

    Which worker carries on with a run must not change its bits. With more workers than cores, they take turns.
    """
    size = max(len(cores) // workers, 1)
    return [cores[i * size % len(cores) :][:size] for i in range(workers)]


def _begin(work: Work, share: list[int]) -> Worker:
    """A worker on its share of the cores."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    # A new process would go by the environment, not by what is in force.
    precise = jax.dtypes.canonicalize_dtype(float) == "float64"
    process = context.Process(target=_serve, args=(its, work, share, precise), daemon=True)
    with uninterrupted(), _interrupts_blocked():
        process.start()
    its.close()
    return Worker(process, ours)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A block in which a new process never sees Ctrl-C, not even while it imports: its parent ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, work: Work, share: list[int], precise: bool) -> None:
    """The life of a worker: items come until it is ended."""
    _end_with_parent()
    jax.config.update("jax_enable_x64", precise)
    stay_on(share)
    while True:
        item = pipe.recv()
        try:
            message = DONE, work(item, lambda news: pipe.send((NEWS, news)))
        except (FedlapError, OSError) as error:
            message = FAILED, error
        except Exception:  # of some library: not every exception can be sent, but its words can
            message = FAILED, RuntimeError(f"in a process of the sweep:\n{traceback.format_exc()}")
        pipe.send(message)


def _end_with_parent() -> None:
    """End this process as soon as the one that began it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker was begun by another process"

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
