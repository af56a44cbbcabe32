"""`rbk doctor`: versions, devices, disk, what is missing and the command that fixes it."""

import shutil
import sys
from importlib import metadata, util
from pathlib import Path

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Json

EXTRAS = {"reference": ("torchattacks", "pyautoattack")}
NEEDED_GB = 1.0


def doctor(json: Json = False) -> None:
    """Show versions, devices and disk, what is missing, and the command that fixes it."""
    rows = _facts()
    if json:
        _console.show_json([dict(zip(("what", "found", "fix"), row, strict=True)) for row in rows])
        return
    _console.show_table("", ("What", "Found", "To do"), rows)


def _facts() -> list[tuple[str, str, str]]:
    import torch

    from robustbench_kpca import presets
    from robustbench_kpca.evaluation.environment import PACKAGES, processor, revision, version
    from robustbench_kpca.models import bundled

    rows: list[tuple[str, str, str]] = [("python", sys.version.split()[0], "")]
    rows += [(name, version(name), "" if version(name) != "missing" else f"pip install {name}") for name in PACKAGES]
    rows.append(("revision", revision() or "installed package", ""))
    rows.append(("processor", f"{processor()}, {torch.get_num_threads()} threads", ""))
    cuda = torch.cuda.is_available()
    rows.append(
        (
            "cuda",
            torch.cuda.get_device_name() if cuda else "none",
            "" if cuda else "not needed; --device cuda wants one",
        )
    )
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    rows.append(("disk free here", f"{free:.1f} GB", "" if free > NEEDED_GB else "free some space"))
    rows.append(("presets", ", ".join(map(str, presets.roots())), ""))
    rows.append(
        ("bundled models", str(len(bundled())), "" if bundled() else "pip install --force-reinstall robustbench-kpca")
    )
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if util.find_spec(name) is None]
        fix = f"optional: pip install 'robustbench-kpca[{extra}]'" if missing else ""
        found = ", ".join(f"{name} {metadata.version(name)}" for name in packages if name not in missing)
        rows.append((f"extra '{extra}'", found or "not installed", fix))
    return rows
