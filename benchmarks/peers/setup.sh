#!/bin/sh
# Make one virtual environment per peer, from the package index, under the folder given (build/peers by default).
# PYTHON names the interpreter: 3.11 to 3.13, which all three peers accept.
set -eu
folder=${1:-build/peers}
python=${PYTHON:-python3}

peer() {
    name=$1
    shift
    "$python" -m venv "$folder/$name"
    "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    echo "$name: $*"
}

mkdir -p "$folder"
# 4.31.0 is the newest transformers that takes the huggingface-hub 0.14 llm-analysis asks for.
peer llm_analysis llm-analysis==0.2.2 transformers==4.31.0
peer genz genz-llm==0.0.16
peer aiconfigurator aiconfigurator==0.12.0
