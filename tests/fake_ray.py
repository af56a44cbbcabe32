"""Ray in this process: a task is done as soon as it is asked for. It stands in where starting a cluster takes too long.

`tests/faults/test_ray.py` has the same questions for a real cluster.
"""

from concurrent.futures import Future
from types import SimpleNamespace


class RayError(Exception):
    """As Ray's own."""


class FakeRay:
    """The functions of the module `ray` that we call.

    Args:
        resources: of the cluster.
        lost: numbers of the tasks whose process is lost.
        room: whether tasks ever start.

    """

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, resources=None, lost=(), room=True):
        self.resources, self.lost, self.room = {"CPU": 2} if resources is None else resources, set(lost), room
        self.tasks, self.connected, self.asked, self.cancelled = 0, False, {}, []

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
        return lambda function: SimpleNamespace(remote=lambda *given: self._task(function, *given))

    def _task(self, function, *given):
        self.tasks += 1
        answer = Future()
        if self.tasks in self.lost:
            answer.set_exception(RayError("The task died.\nWorker exit type: NODE_DIED Worker exit detail: ..."))
        elif self.room:
            answer.set_result(function(*given))
        else:
            self.resources = {}
        return Reference(answer)

    def put(self, value):
        return Reference(value)

    def get(self, reference):
        return reference.value

    def cancel(self, reference, *, force):
        self.cancelled.append(reference)


class Reference:
    """What was put into the object store, or what a task will have returned."""

    def __init__(self, value):
        self.value = value

    def future(self):
        return self.value
