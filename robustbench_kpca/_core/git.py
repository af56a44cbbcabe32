"""What a git history holds, read so that nothing runs which its repository names.

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
_MOST = 2**24
"""Bytes of a file that names commits."""
_MEMORY = "256m"
"""The most that git allocates at once, for an object that is packed small."""
_SECONDS = 60
"""A question about a history takes milliseconds; a FIFO in place of an object would take for ever."""


@dataclass(frozen=True)
class History:
    """The commits from the one that is checked out back to the first.

    top: the folder that git calls the working tree.
    head: the commit that is checked out.
    borrowed: the empty repository that has the objects.
    """

    top: Path
    head: str
    borrowed: Path

    def blob(self, path: str) -> str | None:
        """Return the digest of a file of the commit that is checked out."""
        return self._ask("rev-parse", "--verify", f"{self.head}:{path}")

    def blobs(self, *folders: str) -> dict[str, str]:
        """Return the digests of all files in these folders. Not for strangers: a tree may list itself without end."""
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
            "PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.borrowed), "GIT_DIR": str(self.borrowed),
            "GIT_CONFIG_NOSYSTEM": "1", "GIT_ALLOC_LIMIT": _MEMORY,
        }  # fmt: skip
        try:
            done = subprocess.run(
                command, cwd=self.borrowed, env=environment, capture_output=True, check=False, timeout=_SECONDS,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return os.fsdecode(done.stdout).strip() if done.returncode == 0 else None


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
        borrowed = Path(name)
        (borrowed / "refs").mkdir()
        (borrowed / "objects/info").mkdir(parents=True)
        (borrowed / "HEAD").write_text("ref: refs/heads/none\n")
        (borrowed / "objects/info/alternates").write_bytes(os.fsencode(objects) + b"\n")
        yield History(top, head, borrowed)


def blob(content: bytes) -> str:
    """Return the digest that git gives a file of this content, without filters."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _head_and_objects(repository: Path) -> tuple[str | None, Path | None]:
    """Return the commit that is checked out, and the folder of the objects: also of a linked working tree."""
    if repository.is_file():
        repository = repository.parent / _text(repository).removeprefix("gitdir: ")
    shared = repository / "commondir"
    common = repository / _text(shared) if shared.is_file() else repository
    if common.stat().st_uid != os.geteuid():
        return None, None
    head = _text(repository / "HEAD")
    if head.startswith("ref: "):
        head = _commit_of(common, head.removeprefix("ref: "))
    return (head if _COMMIT.fullmatch(head) else None), (common / "objects").resolve()


def _commit_of(common: Path, name: str) -> str:
    """Return what a branch names: in a file of its own, or a line of the file of all."""
    if (common / name).is_file():
        return _text(common / name)
    lines = (line.split(" ") for line in _text(common / "packed-refs").splitlines())
    return next((words[0] for words in lines if words[1:] == [name]), "")


def _text(path: Path) -> str:
    return os.fsdecode(read_file(path, most=_MOST)).strip()
