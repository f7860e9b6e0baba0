"""Work on many items, a process a core; no process outlives the one that began it."""

import multiprocessing
import os
import threading
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.managers import SyncManager
from queue import Empty

import jax

from ..errors import FedlapError
from ..processors import cores, stay_on

LOOK_SECONDS = 0.5  # between two looks at what the processes are doing


def on_processes(workers, work, items):
    """For each item, in some order: what work(item, tell) tells while it runs, then what it returns.

    Each of that many workers has its share of the cores, even if there are too few items to begin them all.
    """
    context = multiprocessing.get_context("spawn")
    manager = SyncManager(ctx=context)
    manager.start(_end_with_parent)
    with manager:
        free, news = manager.Queue(), manager.Queue()
        for share in _deal(cores(), workers):
            free.put(share)
        begin = (free, jax.config.jax_enable_x64)  # a new process would go by the environment, not by what is in force
        with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=begin) as pool:
            waiting = {pool.submit(_work, work, item, news) for item in items}
            try:
                while waiting:
                    done, waiting = wait(waiting, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
                    yield from _drain(news)
                    # One that failed comes last: what finished beside it is kept.
                    for future in sorted(done, key=lambda future: future.exception() is not None):
                        yield future.result()
            except BaseException as error:
                for process in list((pool._processes or {}).values()):
                    process.terminate()
                pool.shutdown(wait=False, cancel_futures=True)
                if isinstance(error, BrokenProcessPool):
                    raise FedlapError(
                        "a process was ended from outside, perhaps because memory ran out; what has finished is kept, "
                        "and the same command goes on with the rest: try fewer processes, --jobs 1"
                    ) from error
                raise


def _deal(cores, workers):
    """As many cores for each worker, the rest for none: which worker carries on with a run must not change its bits.

    With more workers than cores, they take turns.
    """
    each = max(len(cores) // workers, 1)
    return [cores[i * each % len(cores) :][:each] for i in range(workers)]


def _begin(free, precise):
    _end_with_parent()
    jax.config.update("jax_enable_x64", precise)
    stay_on(free.get())


def _end_with_parent():
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _work(work, item, news):
    return work(item, news.put)


def _drain(queue):
    while True:
        try:
            yield queue.get_nowait()
        except Empty:
            return
