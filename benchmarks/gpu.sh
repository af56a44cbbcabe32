#!/usr/bin/env bash
# What needs a GPU, in one command each.
#
#     benchmarks/gpu.sh [measure] [--only PART,PART] [--resume] [--device cuda|cpu] [--quick] [--plan] [--out FOLDER]
#     RBK_DATA=data benchmarks/gpu.sh trainings [--jobs 6] [--minutes 45] [--device cuda|cpu] [--quick] [--plan] [--out FOLDER]
#
# measure: tests, parity with the CPU, what is risky, tables, memory, in at most 45 minutes, the most valuable first. Each
# part has its own time; one that fails leaves the others. --plan lists them. summary.txt in the folder says after every
# part what became of it. --only: these parts alone. --resume: those that are not ok in that file; without --out, the
# newest folder goes on. --quick: the same plan with tiny sizes, to see whether it works (a few minutes on a CPU).
#
# trainings: those of the CIFAR-10 board on one large GPU, several small models at once: `_fast` for every arm, clean and
# adversarial, then the full recipes of the four main arms. What is missing is trained, the most valuable first. One
# model of this size leaves most of such a GPU idle, so --jobs processes share it. Nothing begins after --minutes; what
# is running then is stopped and goes on after its last epoch when the script is started again. Then `rbk reproduce
# cifar10 -o OUT --device cuda` evaluates what is there. OUT is runs/cifar10 unless --out says otherwise. --quick: two
# tiny trainings of the digits, to see whether the script works; without --out they go to runs/cifar10-quick.
#
# --plan: print the parts with their limits and commands, or the list only. PYTHON: which Python; default: that of .venv.
set -u
cd "$(dirname "$0")/.." || exit 2

what=measure
case ${1:-} in measure | trainings) what=$1; shift ;; esac
device=cuda quick='' plan='' out='' only='' resume='' jobs=6 minutes=45
while [ $# -gt 0 ]; do
  case "$what $1" in
    *' --device') device=${2:?--device needs cuda or cpu}; shift ;;
    *' --quick') quick=--quick ;;
    *' --plan') plan=yes ;;
    *' --out') out=${2:?--out needs a folder}; shift ;;
    'measure --only') only=$only,${2:?--only needs the name of a part}; shift ;;
    'measure --resume') resume=yes ;;
    'trainings --jobs') jobs=${2:?--jobs needs a number}; shift ;;
    'trainings --minutes') minutes=${2:?--minutes needs a number}; shift ;;
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
  part tests 240 "$python" -m pytest -n 0 -q -m 'cuda or not slow' tests/unit/test_fused_attention.py \
    tests/unit/test_acceleration.py tests/unit/test_cuda.py
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
    --only rpc fused sym
  part attention-bf16 120 "$python" benchmarks/models.py attention --device "$device" --dtype bfloat16 \
    "${shapes[@]}" "${sizes[@]}" --only rpc fused
  part models 90 "$python" benchmarks/models.py cost --device "$device" "${models[@]}" "${sizes[@]}"
  part vit-base 480 "$python" benchmarks/gpu.py attacks --device "$device" --model vit_base_patch16_224 --images 16 \
    --batch-size 16 "${big[@]}"
  [ -n "$plan" ] && return
  echo
  cat "$out/summary.txt"
  echo "written: $out"
  if grep -q 'failed\|out of time' "$out/summary.txt"; then exit 1; fi
}

main='rpc_symvit identity_symvit symvit vit'
others='rpc_symvit_all scaled_vit primal_vit kep_svgp_vit fan symfan rpc_fan'
list() { # list SEED SUFFIX ARM...
  local seed=$1 suffix=$2 arm
  shift 2
  for arm in "$@"; do echo "${arm}_cifar${suffix} $seed"; done
}
wanted() {
  if [ -n "$quick" ]; then
    list 0 _fast symvit vit
    return
  fi
  # shellcheck disable=SC2086 # names of arms are words
  { list 0 _fast $main; list 0 _fast_adv $main; list 0 _fast $others; list 1 _fast $main; list 2 _fast $main
    list 0 _fast_adv $others; list 1 _fast_adv $main; list 2 _fast_adv $main; list 0 '' $main; }
}
train() { # train RECIPE SEED: nothing begins after the end
  local name=$1-s$2 left=$((end - $(date +%s)))
  [ "$left" -gt 0 ] || return 0
  local folder=$out/trainings/$name more=()
  [ -n "$quick" ] && more=(--set data=digits --set epochs=2)
  mkdir -p "$folder"
  timeout -k 20 "$left" "$python" -m robustbench_kpca train "$1" --seeds "$2" -q --resume -o "$folder" "${more[@]}" \
    >> "$folder/train.log" 2>&1
  echo "$(date +%T) $name: exit $?, $(tail -n 1 "$folder/train.log")"
}

trainings() {
  out=${out:-runs/cifar10${quick:+-quick}}
  if [ -n "$plan" ]; then
    wanted
    exit 0
  fi
  "$python" - "$device" <<'PY' || exit 2
import sys

import torch

if (sys.argv[1] == "cuda") != torch.cuda.is_available():
    sys.exit("training uses a CUDA device where there is one, and only there; --device must say so")
PY
  end=$(($(date +%s) + minutes * 60))
  export -f train
  export out quick end python OMP_NUM_THREADS=1
  wanted | xargs -P "$jobs" -L 1 bash -c 'train "$0" "$1"'
  local missing
  missing=$(wanted | while read -r recipe seed; do
    [ -f "$out/trainings/$recipe-s$seed/$recipe-s$seed.safetensors" ] || echo "$recipe-s$seed"
  done)
  [ -z "$missing" ] && exit 0
  printf 'not finished: %s\n' "$missing"
  exit 1
}

if [ -n "$only" ]; then
  # shellcheck disable=SC2086 # names of parts are words
  known ${only//,/ } || exit 2
  only=$only,
fi
"$what"
