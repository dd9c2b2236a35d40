"""Ranks of a job as forked processes: what takes longest, importing, is done once."""

import os
import sys
import time
import traceback

SECONDS_MAX = 300


def _fork(rank, folder, work):
    pid = os.fork()
    if pid:
        return pid
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        work(rank)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pids):
    """Whether all ended well. Those that outlive a failed one, or the time, are ended."""
    left, end = set(pids), time.monotonic() + SECONDS_MAX
    good = True
    while left:
        for pid in list(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                left.discard(pid)
                good = good and status == 0
        if left and (not good or time.monotonic() > end):
            time.sleep(1)  # the others say what they have to say
            for pid in left:
                os.kill(pid, 9)
            for pid in left:
                os.waitpid(pid, 0)
            return False
        time.sleep(0.05)
    return good


def run(world, folder, work):
    """Runs work(rank) in a process for each rank; "" or what they said, from rankN.log in `folder`."""
    if _wait([_fork(rank, folder, work) for rank in range(world)]):
        return ""
    logs = [(folder / f"rank{rank}.log").read_text(errors="replace") for rank in range(world)]
    return "\n".join(f"rank {rank}:\n{log[-3000:]}" for rank, log in enumerate(logs))
