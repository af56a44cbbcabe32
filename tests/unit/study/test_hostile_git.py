"""A pack's own git repository runs nothing: its configuration, attributes, hooks and submodules have no say."""

import os
import subprocess
from contextlib import suppress

import pytest
from stand_ins import posing_as

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.records.record import Record
from robustbench_kpca.study.reproduction.tables import registered

CANARY = "touched"
ATTRIBUTES = "* filter=evil diff=evil merge=evil\n"


def git(folder, *words):
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def made_at(revision):
    spec = posing_as(object, model=posing_as(object, name="net"))
    return posing_as(Record, spec=spec, environment=posing_as(object, revision=revision))


@pytest.fixture
def pack(tmp_path):
    """A folder with a plan in a history of one commit, whose index knows another time of it."""
    folder = tmp_path / "pack"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "plan.md").write_text("Ten seeds.\n")
    git(folder, "add", "plan.md")
    git(folder, "commit", "--quiet", "--message", "Plan")
    os.utime(folder / "plan.md", (1, 1))
    return folder


@pytest.fixture
def evil(tmp_path):
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path / CANARY}\n")
    script.chmod(0o755)
    return script


def fsmonitor(pack, evil):
    git(pack, "config", "core.fsmonitor", str(evil))


def signature(pack, evil):
    """A commit with a signature, which git would show by the program of the configuration."""
    raw = git(pack, "cat-file", "commit", "HEAD")
    head, _, message = raw.partition("\n\n")
    signed = f"{head}\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n aaaa\n -----END PGP SIGNATURE-----\n\n{message}\n"
    (pack.parent / "signed").write_text(signed)
    git(pack, "reset", "--quiet", "--soft", git(pack, "hash-object", "-t", "commit", "-w", "../signed"))
    git(pack, "config", "log.showSignature", "true")
    git(pack, "config", "gpg.program", str(evil))


def clean_filter(pack, evil):
    git(pack, "config", "filter.evil.clean", str(evil))
    (pack / ".gitattributes").write_text(ATTRIBUTES)


def process_filter_of_the_repository(pack, evil):
    git(pack, "config", "filter.evil.process", str(evil))
    (pack / ".git/info/attributes").write_text(ATTRIBUTES)


def external_diff(pack, evil):
    git(pack, "config", "diff.external", str(evil))
    git(pack, "config", "diff.evil.textconv", str(evil))
    git(pack, "config", "diff.evil.command", str(evil))
    (pack / ".gitattributes").write_text(ATTRIBUTES)


def included(pack, evil):
    (pack / "more").write_text(f"[core]\n\tfsmonitor = {evil}\n")
    git(pack, "config", "include.path", str(pack / "more"))


def worktree_configuration(pack, evil):
    git(pack, "config", "extensions.worktreeConfig", "true")
    git(pack, "config", "--worktree", "core.fsmonitor", str(evil))


def hooks(pack, evil):
    for name in ("post-index-change", "post-checkout", "reference-transaction", "query-watchman", "pre-auto-gc"):
        (pack / ".git/hooks" / name).unlink(missing_ok=True)
        (pack / ".git/hooks" / name).symlink_to(evil)
    git(pack, "config", "core.hooksPath", str(pack / ".git/hooks"))


def pagers_and_aliases(pack, evil):
    for key in ("core.pager", "pager.log", "pager.status", "core.editor", "core.sshCommand", "core.askPass"):
        git(pack, "config", key, str(evil))
    for name in ("log", "status", "rev-list", "rev-parse"):
        git(pack, "config", f"alias.{name}", f"!{evil}")


def submodule(pack, evil):
    """A submodule with a configuration of its own."""
    inner = pack / "inner"
    inner.mkdir()
    git(inner, "init", "--quiet")
    git(inner, "commit", "--quiet", "--allow-empty", "--message", "Begin")
    git(pack, "update-index", "--add", "--cacheinfo", f"160000,{git(inner, 'rev-parse', 'HEAD')},inner")
    git(pack, "commit", "--quiet", "--message", "Add")
    git(inner, "config", "core.fsmonitor", str(evil))
    git(pack, "config", "status.submoduleSummary", "true")


def lazy_objects(pack, evil):
    """A partial clone, whose missing objects git would fetch by a command."""
    tree = git(pack, "rev-parse", "HEAD^{tree}")
    (pack / ".git/objects" / tree[:2] / tree[2:]).unlink()
    for key, value in (
        ("core.repositoryFormatVersion", "1"), ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"), ("remote.origin.url", f"ext::{evil}"), ("protocol.ext.allow", "always"),
    ):  # fmt: skip
        git(pack, "config", key, value)


def elsewhere(pack, evil):
    """A `.git` file that leads to the repository, whose objects are another's."""
    fsmonitor(pack, evil)
    (pack / ".git").rename(pack.parent / "away")
    (pack.parent / "away/objects").rename(pack.parent / "objects")
    (pack.parent / "away/objects/info").mkdir(parents=True)
    (pack.parent / "away/objects/info/alternates").write_text(f"{pack.parent / 'objects'}\n")
    (pack / ".git").write_text("gitdir: ../away\n")


WAYS = (
    fsmonitor, signature, clean_filter, process_filter_of_the_repository, external_diff, included,
    worktree_configuration, hooks, pagers_and_aliases, submodule, lazy_objects, elsewhere,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_that_a_repository_names_is_run(way, pack, evil):
    head = git(pack, "rev-parse", "HEAD")
    way(pack, evil)
    (evil.parent / CANARY).unlink(missing_ok=True)  # making it may have run it
    with suppress(BadInputError):
        registered(pack, [made_at(head)])
    assert not (evil.parent / CANARY).exists()


def test_a_history_of_another_user_is_not_read(pack, monkeypatch):
    head = git(pack, "rev-parse", "HEAD")
    assert "is older" in registered(pack, [made_at(head)])
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "no git history" in registered(pack, [made_at(head)])
