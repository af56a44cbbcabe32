#!/usr/bin/env bash
# Everything that needs a GPU, in one command and under 30 minutes: tests, parity with the CPU, tables, memory.
#
#     benchmarks/gpu.sh [--device cuda|cpu] [--quick] [--plan] [--out FOLDER]
#
# Each part has its own time; one that fails leaves the others. --quick: the same plan with tiny sizes, to see whether
# it works (about two minutes on a CPU). --plan: print the commands only. PYTHON: which Python; default: that of .venv.
set -u
cd "$(dirname "$0")/.." || exit 2

device=cuda quick='' plan='' out=''
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=${2:?--device needs cuda or cpu}; shift ;;
    --quick) quick=--quick ;;
    --plan) plan=yes ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    *) echo "unknown option $1; see the first lines of $0" >&2; exit 2 ;;
  esac
  shift
done

python=${PYTHON:-python3}
[ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ] && python=.venv/bin/python
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
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
  out=${out:-benchmarks/results/$(date +%F)-$found}
  mkdir -p "$out" || exit 2
fi

summary=()
part() { # part NAME SECONDS COMMAND...
  local name=$1 seconds=$2 started=$SECONDS status
  shift 2
  if [ -n "$plan" ]; then
    echo "$name ($seconds s): $*"
    return
  fi
  echo "== $name (at most $seconds s): $*"
  { echo "\$ $*"; echo; timeout "$seconds" "$@" 2>&1; } | tee "$out/$name.txt"
  status=${PIPESTATUS[0]}
  case $status in 0) status=ok ;; 124) status='out of time' ;; *) status="failed ($status)" ;; esac
  summary+=("$(printf '%-16s %-14s %5d s' "$name" "$status" $((SECONDS - started)))")
}

if [ -n "$quick" ]; then
  sizes=(--repeats 1) shapes=(--shapes digits) models=(--models vit_digits --batch-size 2) big=(--quick)
else
  sizes=(--repeats 15) shapes=(--shapes tiny base) models=() big=()
fi
part tests 240 "$python" -m pytest -n 0 -q -m 'cuda or not slow' tests/unit/test_fused_attention.py \
  tests/unit/test_acceleration.py tests/unit/test_cuda.py
part parity 180 "$python" benchmarks/gpu.py parity --device "$device" $quick
part attention 150 "$python" benchmarks/attention.py --device "$device" "${shapes[@]}" "${sizes[@]}" --only rpc fused sym
part attention-bf16 120 "$python" benchmarks/attention.py --device "$device" --dtype bfloat16 "${shapes[@]}" \
  "${sizes[@]}" --only rpc fused
part models 120 "$python" benchmarks/models.py --device "$device" "${models[@]}" "${sizes[@]}"
part syncs 120 "$python" benchmarks/gpu.py syncs --device "$device" $quick
part deit-tiny 300 "$python" benchmarks/gpu.py attacks --device "$device" --model deit_tiny_patch16_224 "${big[@]}"
part vit-base 480 "$python" benchmarks/gpu.py attacks --device "$device" --model vit_base_patch16_224 --images 16 \
  --batch-size 16 "${big[@]}"

[ -n "$plan" ] && exit 0
printf '%s\n' '' "${summary[@]}" | tee "$out/summary.txt"
echo "written: $out"
case "${summary[*]}" in *failed* | *'out of time'*) exit 1 ;; esac
