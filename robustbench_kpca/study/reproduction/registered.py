"""Whether a plan was registered before what it plans: its last commit must be behind the revision of every record."""

import re
from collections.abc import Iterable
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.git import git
from robustbench_kpca.records.record import Record

PLAN = "plan.md"


def registered(folder: Path, records: Iterable[Record]) -> str:
    """Say in which commit the plan of a pack was last changed, and that its records are younger.

    Empty where `folder` has no `plan.md`. Where a history is not here, or a revision is not in it, it says so: a copy
    without `.git` cannot tell. A revision counts only as a whole commit: `HEAD` would always be young enough.

    Raises:
        BadInputError: the plan has changes that are not committed, or a record's revision does not have it.
    """
    plan = folder / PLAN
    if not plan.is_file():
        return ""
    if git(folder, ["status", "--porcelain", "--", PLAN]):
        raise BadInputError(f"{plan} has changes that are not committed", fix=f"git restore {PLAN}, or commit it first")
    commit = git(folder, ["log", "-1", "--format=%H", "--", PLAN])
    untold = f"There is a plan ({PLAN}); whether it is older than the records cannot be told here"
    if not commit:
        return f"{untold}: no git history."
    revisions = {record.environment.revision: record.spec.model.name for record in records}
    unknown = 0
    for revision, model in revisions.items():
        made_at = (revision or "").removesuffix("+")
        if not re.fullmatch("[0-9a-f]{40}", made_at) or git(folder, ["cat-file", "-t", made_at]) != "commit":
            unknown += 1
        elif git(folder, ["merge-base", commit, made_at]) != commit:
            raise BadInputError(
                f"{plan} was changed in {commit[:8]}, after a record of {model} was made (revision {made_at[:8]})",
                expected="a plan that is older than its records; deviations go into another file",
            )
    if 0 < unknown == len(revisions):
        return f"{untold}: this history has none of their revisions."
    rest = f"; this history does not have {unknown} of their revisions" if unknown else ""
    return f"Planned in {PLAN}, commit {commit[:8]}, before the records were made{rest}."
