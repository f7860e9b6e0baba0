"""Work on many items, a process a core; no process outlives the one that began it."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import NamedTuple

import jax

from fedlap.errors import FedlapError
from fedlap.machine import cores, stay_on
from fedlap.stopping import uninterrupted

NEWS, DONE, FAILED = "news", "done", "failed"
ENDED = (
    "a process was ended from outside, perhaps because memory ran out; what has finished is kept, "
    "and the same command goes on with the rest: try fewer processes, --jobs 1"
)


class Worker(NamedTuple):
    """A process, and the pipe through which it gets items and tells what comes of them."""

    process: multiprocessing.Process
    pipe: multiprocessing.connection.Connection

    def fileno(self):
        return self.pipe.fileno()

    def give(self, item):
        try:
            self.pipe.send(item)
        except OSError as error:
            raise FedlapError(ENDED) from error

    def hear(self):
        """What it says next, and of which kind that is."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return FAILED, FedlapError(ENDED)

    def end(self):
        self.process.kill()  # whatever it was doing: what it has written down is whole
        self.process.join()
        self.pipe.close()


def on_processes(workers, work, items):
    """For each item, in some order: what work(item, tell) tells while it runs, then what it returns.

    Each of that many workers has its share of the cores, even if there are too few items to begin them all.
    """
    left, busy = deque(items), []
    resource_tracker.ensure_running()  # it would change which signals are blocked, were it begun with the first worker
    try:
        for share in _deal(cores(), workers)[: len(left)]:
            busy.append(_begin(work, share))
        for worker in busy:
            worker.give(left.popleft())
        while busy:
            failure = None
            for worker in wait(busy):
                kind, what = worker.hear()
                if kind == FAILED:  # it comes last: what finished beside it is kept
                    failure = failure or what
                    continue
                if kind == DONE and left:
                    worker.give(left.popleft())
                elif kind == DONE:
                    busy.remove(worker)
                    worker.end()
                yield what
            if failure:
                raise failure
    finally:
        for worker in busy:
            worker.end()


def _deal(cores, workers):
    """As many cores for each worker, the rest for none: which worker carries on with a run must not change its bits.

    With more workers than cores, they take turns.
    """
    each = max(len(cores) // workers, 1)
    return [cores[i * each % len(cores) :][:each] for i in range(workers)]


def _begin(work, share):
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    precise = jax.config.jax_enable_x64  # a new process would go by the environment, not by what is in force
    process = context.Process(target=_serve, args=(its, work, share, precise), daemon=True)
    with uninterrupted(), _interrupts_blocked():
        process.start()
    its.close()
    return Worker(process, ours)


@contextmanager
def _interrupts_blocked():
    """A process that is begun here never sees Ctrl-C, not even while it imports: its parent ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe, work, share, precise):
    """The life of a worker: items come until it is ended."""
    _end_with_parent()
    jax.config.update("jax_enable_x64", precise)
    stay_on(share)
    while True:
        item = pipe.recv()
        try:
            said = DONE, work(item, lambda news: pipe.send((NEWS, news)))
        except (FedlapError, OSError) as error:
            said = FAILED, error
        except Exception:  # of some library: not every exception can be sent, but its words can
            said = FAILED, RuntimeError(f"in a process of the sweep:\n{traceback.format_exc()}")
        pipe.send(said)


def _end_with_parent():
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
