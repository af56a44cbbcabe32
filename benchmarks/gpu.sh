#!/usr/bin/env bash
# What needs a GPU, in one command each.
#
#     benchmarks/gpu.sh [measure] [--only PART,PART] [--resume] [--device cuda|cpu] [--quick] [--plan] [--out FOLDER]
#     RBK_DATA=data benchmarks/gpu.sh pack NAME [--item ITEM] [--jobs 6] [--minutes 45] [--device cuda|cpu] [--quick]
#                                               [--plan] [--out FOLDER]
#
# measure: tests, parity with the CPU, what is risky, tables, memory, in at most 45 minutes, the most valuable first. Each
# part has its own time; one that fails leaves the others. --plan lists them. summary.txt in the folder says after every
# part what became of it. --only: these parts alone. --resume: those that are not ok in that file; without --out, the
# newest folder goes on. --quick: the same plan with tiny sizes, to see whether it works (a few minutes on a CPU).
#
# pack: what a pack lacks: `rbk reproduce NAME --together`, --jobs at once, since a small model leaves most of a large GPU
# idle. Each takes what no other has begun; the last one says what is left. Nothing begins after --minutes; a training
# that is running then goes on after its last epoch when the script is started again. OUT is runs/NAME unless --out says
# otherwise; --out leaderboards/NAME adds to the pack itself. --quick: four samples of each set, in runs/NAME-quick.
#
# --plan: print the parts with their limits and commands, or the steps of the pack. PYTHON: which Python; default: that of .venv.
set -u
cd "$(dirname "$0")/.." || exit 2

what=measure
case ${1:-} in
  measure) shift ;;
  pack) what=pack name=${2:?pack needs a name, such as league-digits}; shift 2 ;;
esac
device=cuda quick='' plan='' out='' only='' resume='' jobs=6 minutes=45 items=()
while [ $# -gt 0 ]; do
  case "$what $1" in
    *' --device') device=${2:?--device needs cuda or cpu}; shift ;;
    *' --quick') quick=--quick ;;
    *' --plan') plan=yes ;;
    *' --out') out=${2:?--out needs a folder}; shift ;;
    'measure --only') only=$only,${2:?--only needs the name of a part}; shift ;;
    'measure --resume') resume=yes ;;
    'pack --jobs') jobs=${2:?--jobs needs a number}; shift ;;
    'pack --item') items+=(--item "${2:?--item needs the name of one}"); shift ;;
    'pack --minutes') minutes=${2:?--minutes needs a number}; shift ;;
    *) echo "unknown option $1 of $what; see the first lines of $0" >&2; exit 2 ;;
  esac
  shift
done

python=${PYTHON:-python3}
[ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ] && python=.venv/bin/python
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1

part() { # part NAME SECONDS COMMAND...
  local name=$1 seconds=$2 started=$SECONDS status
  shift 2
  case "${only:-,$name,}" in *",$name,"*) ;; *) return ;; esac
  if [ -n "$plan" ]; then
    echo "$name ($seconds s): $*"
    return
  fi
  if [ -n "$resume" ] && grep -qs "^$name  *ok " "$out/summary.txt"; then
    echo "== $name: ok before"
    return
  fi
  echo "== $name (at most $seconds s): $*"
  { echo "\$ $*"; echo; timeout "$seconds" "$@" 2>&1; } | tee "$out/$name.txt"
  status=${PIPESTATUS[0]}
  case $status in 0) status=ok ;; 124) status='out of time' ;; *) status="failed ($status)" ;; esac
  { grep -sv "^$name " "$out/summary.txt"; printf '%-16s %-14s %5d s\n' "$name" "$status" $((SECONDS - started)); } \
    > "$out/summary.partial"
  mv "$out/summary.partial" "$out/summary.txt"
}

known() { # known PART...: whether the plan has them all
  local parts name
  parts=" $(only='' plan=yes measure | cut -d' ' -f1 | tr '\n' ' ')"
  for name in "$@"; do
    case $parts in *" $name "*) ;; *) echo "unknown part $name; see $0 --plan" >&2; return 1 ;; esac
  done
}

measure() {
  local found loop sizes shapes models big case
  if [ -z "$plan" ]; then
    found=$("$python" - "$device" <<'PY'
import sys

import torch

import robustbench_kpca  # noqa: F401

if sys.argv[1] == "cuda" and not torch.cuda.is_available():
    sys.exit("there is no CUDA device; try --device cpu --quick")
print(torch.cuda.get_device_name().replace(" ", "-") if sys.argv[1] == "cuda" else "cpu")
PY
    ) || exit 2
    [ -n "$resume" ] && out=${out:-$(ls -d benchmarks/results/*-"$found" 2> /dev/null | tail -n 1)}
    out=${out:-benchmarks/results/$(date +%F)-$found}
    mkdir -p "$out" || exit 2
  fi
  if [ -n "$quick" ]; then
    loop=(--steps 5) sizes=(--repeats 1) shapes=(--shapes digits) models=(--models vit_digits --batch-size 2) big=(--quick)
  else
    loop=() sizes=(--repeats 15) shapes=(--shapes tiny base) models=() big=()
  fi
  part tests 240 "$python" -m pytest -n 0 -q -m 'cuda or not slow' tests/unit/engine/test_acceleration.py \
    tests/unit/engine/test_cuda.py
  part parity 180 "$python" benchmarks/gpu.py parity --device "$device" $quick
  part batches 120 "$python" benchmarks/gpu.py batches --device "$device" $quick
  for case in spsa l2 fab draws segmentation language processes compiled tf32; do
    part "$case" 90 "$python" benchmarks/gpu.py path --case "$case" --device "$device" $quick
  done
  part memory 60 "$python" benchmarks/gpu.py memory --device "$device" $quick
  part training 90 "$python" benchmarks/training.py vit_digits "${loop[@]}"
  part deit-tiny 300 "$python" benchmarks/gpu.py attacks --device "$device" --model deit_tiny_patch16_224 "${big[@]}"
  part syncs 60 "$python" benchmarks/gpu.py syncs --device "$device" $quick
  part attention 120 "$python" benchmarks/models.py attention --device "$device" "${shapes[@]}" "${sizes[@]}" \
    --only rpc sym
  part attention-bf16 120 "$python" benchmarks/models.py attention --device "$device" --dtype bfloat16 \
    "${shapes[@]}" "${sizes[@]}" --only rpc
  part models 90 "$python" benchmarks/models.py cost --device "$device" "${models[@]}" "${sizes[@]}"
  part vit-base 480 "$python" benchmarks/gpu.py attacks --device "$device" --model vit_base_patch16_224 --images 16 \
    --batch-size 16 "${big[@]}"
  [ -n "$plan" ] && return
  echo
  cat "$out/summary.txt"
  echo "written: $out"
  if grep -q 'failed\|out of time' "$out/summary.txt"; then exit 1; fi
}

pack() {
  local words=(-m robustbench_kpca reproduce "$name" --together --audit none --device "$device" --budget "${minutes}min" -q)
  words+=(-o "${out:-runs/$name${quick:+-quick}}" "${items[@]}")
  [ -n "$quick" ] && words+=(--limit 4)
  [ -n "$plan" ] && exec "$python" "${words[@]}" --plan
  export OMP_NUM_THREADS=1
  for _ in $(seq 2 "$jobs"); do "$python" "${words[@]}" > /dev/null 2>&1 & done
  "$python" "${words[@]}" > /dev/null
  wait
  exec "$python" "${words[@]}"
}

if [ -n "$only" ]; then
  # shellcheck disable=SC2086 # names of parts are words
  known ${only//,/ } || exit 2
  only=$only,
fi
"$what"
