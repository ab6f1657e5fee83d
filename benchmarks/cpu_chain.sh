#!/bin/sh
# The chain on two cores of this machine: calibrate, bench three small models in fp32 and bf16, validate. Some ten minutes
# on an idle machine, which is waited for. Usage: benchmarks/cpu_chain.sh [FOLDER] [CORES], such as build/cpu 0,1
set -eu
folder=${1:-build/cpu}
cores=${2:-0,1}
mkdir -p "$folder"
on() { taskset -c "$cores" chip "$@"; }
on calibrate --device cpu --retry -o "$folder/calibration-2-cores.json"
for dtype in fp32 bf16; do
    for models in smollm2-135m "gpt2 opt-125m"; do
        name=$([ "$models" = smollm2-135m ] && echo smollm2 || echo small)
        # shellcheck disable=SC2086
        on bench $models --engine hf-eager --device cpu --dtype $dtype --prompt 128,512 --output 32 --repeats 3 \
            --max-seconds 10 -o "$folder/runs-2-cores-$name-$dtype.json"
    done
done
chip validate "$folder"/runs-2-cores-*.json --gpu "$folder/calibration-2-cores.json" --points
