"""Ray in this process: what is asked of an actor is done at once. It stands in where starting a cluster takes too long.

`tests/faults/test_ray.py` has the same questions for a real cluster.
"""

from collections import Counter
from types import SimpleNamespace


class RayError(Exception):
    """As Ray's own."""


class FakeRay:
    """The functions of the module `ray` that we call.

    Args:
        resources: of the cluster.
        lost: numbers of calls of `make`, counted over all actors, at which an actor is lost.
        room: whether actors ever start.

    """

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, resources=None, lost=(), room=True):
        self.resources, self.lost, self.room = {"CPU": 2} if resources is None else resources, set(lost), room
        self.calls, self.connected, self.asked = Counter(), False, {}
        self.alive = set()

    def is_initialized(self):
        return self.connected

    def init(self, **asked):
        if asked["address"] == "nowhere:1":
            raise ConnectionError("Could not find any running Ray instance.\nMore lines.")
        self.asked, self.connected = asked, True

    def shutdown(self):
        self.connected = False

    def cluster_resources(self):
        return self.resources

    def remote(self, **needs):
        self.needs = needs
        return lambda cls: SimpleNamespace(remote=lambda: self._actor(cls()))

    def _actor(self, made):
        self.alive.add(made)
        return SimpleNamespace(
            made=made, **{name: Method(self, made, name) for name in ("ready", "make", "told", "stop")}
        )

    def put(self, value):
        return Reference(value)

    def get(self, reference):
        if isinstance(reference.value, RayError):
            raise reference.value
        return reference.value

    def wait(self, references, *, num_returns, timeout):
        assert 0 < num_returns <= len(references)
        assert len(set(map(id, references))) == len(references)
        return (list(references), []) if self.room else ([], list(references))

    def kill(self, handle):
        self.alive.discard(handle.made)


class Reference:
    """What a call will have returned."""

    def __init__(self, value):
        self.value = value


class Method:
    """A method of an actor."""

    def __init__(self, ray, made, name):
        self.ray, self.made, self.name = ray, made, name

    def options(self, *, concurrency_group):
        assert concurrency_group in self.ray.needs["concurrency_groups"]
        return self

    def remote(self, *given):
        self.ray.calls[self.name] += 1
        if self.name == "make" and self.ray.calls["make"] in self.ray.lost:
            self.ray.alive.discard(self.made)
            return Reference(RayError("The actor died.\nWorker exit type: NODE_DIED Worker exit detail: ..."))
        return Reference(getattr(self.made, self.name)(*given))
