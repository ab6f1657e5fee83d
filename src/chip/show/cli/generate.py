"""Generate text with `native`, CHIP's own engine: one prompt, streamed, or a file of requests, batched continuously.

MODEL is a folder with config.json, safetensors and tokenizer (or a hub id); a Llama, Mistral, Qwen2 or Qwen3. With a
config alone weights are random, and requests must give tokens. --requests takes JSON Lines, one request a line:
prompt or tokens, and where they differ from the options: name, system, max_tokens, temperature, top_k, top_p, seed,
ignore_eos. Each finished request is appended to --out at once, so that nothing finished is lost, whatever comes later.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chip.files import artifact, output
from chip.show.cli import options
from chip.show.cli.text import Column, duration, table
from chip.types import ChipError

if TYPE_CHECKING:
    from chip.lab.run.native.generate import Completion, Generation

HELP = "generate text with CHIP's own engine: streamed, or many requests at once"
EPILOG = """\
  chip generate ./my-model --prompt-text "What is a roofline?" --max-tokens 200
  chip generate ./my-model --prompt-text "Once upon a time" --raw-prompt --temperature 0.8 --top-p 0.95 --seed 1
  chip generate ./my-model --requests questions.jsonl -o answers.jsonl --kernels triton
  chip generate llama-3.1-8b --requests tokens.jsonl --json
"""
COMPLETION = "chip.completion/1"  # schema of a line of --out
KERNELS = ("torch", "triton", "chip")
COLUMNS: tuple[Column, ...] = (
    ("request", "request", str), ("prompt", "prompt"), ("output", "output"), ("end", "end"),
    ("first token", "ttft_s", duration), ("each further", "tpot_s", duration), ("text", "text", str),
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder with weights, bundled name, config.json, or hub id")
    add("--prompt-text", metavar="TEXT", default="", help="one prompt; its answer is streamed")
    add("--requests", metavar="FILE", type=Path, help="JSON Lines, one request a line")
    options.add(parser, "--system", "--raw-prompt")
    add("--max-tokens", type=int, default=128, help="tokens generated at most for each request [%(default)s]")
    add("--temperature", type=float, default=0.0, help="0: the likeliest token [%(default)g]")
    add("--top-k", type=int, default=0, help="draw among the k likeliest; 0: all [%(default)s]")
    add("--top-p", type=float, default=1.0, help="draw among the likeliest that sum to p [%(default)g]")
    add("--seed", type=int, default=0, help="of the draws; the same seed gives the same text [%(default)s]")
    add("--ignore-eos", action="store_true", help="go on to --max-tokens past the model's end token")
    kernels = "who computes: PyTorch, our Triton, all ours [chip; on a CPU torch]"
    add("--kernels", choices=KERNELS, default="", help=kernels)
    options.add(parser, "--dtype", "--device")
    add("--max-batch", type=int, default=256, help="requests computed at once; the others wait [%(default)s]")
    add("--step-tokens", type=int, default=8192, help="tokens of a step; longer prompts in chunks [%(default)s]")
    add("--page-tokens", type=int, default=64, help="tokens of a page of the KV cache [%(default)s]")
    add("--kv-tokens", type=int, default=0, help="room of the KV cache in tokens [what memory holds]")
    add("--no-graphs", action="store_true", help="launch decode steps one by one, not as CUDA graphs")
    options.add(parser, "--weights", "--trust-remote-code")
    options.add_file(parser, "-o", "--out", dest="file", help="append each finished request, JSON Lines")
    add("--json", action="store_true", help="one JSON document on stdout instead of streamed text")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    return [(args.file, COMPLETION)]


def run(args: argparse.Namespace) -> int:
    if bool(args.prompt_text) == bool(args.requests):
        raise ChipError("give --prompt-text or --requests FILE, one of them")
    from chip.lab.run.model import libraries

    libraries()
    from chip.lab.run.native.generate import Generation

    generation = Generation.from_options(args)
    for row in generation.substitutes():
        print(f"chip generate: {row['launches']} by {row['by']}: {row['why']}", file=sys.stderr)
    stream = None if args.json or not args.prompt_text else lambda piece: print(piece, end="", flush=True)

    def keep(answer: Completion) -> None:
        if args.file:
            artifact.append(args.file, {"schema": COMPLETION, **answer.record()}, COMPLETION)

    interrupted = False
    try:
        generation.run(stream, keep)
    except KeyboardInterrupt:
        interrupted = True
    _tell(args, generation, interrupted)
    if interrupted:
        done = sum(a.status == "ok" for a in generation.answers)
        print(f"chip generate: interrupted; {done} of {generation.count} requests had finished", file=sys.stderr)
        return 130
    return 1 if any(a.status == "failed" for a in generation.answers) else 0


def _tell(args: argparse.Namespace, generation: Generation, interrupted: bool) -> None:
    if args.json:
        print(json.dumps(generation.document(interrupted), indent=1))
        return
    if args.prompt_text:
        print()
    else:
        print(table(map(_row, generation.answers), COLUMNS))
    for answer in generation.answers:
        if answer.status == "failed":
            print(f"chip generate: {answer.reason}", file=sys.stderr)


def _row(a: Completion) -> dict[str, Any]:
    return {
        "request": a.name,
        "prompt": a.prompt_tokens,
        "output": len(a.tokens),
        "end": a.finish or a.status,
        "ttft_s": a.ttft_s or None,
        "tpot_s": a.tpot_s or None,
        "text": a.text.replace("\n", " ")[:60],
    }
