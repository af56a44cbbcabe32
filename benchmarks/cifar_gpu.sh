#!/usr/bin/env bash
# The trainings of the CIFAR-10 board on one large GPU, several small models at once: `_fast` for every arm, clean and
# adversarial, then the full recipes of the four main arms. What is missing is trained, the most valuable first.
#
#     RBK_DATA=data benchmarks/cifar_gpu.sh [--out runs/cifar10] [--jobs 6] [--minutes 45] [--device cuda|cpu] [--quick]
#
# One model of this size leaves most of such a GPU idle, so --jobs processes share it. Nothing begins after --minutes;
# what is running then is stopped and goes on after its last epoch when the script is started again. Then
# `rbk reproduce cifar10 -o OUT --device cuda` evaluates what is there. --plan: print the list only. --quick: two tiny
# trainings of the digits, to see whether the script works; without --out they go to runs/cifar10-quick. PYTHON: which
# Python; default: that of .venv.
set -u
cd "$(dirname "$0")/.." || exit 2

device=cuda quick='' plan='' out='' jobs=6 minutes=45
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=${2:?--device needs cuda or cpu}; shift ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift ;;
    --minutes) minutes=${2:?--minutes needs a number}; shift ;;
    --quick) quick=yes ;;
    --plan) plan=yes ;;
    *) echo "unknown option $1; see the first lines of $0" >&2; exit 2 ;;
  esac
  shift
done
[ -n "$out" ] || out=runs/cifar10${quick:+-quick}
python=${PYTHON:-python3}
[ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ] && python=.venv/bin/python
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1

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
export out quick end python
wanted | xargs -P "$jobs" -L 1 bash -c 'train "$0" "$1"'
missing=$(wanted | while read -r recipe seed; do
  [ -f "$out/trainings/$recipe-s$seed/$recipe-s$seed.safetensors" ] || echo "$recipe-s$seed"
done)
[ -z "$missing" ] && exit 0
printf 'not finished: %s\n' "$missing"
exit 1
