#!/bin/sh
# Records of live traffic on a GPU, to judge `chip simulate` by: four models at four rates from light to saturated and
# all at once, one with shared prefixes and prefix caching, one whose KV cache is too small. About 25 minutes on an H200.
#   sh benchmarks/traffic.sh results/h200/traffic [--python /opt/vllm/bin/python]
set -eu
out=$1
shift
mkdir -p "$out"
load=poisson:prompt=400~0.9,output=120~0.8
common="--engine vllm --requests 240 --energy-seconds 0"
longest=max_model_len=8192
chip bench llama-3.1-8b $common --workload $load --rate 4,12,24,36,0 --engine-setting $longest -o "$out/llama-3.1-8b.json" "$@"
chip bench qwen2.5-7b $common --workload $load --rate 4,12,24,36,0 --engine-setting $longest -o "$out/qwen2.5-7b.json" "$@"
chip bench tinyllama-1.1b $common --workload poisson:prompt=200~0.6,output=120~0.8 --rate 8,24,48,96,0 \
    --engine-setting max_model_len=2048 -o "$out/tinyllama-1.1b.json" "$@"
# kept back: no term or table was made with it
chip bench mistral-7b $common --workload $load --rate 4,12,24,36,0 --engine-setting $longest -o "$out/mistral-7b.json" "$@"
chip bench llama-3.1-8b $common --workload poisson:prompt=900~0.4,output=60~0.6,shared=768 --rate 8,24,0 \
    --engine-setting $longest --engine-setting enable_prefix_caching=true -o "$out/prefix.json" "$@"
chip bench llama-3.1-8b $common --workload azure-conversation --rate 4,12 --engine-setting max_model_len=16384 \
    --engine-setting enable_prefix_caching=true -o "$out/azure.json" "$@"
chip bench llama-3.1-8b $common --workload poisson:prompt=400~0.6,output=300~0.5 --rate 12,0 \
    --engine-setting $longest --engine-setting num_gpu_blocks_override=1200 -o "$out/preempts.json" "$@"
chip validate "$out"/llama-3.1-8b.json "$out"/qwen2.5-7b.json "$out"/tinyllama-1.1b.json "$out"/mistral-7b.json \
    "$out"/prefix.json "$out"/azure.json "$out"/preempts.json
