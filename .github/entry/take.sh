#!/usr/bin/env bash
# Take one entry out of a pull request: `take.sh BASE HEAD OUT`, in a repository that has both commits. Nothing of HEAD
# is checked out or run: only ordinary files of one folder submissions/NAME are copied to OUT/NAME.
# Prints NAME. Exit code 2, with one line: the pull request changes anything else.
set -euo pipefail
base=$(git rev-parse --verify "$1^{commit}") head=$(git rev-parse --verify "$2^{commit}") out=$3
refuse() {
  echo "entry: $1" >&2
  exit 2
}
changed=$(git -c core.quotePath=true diff --name-only --no-renames "$base...$head")
[[ -n $changed ]] || refuse "the pull request changes nothing"
name=
while IFS= read -r path; do
  [[ $path =~ ^submissions/([a-z0-9][a-z0-9_-]{0,59})/[A-Za-z0-9@._/-]+$ ]] || refuse "changes a file outside submissions/NAME"
  [[ -z $name || $name == "${BASH_REMATCH[1]}" ]] || refuse "changes the folders of two entries"
  [[ ${path##*/} != spot-check.json ]] || refuse "brings a spot-check.json, which only a check here writes"
  name=${BASH_REMATCH[1]}
done <<<"$changed"
others=$(git ls-tree -r "$head" -- "submissions/$name" | awk '$1 != "100644"' | wc -l)
[[ $others -eq 0 ]] || refuse "has links, submodules or executable files"
if before=$(git show "$base:submissions/$name/entry.toml" 2>/dev/null); then
  author() { grep -m 1 '^by *=' || true; }
  [[ $(author <<<"$before") == "$(git show "$head:submissions/$name/entry.toml" 2>/dev/null | author)" ]] ||
    refuse "changes the folder of another entrant: '$name' is there already"
fi
mkdir -p "$out"
git archive "$head" "submissions/$name" | tar -x -C "$out" --strip-components=1 --no-same-owner --no-same-permissions
rm -f "$out/$name/spot-check.json"
echo "$name"
