"""Record what other predictors answer, so that `chip validate --peers` needs none of them installed.

    python benchmarks/peers/record.py [RUNS...] [--peers build/peers] [-o benchmarks/peers/answers.json]

Asks for the vLLM runs of the files given, or for a grid of its own. Answers of the file that is there are kept, unless
they are of another version or asked for again. Peers come from `sh benchmarks/peers/setup.sh`.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from datetime import date

from chip.files import artifact, codec, runs
from chip.types import ChipError
from chip.validate import peers
from chip.validate.peers import PeerAnswer

HERE = pathlib.Path(__file__).parent
PEERS = {  # as validate shows it: (file and environment, package, what else it is told)
    "aiconfigurator": ("aiconfigurator", "aiconfigurator", {}),
    "genz-llm": ("genz", "genz-llm", {}),
    "llm-analysis": ("llm_analysis", "llm-analysis", {}),
    # what its README advises where nothing is known; by default it takes 1
    "llm-analysis (0.7, 0.9)": ("llm_analysis", "llm-analysis", {"efficiency": (0.7, 0.9)}),
}
ENGINE, GPU, DEVICE = "vllm", "h200", "NVIDIA H200"  # the one engine that one of them has tables of
MODELS = (
    "llama-3.1-8b", "llama-3.2-1b", "llama-3.2-3b", "mistral-7b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-14b",
    "qwen3-8b", "tinyllama-1.1b",
)  # fmt: skip
POINTS = ((1, 128), (1, 1024), (1, 4096), (8, 512), (8, 2048), (32, 512), (32, 2048), (64, 1024))  # batch, prompt
OUTPUTS = (33, 128)


def questions(files):
    """Distinct scenarios: those of the runs, or of the grid."""
    found = {}
    for path in files:
        held, these = runs.read(path)
        for run in these.runs:
            s = run.scenario
            if run.engine == ENGINE and (run.device or held.environment.get("device")) == DEVICE and s.dtype == "bf16":
                found[run.model, s.batch, s.prompt, s.output] = None
    if not files:
        found = {(m, b, p, o): None for m in MODELS for b, p in POINTS for o in OUTPUTS}
    keys = ("model", "batch", "prompt", "output")
    return [{**dict(zip(keys, key)), "gpu": GPU, "engine": ENGINE} for key in found]


def ask(folder, peer, asked):
    """(version, answers) of one peer; None where it is not installed."""
    name, package, told = PEERS[peer]
    python = folder / name / "bin" / "python"
    if not python.exists():
        return None
    version = f"import importlib.metadata as m; print(m.version('{package}'))"
    said = subprocess.run([python, "-c", version], capture_output=True, text=True, check=True).stdout.strip()
    lines = "".join(json.dumps({**q, **told}) + "\n" for q in asked)
    done = subprocess.run(
        [python, HERE / f"{name}.py", "--jsonl"], input=lines, stdout=subprocess.PIPE, text=True, check=True
    )
    return said, [json.loads(line) for line in done.stdout.splitlines()]


def answer_of(peer, question, reply):
    """Six digits are more than any of them is right to; the first line of an error is enough."""
    times = {k: None if reply[k] is None else float(f"{reply[k]:.6g}") for k in ("ttft_ms", "tpot_ms")}
    return PeerAnswer(peer, **question, **times, error=reply.get("error", "").split("\n")[0][:120])


def key_of(a):
    return a.peer, a.model, a.gpu, a.engine, a.batch, a.prompt, a.output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUNS", nargs="*", type=pathlib.Path)
    parser.add_argument("--peers", type=pathlib.Path, default=pathlib.Path("build/peers"), help="folder of setup.sh")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=HERE / "answers.json")
    options = parser.parse_args()

    asked = questions(options.runs)
    old = peers.read(options.output) if options.output.exists() else peers.Answers({}, ())
    versions, answers = dict(old.peers), {key_of(a): a for a in old.answers}
    for peer in PEERS:
        found = ask(options.peers, peer, asked)
        if found is None:
            print(f"{peer}: not installed under {options.peers}", file=sys.stderr)
            continue
        version, replies = found
        if versions.get(peer) != version:
            answers = {k: a for k, a in answers.items() if a.peer != peer}
        versions[peer] = version
        new = [answer_of(peer, q, r) for q, r in zip(asked, replies, strict=True)]
        answers |= {key_of(a): a for a in new}
        print(f"{peer} {version}: {sum(not a.error for a in new)} of {len(new)} answered", file=sys.stderr)
    data = codec.to_json(peers.Answers(versions, tuple(answers[k] for k in sorted(answers))))
    made = artifact.new(peers.Answers.SCHEMA, data, {"recorded": date.today().isoformat()})
    artifact.write(options.output, made, indent=None)


if __name__ == "__main__":
    try:
        main()
    except ChipError as why:
        sys.exit(f"record: {why}")
