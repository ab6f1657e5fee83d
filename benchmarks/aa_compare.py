"""How often `chip compare` tells apart what is the same: runs of one model, each in a process of its own, all pairs.

    python benchmarks/aa_compare.py --runs 12 --device cpu -o results/cpu/aa.json

It prints the share of verdicts that are not "unclear". The bar is 5 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path

from chip.explain.compare import compare
from chip.files import runs
from chip.types import DISTURBED

TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 256,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="[a tiny Llama]")
    parser.add_argument("--runs", type=int, default=12, help="processes [%(default)s]")
    parser.add_argument("--device", default="cpu", help="[%(default)s]")
    parser.add_argument("--repeats", type=int, default=5, help="of each process [%(default)s]")
    parser.add_argument("-o", "--output", default="", help="also write the counts as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(TINY))
        found = [measure(args, args.model or str(config), Path(folder) / f"{i}.json") for i in range(args.runs)]
    lines = [line for a, b in combinations(found, 2) for line in compare(a, b).lines if line.unit == "s"]
    told = sum(line.verdict != "unclear" for line in lines)
    marked = sum(any(f.startswith(DISTURBED) for f in r.flags) for r in found)
    apart = max(max(line.ratio, 1 / line.ratio) for line in lines) - 1
    counts = {"device": found[0].device, "runs": len(found), "repeats": args.repeats, "disturbed": marked}
    counts |= {"verdicts": len(lines), "false": told, "rate": told / len(lines), "largest_difference": apart}
    print(json.dumps(counts, indent=1))
    if args.output:
        Path(args.output).write_text(json.dumps({"schema": "chip.aa/1", **counts}, indent=1) + "\n", encoding="utf-8")


def measure(args: argparse.Namespace, model: str, file: Path) -> runs.Run:
    words = ["bench", model, "--engine", "hf-eager", "--device", args.device, "--prompt", "64", "--output", "16"]
    words += ["--repeats", str(args.repeats), "--no-profile", "--energy-seconds", "0", "-o", str(file), "--force"]
    subprocess.run([sys.executable, "-m", "chip", *words], check=True, stdout=subprocess.DEVNULL)
    return runs.read(file)[1].runs[0]


if __name__ == "__main__":
    main()
