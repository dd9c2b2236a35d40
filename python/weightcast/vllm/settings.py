"""What an engine must know to follow a run: given once, by init or by the load format."""

import dataclasses
import os

import weightcast
from weightcast.errors import InvalidArgument, NotFound


# Workers of a host share an image: all but the first wait for its pull, however large it is.
TURN_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """catalog, run: where versions are. image: this host's image directory, absolute. seed: a
    checkpoint directory to begin from. store: where bytes lie now, instead of what versions remember.
    threads: 0: all CPUs. durability: of the image. keep_canonical: on a CPU, linear layers keep their
    weights as the checkpoint lays them, so that deltas go in place, instead of vLLM's packed copies."""

    catalog: str
    run: str
    image: str
    seed: str = ""
    store: str = ""
    threads: int = 0
    durability: str = "host"
    keep_canonical: bool = False

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not field.type:
                raise InvalidArgument(f"{field.name} {value!r}: expected {field.type.__name__}")
        missing = [name for name in ("catalog", "run", "image") if not getattr(self, name)]
        if missing:
            raise InvalidArgument(f"missing: {', '.join(missing)}")
        if not os.path.isabs(self.image):
            raise InvalidArgument(f"image {self.image!r}: expected an absolute path, since "
                                  "workers may have another working directory")

        if self.durability not in ("host", "process"):
            raise InvalidArgument(f"durability {self.durability!r}: expected host or process")
        if self.threads < 0:
            raise InvalidArgument(f"threads {self.threads}: expected 0 (all CPUs) or more")

    @property
    def identity(self):
        """What an engine cannot change in its life; the rest says how, and may be told anew."""
        return self.catalog, self.run, self.image, self.keep_canonical

    @classmethod
    def parse(cls, given, where):
        """Settings from a dict. Raises InvalidArgument naming every key that is unknown."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise InvalidArgument(f"{where}: unknown: {', '.join(unknown)}; known: "
                                  f"{', '.join(sorted(known))}")
        try:
            return cls(**{"catalog": "", "run": "", "image": "", **given})
        except InvalidArgument as error:
            raise InvalidArgument(f"{where}: {error}") from error

    def uid(self, version):
        """Uid of a version that is named by number, alias, uid or "latest". Raises NotFound."""
        ready = [v for v in weightcast.versions(self.catalog, self.run) if v["state"] == "READY"]
        if version == "latest" and ready:
            return max(ready, key=lambda v: v["number"])["uid"]
        for row in ready:
            if version in (str(row["number"]), row["uid"], *row["aliases"]):
                return row["uid"]
        raise NotFound(f"run {self.run} has no version {version!r} that is READY")

    def pull(self, version, progress=None):
        """Brings the image to a version; see weightcast.pull."""
        return weightcast.pull(self.catalog, self.run, self.image, version=version, seed=self.seed,
                               store=self.store, durability=self.durability, threads=self.threads,
                               turn_seconds=TURN_SECONDS, progress=progress)
