"""What a process sees of the package: threads, the GIL, signals, forks, its end, the log."""

import os
import signal
import threading
import time

import numpy
import pytest
import weightcast
from weightcast import errors

MB = 1_000_000


def weights_of(megabytes, seed=0):
    raw = numpy.random.default_rng(seed).integers(0, 256, megabytes * MB, dtype=numpy.uint8)
    return {f"w{i}": part for i, part in enumerate(numpy.split(raw.view(numpy.uint16), 10))}


def test_weights_may_change_once_publish_returns(place):
    weights = weights_of(40)
    with place.publisher(weights) as publisher:
        for _ in range(3):
            before = {name: array.copy() for name, array in weights.items()}
            publication = publisher.publish(weights, full=True)
            for array in weights.values():
                array += 1
            publication.wait()
            place.pull(durability="process")
            with weightcast.Image(place.image) as image:
                for name, array in before.items():
                    assert numpy.array_equal(image.numpy(name), array), name


class Counter(threading.Thread):
    """Counts how often it gets the GIL."""

    def __init__(self):
        super().__init__(daemon=True)
        self.turns, self._on = 0, True

    def run(self):
        while self._on:
            time.sleep(0.001)
            self.turns += 1

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc_info):
        self._on = False
        self.join()


def test_other_threads_go_on_while_the_core_works(place):
    weights = weights_of(100)
    publisher = place.publisher(weights)
    works = [("publish", lambda: publisher.publish(weights).wait()),
             ("pull", lambda: place.pull(durability="process")),
             ("verify", lambda: weightcast.verify(place.image))]
    for name, work in works:
        # With the GIL held there would be next to no turn in any call. A busy machine may hold the
        # counter back in some.
        for _ in range(20):
            with Counter() as counter:
                work()
            if counter.turns >= 5:
                break
        assert counter.turns >= 5, (name, vars(counter))
    publisher.close()


def test_calls_of_several_threads_wait_for_each_other(place):
    weights = weights_of(2)
    reports, faults = [], []

    def work():
        try:
            for _ in range(5):
                reports.append(publisher.publish(weights).wait())
        except Exception as error:
            faults.append(error)

    with place.publisher(weights) as publisher:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults
    assert sorted(report["number"] for report in reports) == list(range(1, 21))


# ---- progress ----

def published(place, megabytes=30):
    weights = weights_of(megabytes)
    with place.publisher(weights) as publisher:
        publisher.publish(weights).wait()
    return weights


def test_progress_tells_how_far_a_pull_is(place):
    weights = published(place)
    told = []
    place.pull(progress=lambda done, total: told.append((done, total)))
    total = sum(array.nbytes for array in weights.values())
    assert told == sorted(told) and told[-1] == (total, total)


class Mine(Exception):
    pass


@pytest.mark.parametrize("threads", [1, 4])
def test_what_progress_raises_is_raised_by_pull_and_stops_it(place, threads):
    weights = published(place)
    calls = []

    def fail(done, total):
        calls.append(done)
        raise Mine(f"at call {len(calls)}")

    with pytest.raises(Mine, match="at call 1$"):
        place.pull(progress=fail, threads=threads)
    assert len(calls) == 1, "the work stops there"
    assert not place.image.exists()
    place.pull()
    with place.publisher(weights) as publisher:
        changed = {name: array + 1 for name, array in weights.items()}
        publisher.publish(changed).wait()
        with pytest.raises(Mine):
            place.pull(progress=fail, threads=threads)
        assert weightcast.verify(place.image)["verified"], "the old version, whole"
        with weightcast.Image(place.image) as image:
            assert image.number == 1
        assert place.pull()["number"] == 2


def test_progress_of_the_wrong_form_is_an_error_and_not_the_end(place):
    published(place, 1)
    with pytest.raises(TypeError):
        place.pull(progress=lambda: None)
    with pytest.raises(TypeError):
        place.pull(progress=3)
    with pytest.raises(SystemExit):
        place.pull(progress=lambda done, total: exit(3))


def test_ctrl_c_ends_a_pull(place):
    weights = published(place, 200)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    timer = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
    calls = []

    def slow(done, total):  # so that there is time for it
        calls.append(done)
        time.sleep(0.005)

    timer.start()
    with pytest.raises(KeyboardInterrupt):
        place.pull(progress=slow)
        time.sleep(5)
    timer.join()
    assert calls[-1] < sum(array.nbytes for array in weights.values()) if calls else True
    assert not place.image.exists()


CTRL_C = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy, weightcast
weights = {"w": numpy.random.default_rng(0).integers(0, 9, 60_000_000, dtype=numpy.uint8)}
with weightcast.Publisher("sqlite:c.db", "file:s", "p", weights, baseline="b", threads=1) as p:
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        for _ in range(100):
            p.publish(weights, full=True)
    except KeyboardInterrupt:
        weights["w"][:] = 9  # what was on its way has been read
    print("next", p.publish(weights).wait()["state"])
weightcast.pull("sqlite:c.db", "p", "image")
for v in weightcast.versions("sqlite:c.db", "p")[:-1]:
    weightcast.pull("sqlite:c.db", "p", "image", version=v["number"], durability="process")
    with weightcast.Image("image") as image:
        assert 0 <= image.numpy("w").max() < 9
"""


def test_ctrl_c_in_a_publish_leaves_a_publisher_that_works(script):
    done = script(CTRL_C, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "next READY" in done.stdout


# ---- the end of a process ----

PRELUDE = """
import threading
import numpy, weightcast
weights = {"w": numpy.random.default_rng(0).integers(0, 256, 60_000_000, dtype=numpy.uint8)}
p = weightcast.Publisher("sqlite:c.db", "file:s", "p", weights, baseline="b")
"""


@pytest.mark.parametrize("text", [
    "p.publish(weights)",  # not waited for, not closed
    "p.publish(weights); raise SystemExit(0)",
    "publication = p.publish(weights); publication.wait(); image = None\n"
    "weightcast.pull('sqlite:c.db', 'p', 'i'); image = weightcast.Image('i'); v = image.numpy('w')",
    # Pulls of threads that nobody waits for, as a plugin's.
    "p.publish(weights).wait()\n"
    "for i in range(4):\n"
    "  threading.Thread(target=weightcast.pull, args=('sqlite:c.db', 'p', f'i{i}'), daemon=True,\n"
    "                   kwargs=dict(progress=lambda done, total: None)).start()\n"
    "import time; time.sleep(0.03)",
])
def test_a_process_ends_well_whatever_is_on_its_way(script, text):
    for _ in range(3):
        done = script(PRELUDE + text)
        assert (done.returncode, done.stderr) == (0, "")


LATE = """
import atexit
def late():
    weightcast.pull("sqlite:c.db", "p", "image")  # by the thread that ends the process: fine
    try:
        p.publish(weights)
    except (weightcast.errors.Unavailable, RuntimeError) as error:
        print("refused:", error)
atexit.register(late)  # runs after what the package registers
"""


def test_a_publish_when_the_process_has_ended_is_refused(script):
    done = script(LATE + PRELUDE + "p.publish(weights).wait()")
    assert (done.returncode, done.stderr) == (0, "") and "refused:" in done.stdout


def test_a_publish_on_its_way_is_finished_before_the_end(script, place):
    assert script(PRELUDE + "p.publish(weights)").returncode == 0
    states = [v["state"] for v in weightcast.versions(f"sqlite:{place.path}/c.db", "p")]
    assert states == ["READY"]


# ---- fork, import, log ----

FORK = """
import os, signal, sys
import numpy, weightcast
weights = {"w": numpy.arange(1000, dtype=numpy.float32)}
def work(name):
    with weightcast.Publisher("sqlite:c.db", "file:s", name, weights, baseline="b" + name) as p:
        p.publish(weights).wait()
    weightcast.pull("sqlite:c.db", name, "i" + name)
    with weightcast.Image("i" + name) as image:
        assert (image.numpy("w") == weights["w"]).all()
if BEFORE:
    work("parent")
    parent = weightcast.Publisher("sqlite:c.db", "file:s", "parent", weights, baseline="held")
for i in range(3):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        if BEFORE:
            parent.close()  # not the child's to close
            try:
                parent.publish(weights)
            except weightcast.errors.Conflict as error:
                assert "fork" in str(error)
            else:
                os._exit(9)
        work(f"child{i}")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
if BEFORE:
    parent.publish(weights).wait()
work("after")
"""


@pytest.mark.parametrize("before", [False, True])
def test_a_fork_works_as_its_parent_does(script, before):
    done = script(f"BEFORE = {before}\n" + FORK)
    assert (done.returncode, done.stderr) == (0, "")


def test_import_brings_neither_torch_nor_vllm_nor_numpy(script):
    done = script("import sys, weightcast\n"
                  "print([m for m in ('torch', 'vllm', 'numpy', 'jax', 'asyncio') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_the_log_goes_to_logging(place, caplog):
    weights = {"w": numpy.ones(1000, numpy.float32)}
    with place.publisher(weights) as publisher:
        publisher.publish(weights).wait()
    caplog.set_level("INFO", logger="weightcast")
    with place.publisher(weights, baseline="lost") as publisher:
        publisher.publish(weights).wait()
    assert [(r.name, r.levelname) for r in caplog.records] == [("weightcast", "INFO")]
    assert "baseline rebuilt" in caplog.text
    caplog.clear()
    caplog.set_level("WARNING", logger="weightcast")
    with place.publisher(weights, baseline="lost again") as publisher:
        publisher.publish(weights).wait()
    assert not caplog.records, "logging decides what is shown"


def test_a_log_handler_that_fails_stops_nothing(script):
    done = script("""
import logging, numpy, weightcast
class Bad(logging.Handler):
    def emit(self, record): raise RuntimeError("from the handler")
logging.getLogger("weightcast").addHandler(Bad())
logging.getLogger("weightcast").setLevel("DEBUG")
weights = {"w": numpy.ones(1000, numpy.float32)}
for baseline in "ab":
    with weightcast.Publisher("sqlite:c.db", "file:s", "p", weights, baseline=baseline) as p:
        print(p.publish(weights).wait()["state"])
""")
    assert done.stdout.split() == ["READY", "READY"] and done.returncode == 0
    assert "from the handler" in done.stderr


def test_errors_pass_between_processes():
    import pickle

    for kind in errors.BY_CODE.values():
        error = pickle.loads(pickle.dumps(kind("what")))
        assert type(error) is kind and str(error) == "what" and error.exit_code == kind.exit_code
