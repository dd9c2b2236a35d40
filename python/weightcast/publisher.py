"""Publishing from Python: a state dict becomes the next version of a run."""

import os
import sys
import threading
import time
import uuid

from weightcast import _core, tensors
from weightcast.errors import Conflict, DeadlineExceeded, InvalidArgument
from weightcast.image import path_text

__all__ = ["Publication", "Publisher"]


class Publication:
    """A version on its way. The weights may change again as soon as one exists.

    ``wait()`` gives the report when the version is READY. A process does not exit before it is done.
    """

    def __init__(self, work, encoded):
        self._encoded = encoded
        self._over = threading.Event()
        self._report = None
        self._error = None
        self._told = False  # somebody has been given the error
        # Not a daemon: an interpreter that goes down would cut it off in the middle.
        self._thread = threading.Thread(target=self._run, args=(work,), name="weightcast-publish")
        self._thread.start()

    def _run(self, work):
        try:
            self._report = work()
        except BaseException as error:  # handed to whoever waits
            self._error = error
        finally:
            self._over.set()
            self._encoded.set()

    @property
    def done(self):
        """Whether ``wait`` would return, or raise, at once."""
        return self._over.is_set()

    def wait(self, timeout=None):
        """The report of the version, as ``weightcast publish --json`` prints it (a dict).

        timeout: seconds; None: as long as the publish's own ``wait`` allows.
        Raises DeadlineExceeded while it is still on its way, or what the publish raised.
        """
        if not self._over.wait(timeout):
            raise DeadlineExceeded(f"the publish is not done after {timeout} s")
        self.raise_if_failed()
        return self._report

    def raise_if_failed(self):
        """Raises what the publish raised so far."""
        if self._error is not None:
            self._told = True
            raise self._error

    def end(self):
        """Waits for the end, however it ends."""
        self._over.wait()

    def raise_untold(self):
        """Raises the error of a publish that has ended and that nobody asked for its result."""
        if not self._told:
            self.raise_if_failed()


def job_token(token, world):
    """The job's token: given; or the process group's; or SLURM's job with its restart count; or, for
    one writer, a new one.

    Raises InvalidArgument if a job of several ranks has none: ranks that each made one up would
    fence each other.
    """
    if token:
        return token
    if world == 1:
        return f"writer-{uuid.uuid4().hex}"
    if token := _token_of_group():
        return token
    if job := os.environ.get("SLURM_JOB_ID"):
        return f"{job}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    raise InvalidArgument("token: a job of several ranks needs one, equal on all ranks and new at each "
                          "start; there is neither a torch.distributed process group nor SLURM to take "
                          "it from")


def _token_of_group():
    """One token for all ranks of torch's default process group, by its store: no collective. "" without
    a group. (torchelastic's own restart count will not do: each of its agents counts alone.)"""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    store = distributed.distributed_c10d._get_default_store()
    # The first rank's stands, and is what every rank is told.
    told = store.compare_set("weightcast/token", "", f"job-{uuid.uuid4().hex}")
    return told.decode() if isinstance(told, bytes) else told


class BasePublisher:
    """What all publishers share: one call at a time, baseline, numbers, and the way to READY.

    Calls may come from any thread and wait for each other; not from a forked child. Use it as a
    context manager, or call ``close``.
    """

    def _begin(self, core, side_files):
        self._core = core
        self._side_files = path_text(side_files)
        self._staging = tensors.Staging()
        self._current = None
        self._metrics = {}
        self._lock = threading.Lock()  # of the metrics
        self._calls = threading.Lock()  # one call at a time
        self._pid = os.getpid()

    @staticmethod
    def _arguments(catalog, store, run, seed, carry, baseline, token, threads, rank=0):
        arguments = _core.PublisherArguments()
        arguments.catalog = catalog
        arguments.store = store
        arguments.run = run
        arguments.seed = path_text(seed)
        arguments.carry = [carry] if isinstance(carry, str) else list(carry or ())
        arguments.baseline = path_text(baseline)
        arguments.token = token
        arguments.rank = rank
        arguments.threads = threads
        return arguments

    @property
    def params(self):
        """[(key, dtype, shape)] of what every ``publish`` takes."""
        return self._open().params

    def prepare_base(self):
        """Brings the baseline to the latest version now, rather than in the next ``publish``.

        Waits for a publish on its way. Fine if there is no version yet, or nothing to rebuild from.
        Raises as ``publish``.
        """
        with self._calls:
            self._settle()
            self._open().prepare_base()

    def _publish(self, choose, number, step, full, labels, wait, staging_timeout):
        """``choose()`` gives what to stage, {key: tensor}, and the rows (key, dtype, shape) of all."""
        labels = _labels(labels)
        with self._calls:
            self._settle()
            core = self._open()
            begin = time.monotonic()
            weights, rows = choose()
            copies = self._staging.take(weights)
            given = [(row, tensors.host_bytes(row[0], copies[row[0]]) if row[0] in copies
                      else bytearray()) for row in rows]
            staged = time.monotonic() - begin
            encoded = threading.Event()

            def work():
                report = core.publish(given, number, str(step), bool(full), labels, self._side_files,
                                      wait, staging_timeout, encoded.set)
                given.clear()
                with self._lock:
                    self._metrics = self._numbers(report, staged)
                return report

            self._current = publication = Publication(work, encoded)
            try:
                encoded.wait()
            except BaseException:  # Ctrl-C: the caller may change the weights, but not yet
                encoded.wait()
                raise
            publication.raise_if_failed()
            return publication

    @staticmethod
    def _numbers(report, staged):
        seconds = report["seconds"]
        return {
            "weightcast/version": report["number"],
            "weightcast/density": report["density"],
            "weightcast/wire_bytes": report["wire_bytes"],
            "weightcast/stage_seconds": staged,
            "weightcast/stall_seconds": staged + seconds["stall"],
            "weightcast/publish_seconds": staged + seconds["total"],
        }

    def pop_metrics(self):
        """Numbers of the last version that became READY since the last call: {name: number}.

        density: 0..1. wire_bytes: of this rank. stage_seconds: copying to the host. stall_seconds:
        how long ``publish`` kept the trainer. publish_seconds: until READY.
        """
        with self._lock:
            metrics, self._metrics = self._metrics, {}
        return metrics

    def _open(self):
        if self._core is None:
            raise Conflict("the publisher is closed")
        if os.getpid() != self._pid:
            raise Conflict(f"the publisher belongs to process {self._pid}, this is a fork of it")
        return self._core

    def _settle(self):
        """One publish at a time: the one before must have ended."""
        self._open()
        if self._current is not None:
            self._current.end()  # interrupted here, it is still the current one
            current, self._current = self._current, None
            current.raise_untold()

    def close(self):
        """Waits for what is on its way, then gives the baseline back. Fine if closed already.

        Raises the error of a publish whose result nobody asked for.
        """
        if self._core is None or os.getpid() != self._pid:
            return
        with self._calls:
            try:
                if self._core is not None:
                    self._settle()
            finally:
                if self._core is not None and self._current is None:
                    self._core.close()
                    self._core = None

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


def _labels(labels):
    labels = dict(labels or {})
    wrong = [f"{name!r}: {value!r}" for name, value in labels.items()
             if not (isinstance(name, str) and isinstance(value, str))]
    if wrong:
        raise InvalidArgument(f"labels: expected str to str, found {', '.join(wrong)}")
    return labels


class Publisher(BasePublisher):
    """Publishes the tensors of one writer, by their Hugging Face names.

    catalog: ``sqlite:PATH``, made if it is missing. store: ``file:PATH``. run: name, made if it is
        missing.
    weights: {name: tensor}, whose names, dtypes and shapes are the run's inventory; their values are
        not read yet. Tensors of torch, numpy, or anything with DLPack or the buffer protocol.
    seed: a checkpoint directory; it becomes version 0, without moving weights, if there is none.
    carry: patterns of the seed's tensors that are not among ``weights`` and stay as they are.
    baseline: directory of the last published bytes, as large as the weights; one publisher at a time.
        Default under $XDG_STATE_HOME/weightcast.
    side_files: directory of config and tokenizer for a run without a seed.
    token: names this life of the job; default a new one. A new token fences
        publishers that were opened with older ones.
    threads: 0: all CPUs.

    Raises InvalidData (a tensor that no checkpoint holds), Conflict (the run has other tensors),
    Unavailable (catalog, store, or the baseline is in use), InvalidArgument (names, URLs).
    Calls may come from any thread and wait for each other; not from a forked child. Use it as a
    context manager, or call ``close``.
    """

    def __init__(self, catalog, store, run, weights, *, seed="", carry=(), baseline="",
                 side_files="", token="", threads=0):
        specs = tensors.for_all(weights, tensors.spec)
        arguments = self._arguments(catalog, store, run, seed, carry, baseline,
                                    job_token(token, world=1), threads)
        self._begin(_core.Publisher.for_tensors(arguments, specs), side_files)

    def publish(self, weights, *, number=None, step="", full=False, labels=None, wait=600.0,
                staging_timeout=3600.0):
        """Publishes ``weights`` ({name: tensor}) as a version; returns a Publication.

        Returns when nothing reads the weights any more: after diff and encoding, while parts are
        still on their way. Contiguous tensors in host memory are read where they lie; those of torch
        on a device, or strided, are copied to the host first; strided arrays of numpy are refused.

        number: default the latest + 1. step: token, equal on all ranks; default the number.
        full: also write a full version. labels: {str: str}.
        wait: seconds until the version must be READY; None: only announce this rank's part.
        staging_timeout: seconds after which an attempt that is not READY may be given up.
        Raises what is known by then: InvalidData (all wrong names, shapes, dtypes), Conflict (fenced,
        or the number is taken), Unavailable (store or catalog), ...; and first the error of a publish
        before this one whose result nobody asked for.
        """

        def choose():
            return weights, tensors.for_all(weights, _row)

        return self._publish(choose, number, step, full, labels, wait, staging_timeout)


def _row(name, tensor):
    """(name, dtype, shape) of a tensor whose values can be read."""
    row = tensors.spec(name, tensor)
    tensors.check_values(name, tensor)
    return row
