"""What `rbk list machine` shows: versions, devices, free disk space, missing packages and how to install them."""

import re
import shutil
import sys
from importlib import util
from pathlib import Path

EXTRAS = {"reference": ("torchattacks", "pyautoattack", "foolbox", "imagecorruptions")}
NEEDED_GB = 1.0


def facts() -> list[dict[str, str]]:
    """Return what is there, what was found of it, and what to do where it is missing."""
    from robustbench_kpca.protocols import presets

    rows: list[tuple[str, str, str]] = [("python", sys.version.split()[0], "")]
    for name in _requirements():
        version = _version(name)
        rows.append((name, version or "missing", "" if version else f"pip install {name}"))
    rows += _torch() if util.find_spec("torch") else []
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    rows.append(("disk free here", f"{free:.1f} GB", "" if free > NEEDED_GB else "free some space"))
    rows.append(("presets", ", ".join(map(str, presets.roots())), ""))
    for extra, packages in EXTRAS.items():
        there = [f"{name} {_version(name)}" for name in packages if _version(name)]
        fix = "" if len(there) == len(packages) else f"optional: pip install 'robustbench-kpca[{extra}]'"
        rows.append((f"extra '{extra}'", ", ".join(there) or "not installed", fix))
    return [{"what": what, "found": here, "fix": fix} for what, here, fix in rows]


def _torch() -> list[tuple[str, str, str]]:
    import torch

    from robustbench_kpca._engine.inference.environment import processor, revision
    from robustbench_kpca.models.bundle import bundled

    cuda = torch.cuda.is_available()
    return [
        ("revision", revision() or "installed package", ""),
        ("processor", f"{processor()}, {torch.get_num_threads()} threads", ""),
        ("cuda", torch.cuda.get_device_name() if cuda else "none", "" if cuda else "not needed"),
        ("bundled models", str(len(bundled())), "" if bundled() else "reinstall robustbench-kpca"),
    ]


def _requirements() -> list[str]:
    """Return the names of the required packages, without optional extras."""
    from importlib import metadata

    lines = metadata.requires("robustbench-kpca") or []
    return [re.split(r"[^A-Za-z0-9_.-]", line)[0] for line in lines if "extra ==" not in line]


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
