"""Manifests for Kubernetes fit the schemas, and run the words that were given."""

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError
from launch_fakes import EVAL, HOSTILE, Fakes, lint, printed

# What KubeRay's operator takes, of the fields that are used here: the types RayJobSpec, RayClusterSpec, HeadGroupSpec
# and WorkerGroupSpec in ray-operator/apis/ray/v1/{rayjob,raycluster}_types.go of github.com/ray-project/kuberay (their
# json tags; those without `omitempty` are required). A pod's template is checked apart, by the schemas of Kubernetes.
_START = {"type": "object", "additionalProperties": {"type": "string"}}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_HEAD = {
    "type": "object", "required": ["rayStartParams", "template"], "additionalProperties": False,
    "properties": {"serviceType": {"type": "string"}, "rayStartParams": _START, "template": {"type": "object"}},
}  # fmt: skip
_WORKERS = {
    "type": "object", "additionalProperties": False,
    "required": ["groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"],
    "properties": {
        "groupName": {"type": "string"}, "replicas": _COUNT, "minReplicas": _COUNT, "maxReplicas": _COUNT,
        "numOfHosts": _COUNT, "rayStartParams": _START, "template": {"type": "object"},
    },
}  # fmt: skip
_CLUSTER = {
    "type": "object", "required": ["headGroupSpec"], "additionalProperties": False,
    "properties": {
        "headGroupSpec": _HEAD, "workerGroupSpecs": {"type": "array", "items": _WORKERS},
        "rayVersion": {"type": "string"}, "enableInTreeAutoscaling": {"type": "boolean"},
    },
}  # fmt: skip
_RAY_JOB = {
    "type": "object", "additionalProperties": False,
    "properties": {
        "entrypoint": {"type": "string"}, "runtimeEnvYAML": {"type": "string"}, "backoffLimit": _COUNT,
        "activeDeadlineSeconds": _COUNT, "shutdownAfterJobFinishes": {"type": "boolean"},
        "ttlSecondsAfterFinished": _COUNT, "submissionMode": {"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode"]},
        "rayClusterSpec": _CLUSTER,
    },
}  # fmt: skip
KUBERAY = {"RayJob": _RAY_JOB, "RayCluster": _CLUSTER}
PLACE = ["--image", "ghcr.io/me/rbk:1.0", "--claim", "results:/results", "--claim", "data:/data"]


def checked(text):
    """Parse manifests and check each by its schema; return them by kind."""
    found = {document["kind"]: document for document in yaml.safe_load_all(text)}
    for kind, document in found.items():
        if kind not in KUBERAY:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
            continue
        assert document["apiVersion"] == "ray.io/v1"
        Draft202012Validator(KUBERAY[kind]).validate(document["spec"])
        cluster = document["spec"].get("rayClusterSpec", document["spec"])
        for group in (cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}
            kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    return found


def boxes(document):
    """Every container of a RayJob or RayCluster."""
    cluster = document["spec"].get("rayClusterSpec", document["spec"])
    groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]
    return [group["template"]["spec"]["containers"][0] for group in groups]


@pytest.mark.parametrize(
    ("options", "command", "kinds"),
    [
        ([], EVAL, ["ConfigMap", "Job"]),
        (["--gpus-per-node", "4"], ["train", "symvit_digits"], ["ConfigMap", "Job"]),
        (["--nodes", "4", "--memory-per-node", "64Gi", "--namespace", "mine"], EVAL, ["ConfigMap", "RayJob"]),
        (["--nodes", "1", "--engine", "ray", "--gpus-per-node", "0"], EVAL, ["ConfigMap", "RayJob"]),
        (["--nodes", "4"], [], ["RayCluster"]),
    ],
)
def test_manifests_fit_the_schemas(options, command, kinds, capsys):
    found = checked(printed(capsys, "kubernetes", *PLACE, *options, *(["--", *command] if command else [])))
    assert list(found) == kinds


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("groupName", "group"),
        ("image:", "images:"),
        ("entrypoint", "entryPoint"),
        ("minReplicas: 3", "minReplicas: -3"),
    ],
)
def test_a_misspelt_field_would_be_noticed(old, new, capsys):
    text = printed(capsys, "kubernetes", *PLACE, "--nodes", "4", "--", *EVAL)
    assert old in text
    with pytest.raises((ValidationError, kubernetes_validate.ValidationError)):
        checked(text.replace(old, new))


@pytest.mark.parametrize(
    ("options", "added"),
    [
        (["--nodes", "3"], ["--processes", "3", "--executor", "ray:auto"]),
        (["--gpus-per-node", "4"], ["--processes", "4"]),
    ],
    ids=["ray", "processes"],
)
def test_the_words_survive_the_manifest(options, added, tmp_path, capsys):
    fakes = Fakes(tmp_path)
    words = [*EVAL, *(word for text in HOSTILE for word in ("--log", text))]
    value = "$(VAR) 'x'"
    found = checked(printed(capsys, "kubernetes", *PLACE, *options, "--env", f"A={value}", "--", *words))
    assert "$$(VAR) 'x'" in str(found)  # Kubernetes would put a variable in place of $(VAR)
    script = found["ConfigMap"]["data"]["run.sh"]
    lint(script, tmp_path / "run.sh")
    assert "cd /results || exit 2\n" in script  # Ray starts its driver elsewhere
    assert fakes.run(script.replace("cd /results", f"cd {tmp_path}")) == 0
    assert fakes.of("rbk") == [words + added]
    assert not (tmp_path / "pwned").exists()


def test_every_node_gets_what_was_asked_for(capsys):
    options = ["--nodes", "5", "--gpus-per-node", "8", "--cpus-per-node", "96", "--memory-per-node", "1Ti"]
    found = checked(printed(capsys, "kubernetes", *PLACE, *options, "--env", "A=b", "--", *EVAL))["RayJob"]
    (workers,) = found["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (4, 4, 4)  # the head is the fifth
    for box in boxes(found):
        limits = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8"}
        assert box["resources"] == {"limits": limits, "requests": limits}
        assert {"name": "A", "value": "b"} in box["env"]
        assert {"/results", "/data"} < {mount["mountPath"] for mount in box["volumeMounts"]}


def test_bad_input_is_not_tried_again_and_evictions_are(capsys):
    job = checked(printed(capsys, "kubernetes", *PLACE, "--", *EVAL))["Job"]["spec"]
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] >= 30
    ignore, fail = job["podFailurePolicy"]["rules"]
    assert ignore["action"] == "Ignore"
    assert fail == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1, 2]}}


def test_a_job_of_torchrun_is_started_again_whatever_ended_it(capsys):
    """torchrun ends with 1, also where one of its processes was killed."""
    text = printed(capsys, "kubernetes", *PLACE, "--", "train", "symvit_digits")
    _, fail = checked(text)["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert fail["onExitCodes"]["values"] == [2]
