#!/usr/bin/env bash
# Build, tune, check and time every kernel of ours on this machine's GPU; all that comes out lands in the folder given.
#   benchmarks/kernels.sh OUT            all steps, some 5 minutes on an H200
#   benchmarks/kernels.sh OUT build tune check
# Tuning keeps the best plans, which the steps after it use (OUT/plans.json). Each step has its own time limit, so that a
# kernel that hangs costs its step and no more; what a bench has measured by then is in OUT. The last step packs OUT.
set -u
out=${1:?usage: benchmarks/kernels.sh OUT [STEP...]}
shift
steps=${*:-build tune check bench-rows bench-others bench-hgemm counters roofline pack}
mkdir -p "$out"
chip() { "${PYTHON:-python}" -m chip "$@"; }
export -f chip
failed=0
here=$(cd "$(dirname "$0")/.." && pwd)

run() { # name, seconds, command...
  local name=$1 limit=$2 start=$SECONDS code
  shift 2
  timeout "$limit" bash -c '"$@"' _ chip "$@" >"$out/$name.txt" 2>"$out/$name.log"
  code=$?
  echo "$name: exit $code after $((SECONDS - start)) s"
  if [ "$code" -ne 0 ]; then
    failed=1
    tail -n 15 "$out/$name.txt"
    tail -n 5 "$out/$name.log"
  fi
  return "$code"
}

tune() { # name, kernels, shape
  run "tune-$1" 60 kernels tune $2 --keep --shape "$3"
}

rows="layer_norm rms_norm softmax"
others="add_rms_norm silu_mul rope decode_attention row_normalize"
for step in $steps; do
  case $step in
    build) run build 200 kernels build ;; # 25 s
    tune)                                 # 75 s, most of it compiling
      tune silu silu_mul rows=4096,cols=11008
      tune add-2048 add_rms_norm rows=32768,cols=2048
      tune add-4096 add_rms_norm rows=16384,cols=4096
      tune add-8192 add_rms_norm rows=8192,cols=8192
      tune rows-8192 "$rows" rows=16384,cols=8192
      tune rows-16384 "$rows" rows=8192,cols=16384
      tune rows-32768 "$rows" rows=4096,cols=32768
      tune rows-65536 "$rows" rows=2048,cols=65536
      tune rope-128 rope rows=16384,heads=40,head_dim=128
      tune rope-64 rope rows=16384,heads=36,head_dim=64
      tune hgemm-wide hgemm m=4096,n=28672,k=4096
      tune hgemm-qkv hgemm m=4096,n=6144,k=4096
      cp "$here/src/chip/data/kernels/plans.json" "$out/plans.json"
      ;;
    # the sanitizer beside the check, 60 s; neither is timed. The waits of a debug build end with a message
    check)
      run check-wgmma 60 kernels check hgemm --variant wgmma --debug --count 4
      run sanitize 120 kernels check row_normalize hgemm --sanitize &
      run check 150 kernels check
      wait $! || failed=1
      ;;
    bench-rows) run bench-rows 150 kernels bench $rows -o "$out" ;;       # 65 s
    bench-others) run bench-others 120 kernels bench $others -o "$out" ;; # 35 s
    bench-hgemm) run bench-hgemm 120 kernels bench hgemm -o "$out" ;;     # 45 s
    counters)                                                             # 45 s
      run counters-layer-norm 60 kernels profile layer_norm --shape rows=32768,cols=4096 -o "$out/layer_norm"
      run counters-row-normalize 90 kernels profile row_normalize --shape rows=65536,cols=4096 -o "$out/row_normalize"
      ;;
    roofline) # one call of each kernel: all of them would hide each other
      calls="32768x4096,16384x4096,4096x11008,rows16384 heads40 head_dim128,65536x4096 fp32,4096x4096x4096"
      calls="$calls,b16 h32/8 d128 q1 kv16384"
      run roofline 60 roofline "$out/kernels.jsonl" --call "$calls" --plot "$out/roofline.svg"
      ;;
    pack) tar -czf "$out.tar.gz" -C "$(dirname "$out")" "$(basename "$out")" && echo "packed: $out.tar.gz" ;;
    *) echo "no step $step" && failed=1 ;;
  esac
done
exit $failed
