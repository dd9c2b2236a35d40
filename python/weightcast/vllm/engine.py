"""The worker half of an update: vLLM's weight-transfer engine, one in each worker process.

Between updates a background thread brings the host's image to the next version (``prepare``). The
update itself writes the image's journal into live parameters where they lie as their loaders lay
them, reloads the modules that a kernel has repacked, and proves what it touched. What cannot be done
so is a full reload from the held image. A failure before the first live byte changes nothing; one
after it fences the worker: it says so, and only a full update heals it.
"""

import dataclasses
import functools
import secrets
import threading
import time
import traceback
from typing import Any

import torch

import weightcast
from weightcast.errors import Conflict, DataLoss, Error, InternalFault, InvalidArgument
from weightcast.vllm import kernels, placement
from weightcast.vllm.loader import check_origin
from weightcast.vllm.settings import Settings

try:
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
except ImportError:  # an older layout of vLLM: duck typing is enough

    class WeightTransferEngine:
        pass


@dataclasses.dataclass
class InitInfo:
    """Body of /init_weight_transfer_engine: fields of Settings. Empty for an engine that started
    with --load-format weightcast."""

    catalog: str = ""
    run: str = ""
    image: str = ""
    seed: str = ""
    store: str = ""
    threads: int = 0
    durability: str = "host"
    keep_canonical: bool = False


@dataclasses.dataclass
class UpdateInfo:
    """Body of /update_weights. version: uid, 32 hex digits; the image must be there already.
    round: uid of the round, for messages. full: reload everything."""

    version: str = ""
    round: str = ""
    full: bool = False


HOWS = ("wrong", "unproven", "probed", "repacked", "live")  # the worst first


@dataclasses.dataclass(frozen=True)
class Proof:
    """What a worker holds of a tensor. how: live, repacked, probed or unproven; digest: of the units
    held (32 hex digits); units: how many; span: which (equal spans, equal units)."""

    name: str
    how: str
    digest: str
    units: int
    span: str


def _told(method):
    """A call of vLLM's own. With several workers an error that one raises would leave the others'
    answers in vLLM's queues, to be taken for those of the next call: it is kept, and the op "outcome"
    tells it. A worker alone raises."""

    @functools.wraps(method)
    def call(self, *args):
        self._outcome = ""
        try:
            return method(self, *args)
        except Exception as error:
            named = _named(error)
            self._outcome = str(named)
            if self.workers == 1:
                raise named from error

    return call


class Engine(WeightTransferEngine):
    """See the module. All calls but the prepare thread's come from the worker's own loop."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *args, **kwargs):
        # vLLM has changed what it passes, and in which order: known by type.
        given = [*args, *kwargs.values()]
        self.model = next((a for a in given if isinstance(a, torch.nn.Module)), None)
        vllm_config = next((a for a in given if hasattr(a, "model_config")), None)
        if self.model is None or vllm_config is None:
            raise InvalidArgument("weightcast: this vLLM does not give its model and config to weight-"
                                  "transfer engines; 0.26 and later do")
        self.model_config = vllm_config.model_config
        parallel = vllm_config.parallel_config
        self.worker = int(getattr(parallel, "rank", 0))
        self.workers = int(getattr(parallel, "world_size", 1))
        self.incarnation = secrets.token_hex(8)
        self._outcome = ""  # the error of the last call of vLLM's own
        self._compiles = kernels.compiles(vllm_config)
        self._settings = None
        self._lock = threading.Lock()  # of what the prepare thread and the loop share
        self._state = "new"
        self._version, self._number = "", -1
        self._prepared, self._reason = "", ""
        self._progress = (0, 0)
        self._thread = None
        self._preparing, self._preparing_for = False, ""
        self._placement, self._target = None, None
        self._ready = None  # what prepare found out about the step to the next version
        self._touched = []  # tensors, by the last update
        self._proofs = []  # of them, by their live memory
        self._updated = False  # in this session
        self._seconds = {}
        kernels.refuse_unsupported(self.model_config, parallel)
        origin = check_origin(getattr(self.model, "weightcast_origin", None))
        if origin:
            self._settings, self._version, self._number = origin
            if self._settings.keep_canonical:
                kernels.name_compiled(vllm_config)
            self._state = "serving"
            try:
                self._adopt()
            except Exception as error:
                raise _named(error) from error
        _add_rpc()

    # ---- vLLM's interface ----

    def parse_init_info(self, given):
        return given  # where its errors can be told

    def parse_update_info(self, given):
        return given

    @_told
    def init_transfer_engine(self, given):
        """Once in an engine's life; again with the same run and image is fine. Takes fields of
        InitInfo."""
        fields = dataclasses.asdict(_parse(InitInfo, given, "init_info"))
        if self._settings is not None and fields == dataclasses.asdict(InitInfo()):
            return
        settings = Settings.parse(fields, "init_info")
        if self._settings is not None and settings.identity != self._settings.identity:
            raise Conflict(f"this engine follows {self._settings}, asked for {settings}")
        if settings.keep_canonical and self._settings is None:
            kernels.refuse_compiled(self.model, self._compiles)
        self._settings = settings
        if self._state == "new":
            self._state = "serving"

    @_told
    def start_weight_update(self):
        self._need_settings()
        self._updated = False

    def update_weights(self, update_info):
        self.receive_weights(update_info)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    @_told
    def receive_weights(self, given, load_weights=None):
        """Moves the live weights to the version that the image is at. Takes fields of UpdateInfo."""
        self._update(_parse(UpdateInfo, given, "update_info"))
        self._updated = True

    @_told
    def finish_weight_update(self):
        if not self._updated:
            raise Conflict("finish_weight_update: this session has updated nothing")
        self._updated = False

    def set_weight_update_target(self, model, model_config):
        if model is not self.model:
            raise _named(InvalidArgument("weightcast does not update draft models"))

    def reset_weight_update_target(self):
        pass

    def drain_pending(self):
        pass

    def shutdown(self):
        thread = self._thread
        if thread is not None:
            thread.join(timeout=60)

    # ---- by /collective_rpc, method "weightcast" ----

    def rpc(self, request):
        """One request, a dict with "op": status; prepare (version, round); prove (scope: touched or
        all); outcome (of the last call of vLLM's own). Gives a dict: of several workers one with "error"
        where one alone raises."""
        try:
            op = request.get("op")
            known = {"status": (), "prepare": ("version", "round"), "prove": ("scope",), "outcome": ()}
            if op not in known:
                raise InvalidArgument(f"op {op!r}: known: {', '.join(known)}")
            unknown = sorted(set(request) - {"op", *known[op]})
            if unknown:
                raise InvalidArgument(f"{op}: unknown: {', '.join(unknown)}")
            if op == "prepare":
                return self._start_prepare(request.get("version"))
            if op == "prove":
                return self._prove_op(request.get("scope", "touched"))
            if op == "outcome":
                return self._failed(self._outcome) if self._outcome else {"worker": self.worker}
            return self.status()
        except Exception as error:
            named = _named(error)
            if self.workers == 1:
                raise named from error
            return self._failed(str(named))

    def _failed(self, error):
        return {"worker": self.worker, "error": error}

    def status(self):
        """state: new, serving, preparing, prepared, updating or fenced; version, number: what the live
        weights are, "" and -1 if nobody knows; preparing: a prepare is under way (a fenced engine says
        fenced all the while); prepared: uid that the image is ready for, which a serving engine may
        serve already; reason: why it is fenced, or why the last prepare failed."""
        with self._lock:
            return self._status()

    def _status(self):
        done, total = self._progress
        return {"worker": self.worker, "workers": self.workers, "incarnation": self.incarnation,
                "state": self._state, "version": self._version, "number": self._number,
                "preparing": self._preparing, "prepared": self._prepared,
                "reason": self._reason, "done": done, "total": total,
                "seconds": dict(self._seconds)}

    def _start_prepare(self, version):
        self._need_settings()
        if not isinstance(version, str) or not version:
            raise InvalidArgument(f"prepare: version {version!r}: expected a uid, number or alias")
        with self._lock:
            if self._preparing and version == self._preparing_for:
                return self._status()  # of a coordinator that is no more, or asks again
            if self._preparing:
                raise Conflict(f"a prepare for {self._preparing_for} is under way already")
            self._preparing_for, self._ready = version, None
            self._preparing, self._prepared, self._progress = True, "", (0, 0)
            if self._state != "fenced":
                self._state, self._reason = "preparing", ""
            self._thread = threading.Thread(target=self._prepare, args=(version,), daemon=True,
                                            name="weightcast-prepare")
            self._thread.start()
        return self.status()

    def _prepare(self, version):
        begin = time.monotonic()
        uid, failure = "", ""
        try:
            pulled = self._settings.pull(version, progress=self._note_progress)["uid"]
            self._ready = self._examine()
            uid = pulled
        except BaseException as error:  # reported by status: nobody waits for this thread
            failure = f"weightcast {getattr(error, 'code', 'internal')}: prepare {version}: {error}"
        with self._lock:
            self._seconds["prepare"] = time.monotonic() - begin
            self._preparing, self._prepared = False, uid
            if self._state != "fenced":
                ahead = uid and uid != self._version
                self._state, self._reason = "prepared" if ahead else "serving", failure
            elif failure:
                self._reason += f"; {failure}"

    def _examine(self):
        """How live memory gets from its version to the image's: the journals, read and checked, and
        which tensors are not where the first of them begins. Only reads; the engine serves meanwhile."""
        with weightcast.Image(self._settings.image) as image:
            step = _Step(self._version, image.version)
            if self._version and self._target is not None:
                step.journals = image.hold.steps_from(self._version)
                step.touched = sorted(set().union(*(j.tensors for j in step.journals)))
            if step.journals:
                held = [t for t in step.touched if self._target.units(t) > 0]
                step.strangers = [t for t, _ in self._target.compare(step.journals[0], held,
                                                                     self._settings.threads)]
            return step

    def _note_progress(self, done, total):
        with self._lock:
            self._progress = (done, total)

    def _need_settings(self):
        if self._settings is None:
            raise _named(Conflict("not initialised: call init_weight_transfer_engine first"))

    # ---- the update ----

    def _update(self, info):
        self._need_settings()
        if not info.version:  # whatever the image is at would be an update by chance
            raise InvalidArgument("update_info: version: expected a uid, 32 hex digits")
        if self._preparing:
            raise Conflict("a prepare is under way: wait for it")
        kernels.refuse_asleep(self.model)
        begin = time.monotonic()
        with weightcast.Image(self._settings.image) as image:
            if image.version != info.version:
                raise Conflict(f"the image {self._settings.image} is at version {image.version}, asked "
                               f"for {info.version}: prepare it first")
            self._place(image)
            self._placement.check_version(image)
            known = self._version and self._state != "fenced" and not info.full
            before = self._state
            self._state = "updating"
            try:
                if known and self._version == image.version:
                    touched = self._touched  # a driver that asks again may prove again
                elif known:
                    touched = self._delta(image)
                else:
                    touched = self._full(image)
                self._seconds["write"] = time.monotonic() - begin
                self._touched = sorted(touched)
                self._proofs = self._prove(image, self._touched)
            except _Untouched as error:
                self._state = before
                raise error.cause from error
            except BaseException as error:
                self._fence(f"update to version {image.number} ({image.version}): {error}")
                raise
            with self._lock:
                self._version, self._number = image.version, image.number
                self._state, self._reason, self._prepared = "serving", "", ""
                self._seconds["update"] = time.monotonic() - begin

    def _fence(self, reason):
        """Live weights are nobody knows what; nor is the map of them believed any longer."""
        self._placement, self._target = None, None
        with self._lock:
            self._state, self._reason = "fenced", reason
            self._version, self._number = "", -1

    def _place(self, image):
        """Records where the model's loaders put the image's tensors, once."""
        if self._placement is None or self._placement.specs != image.specs:
            self._placement = placement.record(self.model, self.model_config, image)
            self._target = None

    def _adopt(self):
        """After a cold start: what was loaded is what the image has, or this engine does not start."""
        with weightcast.Image(self._settings.image) as image:
            if image.version != self._version:
                raise Conflict(f"the image moved to {image.version} while {self._version} was loaded")
            self._place(image)
            self._placement.check_version(image)
            if self._settings.keep_canonical:
                self._full(image)
            else:
                self._bind(image)
            self._touched = list(range(len(image.specs)))
            self._prove(image, self._touched, rows=None)  # all of it: once, before anything is served

    def _full(self, image):
        """Everything anew from the image, by the model's own loaders."""
        if self._settings.keep_canonical:
            kernels.keep_canonical(self._placement)
        self._reload(image, set(self._placement.tensors_of))
        self._bind(image)
        return range(len(image.specs))

    def _delta(self, image):
        """In place where that is right, else by reloading the touched modules; all of it if no kept
        journal leads here, or live memory is no longer where it was."""
        place, target = self._placement, self._target
        step, self._ready = self._ready, None
        if step is None or (step.begins, step.ends) != (self._version, image.version):
            try:
                step = self._examine()
            except Error as error:
                raise _Untouched(error) from error
        if target is None or not step.journals or place.moved():
            return self._full(image)
        modules = set().union(*(place.modules_of[t] for t in step.touched))
        strange = set().union(*(place.modules_of[t] for t in step.strangers))
        stale = (modules & set(place.repacked)) | strange
        direct = [t for t in step.touched if target.units(t) > 0 and not place.modules_of[t] <= stale]
        for journal in step.journals:
            target.write(journal, direct, self._settings.threads)
        kernels.refresh_copies(place.modules[m] for m in sorted(place.tied_to(modules - stale)))
        if not stale:
            return step.touched
        reloaded = self._reload(image, stale)
        self._bind(image, keep=True)
        return reloaded.union(step.touched)

    def _reload(self, image, modules):
        """The given modules, and what is loaded from the same tensors, by vLLM's layerwise reload.
        Gives the tensors that were loaded."""
        place = self._placement
        tensors = place.closure(modules)
        loaded = {m for t in tensors for m in place.modules_of[t]}
        with placement.layerwise_reload(self.model, self.model_config) as notes_of:
            self.model.load_weights((image.specs[t][0], image.torch(image.specs[t][0]))
                                    for t in place.in_layer_order(tensors))
            left = place.unfilled(loaded, notes_of)
            if left:
                raise DataLoss(f"the model's loaders left out {', '.join(left[:8])}")
        self._repack_experts(image, loaded)
        kernels.refresh_copies(place.modules[m] for m in sorted(place.tied_to(loaded)))
        return tensors

    def _repack_experts(self, image, modules):
        """vLLM 0.32 loads experts anew and forgets to pack them: seen by their being canonical."""
        for name in modules:
            pack = kernels.expert_packing(self._placement.modules[name])
            if pack is not None and self._placement.is_canonical(name, image):
                pack()

    def _bind(self, image, keep=False):
        """Finds live memory again, and which modules hold it as their loaders lay it."""
        place = self._placement
        known = dict(place.repacked) if keep else {}
        target = place.bind(image.hold, repacked=known)
        if not keep:
            wrong = set()
            for tensor, holding in self._live(target, range(len(image.specs))):
                if holding[:2] != self._expected(image, target, tensor):
                    wrong |= place.modules_of[tensor]
            lost = sorted(m for m in wrong if kernels.prove_memory(place, m, image) == "wrong")
            if lost:  # packed or not, these are not the version's weights
                raise DataLoss(f"live weights are not version {image.number} ({image.version}): "
                               f"{', '.join(lost[:8])}")
            if wrong:
                target = place.bind(image.hold, repacked=dict.fromkeys(
                    wrong, "its live bytes are not the version's: a kernel repacked them"))
        self._target = target

    # ---- proof ----

    def _live(self, target, tensors):
        """(tensor, (digest, units, span)) of what lies in live memory, for those that do."""
        held = [t for t in tensors if target.units(t) > 0]
        return zip(held, target.digest_live(held, self._settings.threads))

    def _expected(self, image, target, tensor):
        name, _, shape = image.specs[tensor]
        units = target.units(tensor)
        if units == image.units(name):
            return image.digests[tensor], units
        return target.digest_canonical(tensor, image.buffer(name))

    def _prove(self, image, tensors, rows=0):
        """[Proof] of what live memory holds of the tensors; raises DataLoss naming what differs.

        rows: 0: what is there only in a kernel's layout stays unproven; None: it is packed again, or
        probed with every row of the identity; else with so many, taken at random."""
        if self._placement.moved():  # somebody gave a parameter other memory
            self._bind(image)
        place, target = self._placement, self._target
        taken = {tensor: place.same_as.get(tensor, tensor) for tensor in tensors}
        live = dict(self._live(target, sorted(set(taken.values()))))
        modules = set().union(*(place.modules_of[t] for t in taken.values()))
        hows = {module: self._how(module, image, rows) for module in sorted(modules)}
        proofs, bad = [], []
        for tensor, at in taken.items():
            name = image.specs[tensor][0]
            found = [hows[module] for module in place.modules_of[at]] or [
                "live" if 0 in image.specs[tensor][2] else "unproven"]
            how = min(found, key=HOWS.index)
            holding = live.get(at, ("0" * 32, 0, ""))
            if at in live and holding[:2] != self._expected(image, target, at):
                bad.append(name)
            if how == "wrong":
                bad.append(f"{name} (in a kernel's layout)")
            elif how == "unproven":
                holding = ("0" * 32, 0, "")
            elif place.modules_of[at] & set(place.repacked):  # some of it is in no target's reach
                holding = place.canonical_share(at, image)
            proofs.append(Proof(name, how, *holding))
        if bad:
            raise DataLoss(f"live weights are not version {image.number} ({image.version}): "
                           f"{', '.join(sorted(bad)[:8])}")
        return proofs

    def _how(self, module, image, rows):
        """The worst of what can be said of a module's memory and of the copies that it computes with."""
        place, deep = self._placement, rows != 0
        hows = {"live"}
        # Experts that lie as their loader laid them are wrong, if their kernel packs: so of them all.
        if module in place.repacked or (deep and kernels.expert_packing(place.modules[module])):
            hows = {kernels.prove_memory(place, module, image) if deep else "unproven"} - {""}
        if deep:
            hows |= kernels.prove_copies(place, module, image, rows)
        return min(hows, key=HOWS.index, default="unproven")

    def _prove_op(self, scope):
        self._need_settings()
        if self._state == "fenced":
            raise Conflict(f"fenced: {self._reason}")
        if scope not in ("touched", "all"):
            raise InvalidArgument(f"scope {scope!r}: touched or all")
        with weightcast.Image(self._settings.image) as image:
            if image.version != self._version:
                raise Conflict(f"the image is at {image.version}, this engine at {self._version or 'none'}")
            try:
                if scope == "all":
                    proofs = self._prove(image, range(len(image.specs)), rows=None)
                elif not self._placement.moved() and kernels.are_plain(self._placement, self._touched):
                    proofs = self._proofs  # the update has digested all that there is
                else:
                    proofs = self._prove(image, self._touched, rows=kernels.SAMPLE_ROWS)
            except DataLoss as error:
                self._fence(f"prove: {error}")
                raise
        return {"worker": self.worker, "version": self._version,
                "tensors": [list(dataclasses.astuple(proof)) for proof in proofs]}


@dataclasses.dataclass
class _Step:
    """The way of live memory from one version to another."""

    begins: str
    ends: str
    journals: list = dataclasses.field(default_factory=list)  # none: everything must be reloaded
    touched: list = dataclasses.field(default_factory=list)
    strangers: list = dataclasses.field(default_factory=list)


class _Untouched(Exception):
    """An error before the first live byte changed."""

    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


def _parse(kind, given, what):
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise _named(InvalidArgument(f"{what}: unknown: {', '.join(unknown)}; known: "
                                     f"{', '.join(sorted(known))}"))
    return kind(**given)


def _named(error):
    """The error as it travels through vLLM, which keeps only the text: "weightcast CODE: ..."."""
    _let_go(error)
    if str(error).startswith("weightcast "):
        return error
    if not isinstance(error, Error):
        return InternalFault(f"weightcast internal: {type(error).__name__}: {error}")
    return type(error)(f"weightcast {error.code}: {error}")


def _let_go(error):
    """Frames of failed loaders keep views of the image, and those its hold, as long as anyone keeps
    the error."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _worker_rpc(worker, request: dict[str, Any]):
    engine = getattr(worker, "weight_transfer_engine", None)
    if not isinstance(engine, Engine):
        raise _named(Conflict("this engine was not started with --weight-transfer-config "
                              "'{\"backend\": \"weightcast\"}'"))
    if request.get("op") == "abandon":  # vLLM has no route that ends an update that nobody finished
        worker._weight_update_active = False
        engine.reset_weight_update_target()
        return {"worker": engine.worker}
    return engine.rpc(request)


def _add_rpc():
    """/collective_rpc finds methods on the worker: ours is the engine's."""
    from vllm.v1.worker.worker_base import WorkerBase

    WorkerBase.weightcast = _worker_rpc
