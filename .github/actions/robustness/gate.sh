#!/usr/bin/env bash
# Evaluate models, compare them with baseline records, and write the table: what the action "Robustness gate" does.
# Everything comes in by the environment: RBK_MODEL, RBK_PROTOCOL, RBK_DATASET, RBK_LIMIT, RBK_OPTIONS, RBK_BASELINE,
# RBK_FAIL, RBK_OUT; see action.yml. Exit code: that of `rbk check`: 1 where a metric regressed, 2 on bad input.
set -euo pipefail
read -ra models <<<"${RBK_MODEL:-}"
read -ra protocols <<<"${RBK_PROTOCOL:-}"
read -ra options <<<"${RBK_OPTIONS:-}"
read -ra rules <<<"${RBK_FAIL:-}"
out=${RBK_OUT:-robustness}

# A report of an earlier run must not stand for this one, whatever fails: this one has failed until `rbk check` ends.
mkdir -p "$out"
rm -f "$out/check.xml"
printf '<!-- robustbench-kpca -->\n### Robustness\n\n**Failed: %s**\n' \
  'the run did not finish, so nothing was compared.' >"$out/check.md"
summarise() {
  if [[ -n ${GITHUB_STEP_SUMMARY:-} ]]; then cat "$out/check.md" >>"$GITHUB_STEP_SUMMARY"; fi
}
trap summarise EXIT

if ((${#models[@]})); then
  arguments=(--data "${RBK_DATASET:-digits}" --out "$out")
  for one in "${models[@]}"; do arguments+=(--model "$one"); done
  for one in ${protocols[@]+"${protocols[@]}"}; do arguments+=(--protocol "$one"); done
  if [[ -n ${RBK_LIMIT:-} ]]; then arguments+=(--limit "$RBK_LIMIT"); fi
  rbk eval "${arguments[@]}" ${options[@]+"${options[@]}"}
fi

arguments=("$out" --baseline "${RBK_BASELINE:?folder of baseline records}" --github)
for one in ${rules[@]+"${rules[@]}"}; do arguments+=(--fail "$one"); done
rbk check "${arguments[@]}" --junit "$out/check.xml" --markdown "$out/check.md"
