#!/usr/bin/env bash
# Build, check, tune and time every kernel of ours on this machine's GPU; all that comes out lands in the folder given.
#   benchmarks/kernels.sh OUT            all steps
#   benchmarks/kernels.sh OUT build check-wgmma tune-hgemm
# Each step has its own time limit, so that a kernel that hangs costs its step and no more.
set -u
out=${1:?usage: benchmarks/kernels.sh OUT [STEP...]}
shift
steps=${*:-build check-wgmma check-cuda check-triton tune-hgemm tune-rows bench-rows bench-others bench-hgemm sanitize counters roofline}
mkdir -p "$out"
chip() { "${PYTHON:-python}" -m chip "$@"; }
export -f chip
failed=0

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
}

rows="layer_norm rms_norm softmax"
others="add_rms_norm silu_mul rope decode_attention row_normalize"
for step in $steps; do
  case $step in
    build) run build 200 kernels build ;;
    # the waits of a debug build end with a message; the plain build is checked with the others
    check-wgmma) run check-wgmma 120 kernels check hgemm --variant wgmma --debug --count 4 ;;
    check-cuda) run check-cuda 150 kernels check row_normalize hgemm ;;
    check-triton) run check-triton 300 kernels check $rows add_rms_norm silu_mul rope decode_attention ;;
    tune-hgemm)
      run tune-4096 60 kernels tune hgemm --shape m=4096,n=4096,k=4096
      run tune-8192 60 kernels tune hgemm --shape m=8192,n=8192,k=8192
      ;;
    tune-rows) run tune-rows 400 kernels tune $rows ;;
    bench-rows) run bench-rows 400 kernels bench $rows -o "$out" ;;
    bench-others) run bench-others 300 kernels bench $others -o "$out" ;;
    bench-hgemm) run bench-hgemm 300 kernels bench hgemm -o "$out" ;;
    sanitize) run sanitize 500 kernels check row_normalize hgemm --sanitize ;;
    counters) run counters 300 kernels profile layer_norm row_normalize -o "$out" ;;
    roofline) run roofline 60 roofline "$out/kernels.jsonl" --plot "$out/roofline.svg" ;;
    *) echo "no step $step" && failed=1 ;;
  esac
done
exit $failed
