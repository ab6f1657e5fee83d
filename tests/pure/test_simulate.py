"""The answer of `chip simulate`: the static answer for a batch, errors against real traffic, bytes that a seed repeats,
and its speed."""

import json
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from doc_figures import traffic as traffic_figures

import chip
from chip.decoders import library
from chip.predictor.request import setting
from chip.question import Question
from chip.show.cli import main
from chip.simulator.fleet import serve
from chip.simulator.setup import Fleet, run, setup
from chip.simulator.simulation import simulate, traffic
from chip.simulator.step_time import step_times
from chip.simulator.surface import Surface
from chip.types import ChipError, Seq

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "h200" / "traffic" / "reference-llama-3.1-8b.json"


LLAMA = Question(library.find("llama-3.1-8b")).with_formats()


def small(**more):
    asked = {"gpu": "h200", "workload": "poisson:prompt=200,output=40", "requests": 60, "rate": 6, "draws": 0, **more}
    return simulate("llama-3.1-8b", **asked)


def test_a_mixed_step_takes_what_the_predictor_says():
    """Straight lines between numbers of tokens apart, which are the layers alone."""
    times, steps = step_times(LLAMA), setting(LLAMA).steps
    surface, terms = Surface(times), steps.terms.value

    def exact(seqs):
        rows = steps.rows(steps.engine.step(seqs))
        gaps = sum(n * calls.launches.operators for n, calls, _ in rows) * terms.gap_s
        return sum(n * sum(a[0] for a in answers) for n, _, answers in rows) + gaps + terms.step_s

    for seqs, mean in ((1, 100), (7, 333), (50, 1294), (130, 700), (300, 2836)):
        assert surface.decode(seqs, mean).seconds == pytest.approx(exact((Seq(1, mean, seqs),)), rel=0.015)
    for seqs, mean, chunk in ((0, 0, (300, 0)), (20, 500, (700, 0)), (64, 900, (64, 3000)), (5, 300, (3000, 1000))):
        decodes = (Seq(1, mean, seqs),) if seqs else ()
        work = surface.mixed(seqs, mean, [chunk])
        assert work.seconds == pytest.approx(exact((*decodes, Seq(*chunk, 1))), rel=0.005)


def test_steps_together_equal_steps_one_by_one_on_the_real_predictor():
    w = traffic("azure-conversation", 400, 10, 0)
    made = setup(Fleet(LLAMA))
    together, alone = (serve(made.maker(merge=merge), w, made.longest) for merge in (True, False))
    assert list(together.last_s) == pytest.approx(list(alone.last_s), rel=1e-2)
    assert list(together.first_s) == pytest.approx(list(alone.first_s), rel=1e-2)


@pytest.fixture(scope="module")
def recorded():
    return traffic_figures.judged()


def test_medians_over_rates_meet_their_aims(recorded):
    for points in (recorded["mistral-7b"], [p for each in recorded.values() for p in each]):
        missed = {
            metric: row["median_error"] for metric, row in traffic_figures.medians(points).items() if not row["met"]
        }
        assert not missed


def test_prompts_that_take_most_of_the_device_make_tpot_jump(recorded):
    points = recorded["reference-llama-3.1-8b"]
    at_35, at_20 = ({p.metric: p for p in points if p.run.rate_per_s == rate} for rate in (35, 20))
    for kind in ("predicted", "measured"):
        assert getattr(at_35["tpot_ms.p50"], kind) > 2 * getattr(at_20["tpot_ms.p50"], kind)


def test_the_answer_has_the_figures_and_the_seed_gives_the_same_bytes():
    first, again = (small(goals="ttft=500ms,tpot=40ms", draws=3).json() for _ in range(2))
    assert json.dumps(first) == json.dumps(again)
    assert json.dumps(small(seed=1).json()) != json.dumps(small(seed=2).json())
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "queue_ms"):
        got = first[name]
        assert list(got) == ["mean", "p50", "p90", "p95", "p99"]
        assert got["p50"] <= got["p90"] <= got["p95"] <= got["p99"]
        low, high = first["interval"][name]["mean"]
        assert low <= high
    assert first["requests"] == first["completed"] == 60
    assert 0 < first["goodput"]["share"] <= 1
    assert first["energy"]["joules_per_output_token"] > 0
    assert 0 < first["gpu_busy"] <= 1
    assert first["output_tokens_per_s"] == pytest.approx(60 * 40 / first["duration_s"], rel=1e-5)


def test_a_simulation_that_answers_nobody_has_failed(capsys):
    words = ["simulate", "gpt2", "--requests", "5", "--no-intervals", "--workload"]
    assert main([*words, "poisson:prompt=2000,output=8"]) == 1
    assert "5 of 5 requests were rejected" in capsys.readouterr().err
    assert main([*words, "poisson:prompt=200,output=8"]) == 0


def test_a_prompt_longer_than_the_context_is_rejected_and_counted(tmp_path):
    file = tmp_path / "w.jsonl"
    rows = [{"arrival_s": i, "prompt": p, "output": 20} for i, p in enumerate((100, 5000, 200, 995))]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    found = simulate("llama-3.1-8b", workload=file, draws=0, engine_settings={"max_model_len": 1000})
    assert (found.completed, found.rejected, found.shortened) == (3, 1, 1)
    assert found.served.output[3] == 5
    assert any("1 of 4 requests were rejected" in note for note in found.notes)
    lines = [json.loads(line) for line in found.per_request()]
    assert [line["status"] for line in lines] == ["ok", "rejected", "ok", "ok"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"engine": "hf-eager"}, "cannot be simulated"),
        ({"engine_settings": {"max_num_seq": 3}}, "did you mean max_num_seqs"),
        ({"engine_settings": {"max_num_seqs": 0}}, "must be between 1 and 16384"),
        ({"engine_settings": {"max_num_seqs": 100, "max_num_batched_tokens": 50}}, "vLLM refuses this too"),
        ({"engine_settings": {"enable_prefix_caching": 1}}, "must be true or false"),
        ({"engine_settings": {"max_model_len": 10**7}}, "exceeds the KV cache"),
        ({"goals": "ttft=5"}, "must be like ttft=500ms,tpot=40ms"),
        ({"goals": "ttft_p99=5ms"}, "without a percentile"),
        ({"router": "random"}, "must be one of round-robin"),
        ({"replicas": 0}, "--replicas must be between"),
        ({"rate": -1.0}, "--rate must be"),
        ({"launch_ns": -1.0}, "launch_ns must be between"),
        ({"rate": float("nan")}, "--rate must be"),
    ],
)
def test_what_cannot_be_simulated_says_why(more, says):
    with pytest.raises(ChipError) as e:
        small(**more)
    assert says in str(e.value)


def test_a_model_that_does_not_fit_says_so():
    with pytest.raises(ChipError, match=r"does not fit 1 x l40s: weights take .* take a larger GPU"):
        simulate("llama-3.1-70b", workload="poisson", gpu="l40s", draws=0)


def test_a_slower_host_delays_first_tokens():
    fast, slow = (small(launch_ns=ns).ttft_s.mean for ns in (5e3, 20e3))
    assert slow > 1.1 * fast


def test_from_python():
    found = chip.simulate("llama-3.1-8b", workload="poisson", requests=20, rate=4, draws=0)
    assert found.ttft_s.p50 > 0
    planned = chip.plan("llama-3.1-8b", workload="poisson", rate=20, goals="tpot_p99=8ms", requests=50, intervals=False)
    assert planned.choices[0].status == "ok"


def test_importing_chip_imports_nothing_of_the_simulator():
    code = "import sys, chip; sys.exit(any(m.startswith('chip.') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src", timeout=60).returncode == 0


def test_the_command_prints_a_table_a_document_and_files(tmp_path, capsys):
    words = [
        "simulate",
        "llama-3.1-8b",
        "--workload",
        "poisson:prompt=200,output=40",
        "--requests",
        "40",
        "--rate",
        "5",
    ]
    files = {n: tmp_path / n for n in ("requests.jsonl", "timeline.json", "plot.svg")}
    options = ["--requests-out", "requests.jsonl", "--timeline", "timeline.json", "--plot", "plot.svg"]
    options = [str(files.get(o, o)) for o in options]
    assert main([*words, *options, "--slo", "ttft=500ms", "--draws", "3"]) == 0
    out = capsys.readouterr().out
    assert "TTFT" in out
    assert "goodput: 100.0 % of requests" in out
    assert len(files["requests.jsonl"].read_text().splitlines()) == 40
    timeline = json.loads(files["timeline.json"].read_text())["replicas"][0]
    assert len(timeline["t_s"]) == len(timeline["running"]) > 10
    assert max(timeline["running"]) > 0
    assert ElementTree.parse(files["plot.svg"]).getroot().tag.endswith("svg")
    assert main([*words, "--json", "--no-intervals"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "chip.simulation/1"
    sweep = [w if w != "5" else "2,8" for w in words]
    assert main([*sweep, "--json", "--no-intervals", "--plot", str(files["plot.svg"]), "--slo", "tpot=6ms"]) == 0
    assert len(json.loads(capsys.readouterr().out)["simulations"]) == 2
    assert "SLO 6 ms" in files["plot.svg"].read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--workload", "nothing-here.jsonl"], "workload 'nothing-here.jsonl': no such file"),
        (["--workload", "poisson", "--rate", "fast"], "--rate 'fast': must be requests a second"),
        (["--workload", "poisson", "--plot", "x.png"], "x.png: a plot is written as .svg"),
        (["--workload", "poisson", "--engine-setting", "max_num_seqs"], "must be key=value"),
        (["--workload", "poisson", "--jobs", "-1"], "--jobs must be between"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, says, capsys):
    assert main(["simulate", "llama-3.1-8b", *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_request_takes_at_most_ten_thousand_additions():
    """In time of this process, which others that use the machine do not lengthen."""
    began, total = time.process_time(), 0
    for i in range(3_000_000):
        total += i
    loop_s = time.process_time() - began
    began = time.process_time()
    found = simulate("llama-3.1-8b", gpu="h200", workload="azure-conversation", requests=3_000, rate=20, draws=0)
    assert found.completed == 3_000
    assert time.process_time() - began < 10 * loop_s


def test_a_run_is_given_up_when_asked():
    made = setup(Fleet(LLAMA))
    w = traffic("poisson", 50, 20, 0)
    seen = []
    done = run(made, Fleet(LLAMA), w, lambda _, i: seen.append(i) or len(seen) < 5)
    assert done.stopped
    assert 5 <= len(seen) < 50
