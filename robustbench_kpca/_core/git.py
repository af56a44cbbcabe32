"""What git says of a checkout."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


def git(folder: Path, words: Sequence[str]) -> str | None:
    """Return what git prints; None where there is no git, no repository, or nothing of that name."""
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
