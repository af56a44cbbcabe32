"""The trained models that come with the package, and what their files say about them; no torch."""

import json
from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"


def bundled() -> dict[str, Path]:
    """Return name -> weights of every trained model in the package."""
    return {path.stem: path for path in sorted(WEIGHTS.glob("*.safetensors"))}


def read_header(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file without reading its tensors."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        metadata: dict[str, str] = json.loads(file.read(size)).get("__metadata__", {})
    return metadata
