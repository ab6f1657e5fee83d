"""How fast CHIP answers, side by side with its peers in one run: `python benchmarks/speed.py`.

Exits with 1 if a bar is missed. Peers come from `sh benchmarks/peers/setup.sh`; those not there are skipped.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import environment
import sweep
from processes import Failed, last_core, run

HERE = pathlib.Path(__file__).parent
PEERS = {"llm_analysis": "llm-analysis", "genz": "genz-llm", "aiconfigurator": "aiconfigurator"}
QUESTION = ["llama-3.1-8b", "--gpu", "h200", "--batch", "8", "--prompt", "1024", "--output", "128", "--json"]
WARM_POINTS = {"chip": 2000, "llm_analysis": 1000, "genz": 10, "aiconfigurator": 1000}
LINES = {"short": 2_000, "long": 20_000}

COLD_SECONDS, WARM_SECONDS, LINES_PER_SECOND = 0.3, 0.0005, 2000
FLAT_BYTES = 4 * 2**20  # bounded caches fill up; ten times the lines may cost no more than this


def find_peers(folder):
    """Interpreter and version of each peer that is installed and answers."""
    found = {}
    for name, package in PEERS.items():
        python = folder / name / "bin" / "python"
        ask = f"import importlib.metadata as m; print(m.version('{package}'))"
        try:
            version = run([python, "-c", ask]).output.strip()
            answer = json.loads(run([python, HERE / "peers" / f"{name}.py", "--cold"]).output)
        except (OSError, Failed) as why:
            print(f"skipped {package}: {str(why).splitlines()[-1]}", file=sys.stderr)
            continue
        found[name] = {"python": python, "package": package, "version": version, "answer": answer}
    return found


def in_turn(commands, rounds):
    """Run every command once a round, so that a slow moment of the machine falls on all; runs by name."""
    runs = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            runs[name].append(run(command))
    return runs


def spread(values):
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return {"median": statistics.median(values), "p10": deciles[0], "p90": deciles[-1]}


def cold(peers, rounds):
    commands = {"chip": [sys.executable, "-m", "chip", "predict", *QUESTION]}
    commands |= {name: [peer["python"], HERE / "peers" / f"{name}.py", "--cold"] for name, peer in peers.items()}
    run(commands["chip"])  # the peers have run once already: byte code and file caches are warm for all
    return {name: spread([r.seconds for r in runs]) for name, runs in in_turn(commands, rounds).items()}


def warm(peers, rounds):
    commands = {"chip": [sys.executable, HERE / "warm_chip.py", str(WARM_POINTS["chip"])]}
    for name, peer in peers.items():
        commands[name] = [peer["python"], HERE / "peers" / f"{name}.py", "--warm", str(WARM_POINTS[name])]
    times = in_turn(commands, rounds)
    return {n: spread([json.loads(r.output)["seconds_per_point"] for r in runs]) for n, runs in times.items()}


def stream(lines, rounds):
    """Rate and peak memory of `chip predict -` over a sweep, on one core, start-up included."""
    runs = []
    with tempfile.TemporaryFile("w+") as questions, tempfile.TemporaryFile("w+") as answers:
        sweep.write(lines, questions)
        questions.flush()
        for _ in range(rounds):
            for file in (questions, answers):
                file.seek(0)
            answers.truncate()
            runs.append(run([sys.executable, "-m", "chip", "predict", "-"], questions, answers, last_core()))
        answers.seek(0)
        good = sum("ttft_ms" in json.loads(line) for line in answers)
    if good != lines:
        raise Failed(f"chip predict - answered {good} of {lines} scenarios")
    return {
        "lines": lines,
        "lines_per_second": spread([lines / r.seconds for r in runs]),
        "lines_per_cpu_second": statistics.median(lines / r.cpu_seconds for r in runs),
        "peak_bytes": max(r.peak_bytes for r in runs),
    }


def bars(result):
    """Each promise with whether it was kept."""
    chip = result["cold_seconds"]["chip"]["median"]
    yield f"cold answer within {COLD_SECONDS} s", chip <= COLD_SECONDS
    for name in result["peers"]:
        yield f"cold answer before {name}", chip < result["cold_seconds"][name]["median"]
    yield f"warm under {WARM_SECONDS * 1e3} ms a point", result["warm_seconds"]["chip"]["median"] < WARM_SECONDS
    rate = result["stream"]["long"]["lines_per_second"]["median"]
    yield f"{LINES_PER_SECOND} scenarios a second on one core", rate >= LINES_PER_SECOND
    growth = result["stream"]["long"]["peak_bytes"] - result["stream"]["short"]["peak_bytes"]
    yield "memory flat in the number of lines", growth <= FLAT_BYTES


def show(result):
    cold_s, warm_s = result["cold_seconds"], result["warm_seconds"]
    print(f"{'':22}{'cold s (p10-p90)':>24}{'x chip':>8}{'warm ms (p10-p90)':>28}{'x chip':>8}")
    for name in cold_s:
        c, w = cold_s[name], warm_s[name]
        label = f"{name} {result['peers'][name]['version']}" if name in result["peers"] else name
        cold_text = f"{c['median']:.3f} ({c['p10']:.3f}-{c['p90']:.3f})"
        warm_text = f"{w['median'] * 1e3:.3f} ({w['p10'] * 1e3:.3f}-{w['p90'] * 1e3:.3f})"
        ratios = c["median"] / cold_s["chip"]["median"], w["median"] / warm_s["chip"]["median"]
        print(f"{label:22}{cold_text:>24}{ratios[0]:8.1f}{warm_text:>28}{ratios[1]:8.1f}")
    for part in result["stream"].values():
        rate, peak = part["lines_per_second"]["median"], part["peak_bytes"] / 2**20
        print(f"chip predict -: {part['lines']} lines, {rate:.0f} a second, peak {peak:.1f} MiB")
    for bar in result["bars"]:
        print(f"{'kept  ' if bar['kept'] else 'MISSED'} {bar['bar']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("build/speed.json"))
    parser.add_argument("--peers", type=pathlib.Path, default=pathlib.Path("build/peers"), help="folder of setup.sh")
    parser.add_argument("--rounds", type=int, default=9, help="cold rounds (at least 7 for a result to quote)")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("a spread needs at least 2 rounds")

    peers = find_peers(options.peers)
    result = {
        "environment": environment.describe(),
        "peers": {name: {k: peer[k] for k in ("package", "version", "answer")} for name, peer in peers.items()},
        "missing_peers": [package for name, package in PEERS.items() if name not in peers],
        "rounds": options.rounds,
        "cold_seconds": cold(peers, options.rounds),
        "warm_seconds": warm(peers, rounds=3),
        "stream": {size: stream(lines, rounds=3) for size, lines in LINES.items()},
    }
    result["bars"] = [{"bar": bar, "kept": kept} for bar, kept in bars(result)]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    show(result)
    return 0 if all(bar["kept"] for bar in result["bars"]) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as why:
        sys.exit(f"not measured: {why}")
