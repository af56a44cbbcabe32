"""Reads a git history without running any program that the repository's own files name.

git has no switch that ignores a repository's own configuration, which can name programs in dozens of ways. So git runs
in an empty repository of our own that borrows the objects alone: configuration, hooks, attributes, index, submodules
and places to fetch from stay behind.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import read_file

_COMMIT = re.compile("[0-9a-f]{40}")
_MOST_BYTES = 2**24
"""The most bytes that are read of a file that names commits, such as HEAD or packed-refs."""
_MOST_MEMORY = "256m"
"""The most that git allocates at once: an object that is packed small can be huge once it is unpacked."""
_TIMEOUT_SECONDS = 60
"""A question about a history takes milliseconds; a FIFO in place of an object would take for ever."""


@dataclass(frozen=True)
class History:
    """The commits from the one that is checked out back to the first.

    top: the folder that git calls the working tree.
    head: the commit that is checked out.
    scratch: a temporary repository without configuration, which reads the objects of the real one.
    """

    top: Path
    head: str
    scratch: Path

    def blob(self, path: str) -> str | None:
        """Return the digest of a file in the commit that is checked out; None if that commit has no such file."""
        return self._ask("rev-parse", "--verify", f"{self.head}:{path}")

    def blobs(self, *folders: str) -> dict[str, str]:
        """Return path -> digest of all files in these folders.

        Only for a repository that is trusted: a forged tree can list itself without end.
        """
        entries = (self._ask("ls-tree", "-r", "-z", self.head, "--", *folders) or "").split("\0")
        return {path: entry.split()[2] for entry, _, path in (line.partition("\t") for line in entries) if path}

    def last_change(self, path: str) -> str | None:
        """Return the last commit that changed a file."""
        return self._ask("rev-list", "-1", self.head, "--", path) or None

    def has(self, commit: str) -> bool:
        """Whether the objects hold this commit."""
        return bool(_COMMIT.fullmatch(commit)) and self._ask("cat-file", "-t", commit) == "commit"

    def is_ancestor(self, earlier: str, later: str) -> bool:
        """Whether `earlier` is `later` or one of the commits before it."""
        return self._ask("merge-base", "--is-ancestor", earlier, later) is not None

    def _ask(self, *words: str) -> str | None:
        """Return what git prints; None where there is no git, it fails, or it does not end."""
        command = ["git", "--literal-pathspecs", "-c", "core.commitGraph=false", *words]
        environment = {
            "PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.scratch), "GIT_DIR": str(self.scratch),
            "GIT_CONFIG_NOSYSTEM": "1", "GIT_ALLOC_LIMIT": _MOST_MEMORY,
        }  # fmt: skip
        try:
            completed = subprocess.run(
                command, cwd=self.scratch, env=environment, capture_output=True, check=False, timeout=_TIMEOUT_SECONDS,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return os.fsdecode(completed.stdout).strip() if completed.returncode == 0 else None


@contextmanager
def history_of(folder: Path) -> Iterator[History | None]:
    """Yield the history that a folder lies in; None where none can be read, or its repository is another user's."""
    folder = folder.resolve()
    top = next((above for above in (folder, *folder.parents) if os.path.lexists(above / ".git")), None)
    head, objects = None, None
    if top is not None:
        with suppress(BadInputError, OSError, ValueError):
            head, objects = _head_and_objects(top / ".git")
    if top is None or head is None or objects is None:
        yield None
        return
    with TemporaryDirectory(prefix="rbk-git-") as name:
        scratch = Path(name)
        (scratch / "refs").mkdir()
        (scratch / "objects/info").mkdir(parents=True)
        (scratch / "HEAD").write_text("ref: refs/heads/none\n")
        (scratch / "objects/info/alternates").write_bytes(os.fsencode(objects) + b"\n")
        yield History(top, head, scratch)


def blob(content: bytes) -> str:
    """Return the digest that git gives a file of this content, without filters."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _head_and_objects(repository: Path) -> tuple[str | None, Path | None]:
    """Return the commit that is checked out and the folder of the objects, also for a linked working tree.

    Both are None if the repository is another user's; the commit alone is None if there is none yet.
    """
    if repository.is_file():
        repository = repository.parent / _text(repository).removeprefix("gitdir: ")
    common_file = repository / "commondir"
    common = repository / _text(common_file) if common_file.is_file() else repository
    if common.stat().st_uid != os.geteuid():
        return None, None
    head = _text(repository / "HEAD")
    if head.startswith("ref: "):
        head = _commit_of(common, head.removeprefix("ref: "))
    return (head if _COMMIT.fullmatch(head) else None), (common / "objects").resolve()


def _commit_of(common: Path, name: str) -> str:
    """Return the commit of a branch, from its own file or else from `packed-refs`; empty if it is in neither."""
    if (common / name).is_file():
        return _text(common / name)
    lines = (line.split(" ") for line in _text(common / "packed-refs").splitlines())
    return next((words[0] for words in lines if words[1:] == [name]), "")


def _text(path: Path) -> str:
    return os.fsdecode(read_file(path, most=_MOST_BYTES)).strip()
