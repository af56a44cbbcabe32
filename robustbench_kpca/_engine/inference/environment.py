"""Describe where an evaluation ran: package versions, device, threads, git revision, determinism."""

import platform
from collections.abc import Collection, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from robustbench_kpca._core.git import blob, history_of
from robustbench_kpca._engine.inference.acceleration import compiled_as, float32_products
from robustbench_kpca.records.spec import Environment

PACKAGE = "robustbench-kpca"
PACKAGES = (PACKAGE, "torch", "triton", "torchvision", "timm", "numpy", "scipy", "opencv-python-headless")
FOREIGN = ("torchattacks", "pyautoattack", "foolbox", "imagecorruptions")
"""Libraries whose attacks or corruptions a protocol can use."""
_CHECKOUT = Path(__file__).parents[3]
_PARTS = ("robustbench_kpca", "attacks", "corruptions")
_CPUINFO = Path("/proc/cpuinfo")


def environment(device: torch.device) -> Environment:
    """Describe this process."""
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        processor=processor(),
        device=device_name(device),
        threads=torch.get_num_threads(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        packages={name: version(name) for name in PACKAGES + FOREIGN},
        revision=revision(),
        compiled=compiled_as(),
        float32=float32_products() if device.type == "cuda" else None,
    )


def device_name(device: torch.device) -> str:
    """Return the name of a device as records have it: the product's for CUDA, else its kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def place(device: torch.device) -> tuple[str, str]:
    """Return the names of a device and of the CPU beside it: times of one place say nothing about another."""
    return device_name(device), processor()


@cache
def version(package: str) -> str:
    """Return the installed version of a package, or `missing`."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def processor() -> str:
    """Return the name of the CPU, with its family and model where the system reports them.

    Virtual machines of one provider may share a name such as `AMD EPYC` and compute other last bits.
    """
    try:
        first = _CPUINFO.read_text().partition("\n\n")[0]
    except OSError:
        first = ""
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    name = facts.get("model name") or platform.processor() or platform.machine()
    family, model = facts.get("cpu family"), facts.get("model")
    return f"{name} (family {family}, model {model})" if family and model else name


@cache
def revision() -> str | None:
    """Git commit of this checkout, `+` marking uncommitted changes; None for an installed package.

    What is asked first holds for the whole process: code that is changed later was not loaded.
    """
    if not (_CHECKOUT / ".git").exists():
        return None
    with history_of(_CHECKOUT) as history:
        if history is None:
            return None
        committed = history.blobs(*_PARTS)
        files = (path for part in _PARTS for path in (_CHECKOUT / part).rglob("*") if path.is_file())
        sources = {path for path in files if "__pycache__" not in path.parts}
        return history.head + ("" if _are(sources, committed) else "+")


def _are(files: Collection[Path], committed: Mapping[str, str]) -> bool:
    digests = {path.relative_to(_CHECKOUT).as_posix(): blob(path.read_bytes()) for path in files}
    return digests == committed
