#!/usr/bin/env bash
# Check an entry and make a random part of its rows again: `again.sh FOLDER`. Its own code runs here, so this runs in a job
# without token, secrets and network, and what it prints is data for `say.sh`: one line, a verdict and two numbers.
# Weights are fetched first, by digest, before any code of the entry runs.
set -uo pipefail
folder=$1 log=$(mktemp -d)
verdict=refused rows=0 differing=0
python -c 'import sys; from pathlib import Path
from robustbench_kpca.report.entries import load_entry
from robustbench_kpca.verification.entries import GoneError, weights_of
try: weights_of(load_entry(Path(sys.argv[1])))
except GoneError: sys.exit(7)
except Exception: sys.exit(0)' "$folder" >"$log/fetch" 2>&1
if [[ $? -eq 7 ]]; then
  verdict=gone
else
  # The code sees no variable of the runner; what it prints stays in a file, since the runner obeys lines such as ::error
  apart=(unshare --user --map-current-user --net --pid --fork --mount-proc --kill-child)
  "${apart[@]}" true 2>/dev/null || apart=("${RBK_ENTRY_SHARE_NET:?no network namespace here}")
  env -i PATH="$PATH" HOME="$HOME" ${PYTHONPATH:+PYTHONPATH="$PYTHONPATH"} OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}" HF_HUB_OFFLINE=1 \
    "${apart[@]}" timeout "${RBK_ENTRY_SECONDS:-3600}" \
    rbk board enter --check "$folder" --samples "${RBK_ENTRY_SAMPLES:-298}" --seconds "${RBK_ENTRY_BEGIN:-3000}" --run-code \
    --other-versions --json >"$log/out" 2>"$log/err"
  if [[ $? -eq 124 ]]; then
    verdict=unfinished
  else
    read -r verdict rows differing < <(python -c 'import json, re, sys
found = json.loads("[" + re.split(r"(?m)^\[", open(sys.argv[1]).read())[-1])[0]
print(found["verdict"], found["rows"], found["differing"])' "$log/out" 2>/dev/null) || verdict=refused
  fi
fi
rm -rf "$log"
echo "verdict=$verdict rows=$rows differing=$differing"
