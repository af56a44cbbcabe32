"""Manifests for Kubernetes: a Job for one machine, a RayJob or RayCluster of KubeRay for several. No torch.

Sources: the API of Kubernetes (batch/v1 Job) and of KubeRay (https://github.com/ray-project/kuberay, ray.io/v1).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.launch.request import LABEL, Command, Engine, Machines, parse_name

GRACE = 60
"""Seconds between SIGTERM and SIGKILL; `rbk` needs at most 30."""
RETRIES = 20
_SCRIPTS = "/etc/rbk"
_SHARED_MEMORY = "shm"
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_MEMORY = re.compile(r"[1-9]\d*([kMGT]|[KMGT]i)?")
_PATH = re.compile(r"/[A-Za-z0-9._/-]+")


@dataclass(frozen=True)
class Place:
    """Where a job runs.

    Attributes:
        image: container with this package, and with Ray where that is used.
        claims: name of a persistent volume claim -> folder where it appears.
        namespace: empty: that of kubectl.

    """

    image: str
    claims: Sequence[tuple[str, str]]
    namespace: str = ""

    def check(self) -> None:
        """Refuse what Kubernetes would refuse, and a job whose results nobody would keep.

        Raises:
            BadInputError: an image, claim, folder or namespace that cannot be one, or no claim.

        """
        if not _IMAGE.fullmatch(self.image):
            raise BadInputError(f"--image {self.image[:80]!r}", expected="such as ghcr.io/me/rbk:1.0")
        if self.namespace:
            parse_name("--namespace", self.namespace, LABEL, 63)
        if not self.claims:
            raise BadInputError("no --claim: the results would be lost with the pod", fix="--claim CLAIM:/results")
        if len({path for _, path in self.claims}) < len(self.claims):
            raise BadInputError("two claims at one folder", expected="--claim CLAIM:FOLDER with different folders")
        for _, path in self.claims:
            if f"{path}/".startswith(f"{_SCRIPTS}/") or path == "/dev/shm":  # noqa: S108 (no file is written there)
                raise BadInputError(f"--claim …:{path}", expected="another folder: this one is taken")


def parse_claim(text: str) -> tuple[str, str]:
    """Read CLAIM:FOLDER.

    Raises:
        BadInputError: no such pair.

    """
    name, _, path = text.partition(":")
    if not _PATH.fullmatch(path) or ".." in path.split("/") or not path.strip("/"):
        raise BadInputError(f"--claim {text[:80]!r}", expected="CLAIM:/FOLDER")
    return parse_name("--claim", name, LABEL, 63), path.rstrip("/")


def manifest(command: Command | None, machines: Machines, place: Place) -> str:
    """Return the manifests as YAML.

    The command is a shell script in a ConfigMap: Ray does not hand words on unchanged (`ray job submit` joins them as
    Windows does). Without a command it is a RayCluster.

    Raises:
        BadInputError: what Kubernetes would refuse.

    """
    place.check()
    machines.require_few(Engine.ray if command is None else command.engine)
    parse_name("--name", machines.name, LABEL, 47)  # KubeRay adds up to 16 letters
    if machines.memory and not _MEMORY.fullmatch(machines.memory):
        raise BadInputError(f"--memory {machines.memory[:40]!r}", expected="a quantity of Kubernetes, such as 64Gi")
    if command is None:
        return _yaml(_object("ray.io/v1", "RayCluster", machines, place, _cluster(machines, place, scripts=False)))
    if machines.nodes > 1 and command.engine != "ray":
        raise BadInputError(
            f"--engine {command.engine} with {machines.nodes} nodes on Kubernetes",
            expected="Ray, or one node",
        )
    script = _object("v1", "ConfigMap", machines, place, None) | {"data": {"run.sh": _script(command, machines, place)}}
    return _yaml(script, _ray_job(machines, place) if command.engine == "ray" else _job(command, machines, place))


def _script(command: Command, machines: Machines, place: Place) -> str:
    each, every = str(machines.processes), str(machines.all_processes)
    if command.engine == "ray":
        line = f"rbk {command.line('--processes', every, '--executor', 'ray:auto')}"
    elif command.engine == "processes":
        line = f"rbk {command.line('--processes', each)}"
    else:
        line = f"torchrun --standalone --nproc-per-node={each} -m robustbench_kpca {command.line()}"
    literal = "# shellcheck disable=SC1003,SC2016 # what is in single quotes is meant as it stands"
    return f"#!/bin/bash\n{literal}\ncd {place.claims[0][1]} || exit 2\nexec {line}\n"  # Ray begins elsewhere


def _object(version: str, kind: str, machines: Machines, place: Place, spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": machines.name, "labels": {"app.kubernetes.io/name": "robustbench-kpca"}}
    if place.namespace:
        metadata["namespace"] = place.namespace
    found = {"apiVersion": version, "kind": kind, "metadata": metadata}
    return found if spec is None else found | {"spec": spec}


def _job(command: Command, machines: Machines, place: Place) -> dict[str, Any]:
    """Return a Job that starts an evicted pod again, and not one that found bad input: it would find it again.

    torchrun ends with 1 whatever code its processes ended with, so there 1 says nothing.
    """
    pod = _pod(machines, place, "rbk", command=["/bin/bash", f"{_SCRIPTS}/run.sh"])
    pod["spec"]["restartPolicy"] = "Never"
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "FailJob",
            "onExitCodes": {"operator": "In", "values": [2] if command.engine == "torchrun" else [1, 2]},
        },
    ]
    spec = {"backoffLimit": RETRIES, "podFailurePolicy": {"rules": rules}, "template": pod}
    return _object("batch/v1", "Job", machines, place, spec)


def _ray_job(machines: Machines, place: Place) -> dict[str, Any]:
    spec = {
        "entrypoint": f"/bin/bash {_SCRIPTS}/run.sh",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 600,
        "backoffLimit": 3,
        "rayClusterSpec": _cluster(machines, place, scripts=True),
    }
    return _object("ray.io/v1", "RayJob", machines, place, spec)


def _cluster(machines: Machines, place: Place, *, scripts: bool) -> dict[str, Any]:
    """Return a cluster whose head works, too. KubeRay tells Ray of CPUs and GPUs by the limits of the containers."""
    head = {"rayStartParams": {}, "template": _pod(machines, place, "ray-head", scripts=scripts)}
    found: dict[str, Any] = {"headGroupSpec": head}
    if machines.nodes > 1:
        others = machines.nodes - 1
        found["workerGroupSpecs"] = [
            {
                "groupName": "workers", "replicas": others, "minReplicas": others, "maxReplicas": others,
                "rayStartParams": {}, "template": _pod(machines, place, "ray-worker", scripts=scripts),
            }
        ]  # fmt: skip
    return found


def _pod(
    machines: Machines, place: Place, container: str, *, command: Sequence[str] = (), scripts: bool = True
) -> dict[str, Any]:
    limits: dict[str, Any] = {"cpu": str(machines.cpus)}
    if machines.memory:
        limits["memory"] = machines.memory
    if machines.gpus:
        limits["nvidia.com/gpu"] = str(machines.gpus)
    volumes: list[dict[str, Any]] = [
        {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": name}}
        for number, (name, _) in enumerate(place.claims)
    ]
    mounts = [{"name": f"claim-{number}", "mountPath": path} for number, (_, path) in enumerate(place.claims)]
    if scripts:
        volumes.append({"name": "scripts", "configMap": {"name": machines.name}})
        mounts.append({"name": "scripts", "mountPath": _SCRIPTS})
    if command:  # KubeRay does this itself; processes that load images hand them over through it
        volumes.append({"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": _SHARED_MEMORY, "mountPath": "/dev/shm"})  # noqa: S108 (no file is written here)
    environment = {"OMP_NUM_THREADS": "1"} | dict(machines.environment)
    box: dict[str, Any] = {
        "name": container,
        "image": place.image,
        "workingDir": place.claims[0][1],
        "env": [{"name": name, "value": value.replace("$(", "$$(")} for name, value in environment.items()],
        "resources": {"limits": limits, "requests": dict(limits)},
        "volumeMounts": mounts,
    }
    if command:
        box["command"] = list(command)
    return {"spec": {"containers": [box], "volumes": volumes, "terminationGracePeriodSeconds": GRACE}}


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and everything where it stands, without references."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _yaml(*documents: dict[str, Any]) -> str:
    head = "# Written by rbk launch: look through it, then: kubectl apply -f FILE\n"
    return head + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=4096, explicit_start=True)
