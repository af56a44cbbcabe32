#!/usr/bin/env bash
# Write the table of gate.sh as a comment on the pull request; the comment of an earlier run is replaced.
set -euo pipefail
body=${RBK_OUT:-robustness}/check.md
if [[ ! -f $body ]]; then
  echo "no $body: nothing was compared"
  exit 0
fi
comments=repos/$GITHUB_REPOSITORY/issues/${RBK_PULL_REQUEST:?number of the pull request}/comments
mine='.[] | select(.body | startswith("<!-- robustbench-kpca -->")) | .id'
earlier=$(gh api --paginate "$comments" --jq "$mine" | head -n 1)
if [[ -n $earlier ]]; then
  gh api --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$earlier" -F "body=@$body" --silent
else
  gh api --method POST "$comments" -F "body=@$body" --silent
fi
