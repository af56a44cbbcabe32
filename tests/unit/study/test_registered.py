"""A plan is a plan only before a record, and a pack's own git repository runs nothing when it is asked."""

import os
import shutil
import subprocess
from contextlib import suppress
from functools import partial

import pytest
from stand_ins import posing_as

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.records.record import Record
from robustbench_kpca.study.reproduction.tables import registered

CANARY = "touched"
ATTRIBUTES = "* filter=evil diff=evil merge=evil\n"


def git_in(folder, *words):
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def git(tmp_path):
    git_in(tmp_path, "init", "--quiet")
    git_in(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "Begin")
    return partial(git_in, tmp_path)


def commit(git, folder, **files):
    for name, text in files.items():
        (folder / f"{name}.md").write_text(text)
        git("add", f"{name}.md")
    git("commit", "--quiet", "--message", "Write")
    return git("rev-parse", "HEAD")


def made_at(revision):
    spec = posing_as(object, model=posing_as(object, name="net"))
    return posing_as(Record, spec=spec, environment=posing_as(object, revision=revision))


def test_records_at_the_plan_follow_it_and_those_of_another_history_do_not(git, tmp_path):
    planned = commit(git, tmp_path, plan="Ten seeds.")
    later = commit(git, tmp_path, notes="A deviation.")
    said = registered(tmp_path, [made_at(planned), made_at(f"{later}+")])
    named = f"the plan of this pack (plan.md, commit {planned[:8]})"
    assert said == f"By its maker's history, {named} is older than the records."
    assert "cannot be told here: this history has none" in registered(tmp_path, [made_at("0" * 40), made_at(None)])


@pytest.mark.parametrize("mark", ["", "+"])
def test_a_plan_that_was_changed_after_a_record_is_refused(git, tmp_path, mark):
    before = commit(git, tmp_path, plan="Ten seeds.")
    after = commit(git, tmp_path, plan="Five seeds.")
    with pytest.raises(BadInputError, match=f"{after[:8]}, after a record of net was made .revision {before[:8]}"):
        registered(tmp_path, [made_at(after), made_at(before + mark)])


@pytest.mark.parametrize("revision", [None, "0" * 40, "--all", "HEAD"])
def test_a_revision_that_the_history_lacks_is_said(git, tmp_path, revision):
    planned = commit(git, tmp_path, plan="Ten seeds.")
    said = registered(tmp_path, [made_at(planned), made_at(revision)])
    assert said.endswith("is older than the records; this history does not have 1 of their revisions.")


def test_plans_that_are_not_committed_are_refused(git, tmp_path):
    (tmp_path / "plan.md").write_text("Ten seeds.")
    with pytest.raises(BadInputError, match="not committed"):
        registered(tmp_path, [made_at(git("rev-parse", "HEAD"))])
    planned = commit(git, tmp_path, plan="Ten seeds.")
    (tmp_path / "plan.md").write_text("Five seeds.")
    with pytest.raises(BadInputError, match=r"plan\.md has changes that are not committed"):
        registered(tmp_path, [made_at(planned)])
    shutil.rmtree(tmp_path / ".git")
    assert "no git history" in registered(tmp_path, [made_at("0" * 40)])


def test_a_linked_working_tree_with_packed_branches_is_read(git, tmp_path):
    planned = commit(git, tmp_path, plan="Ten seeds.")
    git("worktree", "add", "--quiet", "tree")
    git("pack-refs", "--all")
    git("gc", "--quiet")
    assert "older than the records." in registered(tmp_path / "tree", [made_at(planned)])


@pytest.fixture
def pack(tmp_path):
    """A folder with a plan in a history of one commit, whose index knows another time of it."""
    folder = tmp_path / "pack"
    folder.mkdir()
    git_in(folder, "init", "--quiet")
    (folder / "plan.md").write_text("Ten seeds.\n")
    git_in(folder, "add", "plan.md")
    git_in(folder, "commit", "--quiet", "--message", "Plan")
    os.utime(folder / "plan.md", (1, 1))
    return folder


@pytest.fixture
def evil(tmp_path):
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path / CANARY}\n")
    script.chmod(0o755)
    return script


def fsmonitor(pack, evil):
    git_in(pack, "config", "core.fsmonitor", str(evil))


def signature(pack, evil):
    """A commit with a signature, which git would show by the program of the configuration."""
    raw = git_in(pack, "cat-file", "commit", "HEAD")
    head, _, message = raw.partition("\n\n")
    signed = f"{head}\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n aaaa\n -----END PGP SIGNATURE-----\n\n{message}\n"
    (pack.parent / "signed").write_text(signed)
    git_in(pack, "reset", "--quiet", "--soft", git_in(pack, "hash-object", "-t", "commit", "-w", "../signed"))
    git_in(pack, "config", "log.showSignature", "true")
    git_in(pack, "config", "gpg.program", str(evil))


def clean_filter(pack, evil):
    git_in(pack, "config", "filter.evil.clean", str(evil))
    (pack / ".gitattributes").write_text(ATTRIBUTES)


def process_filter_of_the_repository(pack, evil):
    git_in(pack, "config", "filter.evil.process", str(evil))
    (pack / ".git/info/attributes").write_text(ATTRIBUTES)


def external_diff(pack, evil):
    git_in(pack, "config", "diff.external", str(evil))
    git_in(pack, "config", "diff.evil.textconv", str(evil))
    git_in(pack, "config", "diff.evil.command", str(evil))
    (pack / ".gitattributes").write_text(ATTRIBUTES)


def included(pack, evil):
    (pack / "more").write_text(f"[core]\n\tfsmonitor = {evil}\n")
    git_in(pack, "config", "include.path", str(pack / "more"))


def worktree_configuration(pack, evil):
    git_in(pack, "config", "extensions.worktreeConfig", "true")
    git_in(pack, "config", "--worktree", "core.fsmonitor", str(evil))


def hooks(pack, evil):
    for name in ("post-index-change", "post-checkout", "reference-transaction", "query-watchman", "pre-auto-gc"):
        (pack / ".git/hooks" / name).unlink(missing_ok=True)
        (pack / ".git/hooks" / name).symlink_to(evil)
    git_in(pack, "config", "core.hooksPath", str(pack / ".git/hooks"))


def pagers_and_aliases(pack, evil):
    for key in ("core.pager", "pager.log", "pager.status", "core.editor", "core.sshCommand", "core.askPass"):
        git_in(pack, "config", key, str(evil))
    for name in ("log", "status", "rev-list", "rev-parse"):
        git_in(pack, "config", f"alias.{name}", f"!{evil}")


def submodule(pack, evil):
    """A submodule with a configuration of its own."""
    inner = pack / "inner"
    inner.mkdir()
    git_in(inner, "init", "--quiet")
    git_in(inner, "commit", "--quiet", "--allow-empty", "--message", "Begin")
    git_in(pack, "update-index", "--add", "--cacheinfo", f"160000,{git_in(inner, 'rev-parse', 'HEAD')},inner")
    git_in(pack, "commit", "--quiet", "--message", "Add")
    git_in(inner, "config", "core.fsmonitor", str(evil))
    git_in(pack, "config", "status.submoduleSummary", "true")


def lazy_objects(pack, evil):
    """A partial clone, whose missing objects git would fetch by a command."""
    tree = git_in(pack, "rev-parse", "HEAD^{tree}")
    (pack / ".git/objects" / tree[:2] / tree[2:]).unlink()
    for key, value in (
        ("core.repositoryFormatVersion", "1"), ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"), ("remote.origin.url", f"ext::{evil}"), ("protocol.ext.allow", "always"),
    ):  # fmt: skip
        git_in(pack, "config", key, value)


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
    head = git_in(pack, "rev-parse", "HEAD")
    way(pack, evil)
    (evil.parent / CANARY).unlink(missing_ok=True)  # making it may have run it
    with suppress(BadInputError):
        registered(pack, [made_at(head)])
    assert not (evil.parent / CANARY).exists()


def test_a_history_of_another_user_is_not_read(pack, monkeypatch):
    head = git_in(pack, "rev-parse", "HEAD")
    assert "is older" in registered(pack, [made_at(head)])
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "no git history" in registered(pack, [made_at(head)])
