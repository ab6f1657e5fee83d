"""Limits on time and memory: what is too large or never ends is refused soon, by size or by deadline."""

import gc
import gzip
import os
import resource
import time
import tracemalloc
from contextlib import suppress

import pytest

from chip.decoders import LONGEST_NAME, _family, describe, hub, library
from chip.files import artifact, measurements
from chip.hardware import points
from chip.hardware.tables import points_csv
from chip.lab.replay import chrome
from chip.show import cli
from chip.show.cli import roofline
from chip.show.serve import api
from chip.simulator import workload
from chip.types import ChipError
from chip.validate import silicon

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
    "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 4096,
}  # fmt: skip


def refusal(call, *args):
    """The one line, and the CPU time that it took."""
    began = time.process_time()
    with pytest.raises(ChipError) as told:
        call(*args)
    return str(told.value), time.process_time() - began


def test_a_file_of_a_gigabyte_is_refused_at_once(tmp_path):
    for name, read in (
        ("it.json", artifact.read_json),
        ("it.jsonl", measurements.read),
        ("it.jsonl", workload.read),
        ("it.csv", points.about),
        ("it.csv", points.read),
        ("it.csv", points_csv.read),
        ("it.csv", silicon.read),
        ("it.json", roofline.is_profile),
        ("it.jsonl", roofline.is_profile),
    ):
        path = tmp_path / name
        path.touch()
        os.truncate(path, 1 << 31)  # sparse: takes no room
        line, seconds = refusal(read, path)
        assert line == f"{path}: is larger than 256 MiB, the most that is read of such a file"
        assert seconds < 0.5
    path = tmp_path / "it.gz"
    path.write_bytes(gzip.compress(bytes(1 << 20)) * 300)
    line, seconds = refusal(artifact.read_packed, path)
    assert line == f"{path}: is larger than 256 MiB unpacked"
    assert seconds < 5


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/stdin"])
@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "gpt2", "--workload"], ["plan", "gpt2", "--rate", "1", "--slo", "ttft_p99=1s", "--workload"],
        ["roofline"], ["predict"], ["predict", "gpt2", "--gpu"], ["predict", "gpt2", "--host"], ["show"], ["validate"],
        ["validate", "--suite", "silicon"], ["report"], ["replay"], ["compare", "x"], ["explain", "x"],
        ["generate", "x", "--requests"], ["plan", "gpt2", "--rate", "1", "--slo", "ttft_p99=1s", "--workload",
        "poisson", "--price"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_device_or_a_pipe_is_no_file(words, path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reading, writing = os.pipe()  # nobody writes
    kept = os.dup(0)
    os.dup2(reading, 0)
    try:
        assert cli.main([*words, path]) == 2
    finally:
        os.dup2(kept, 0)
        for file in (reading, writing, kept):
            os.close(file)
    assert time.monotonic() - began < 30
    assert capsys.readouterr().err.count("\n") == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


@pytest.mark.parametrize("words", [["predict", "-"], ["predict", "-", "--ray", "local"], ["estimate", "-"]])
def test_a_line_of_standard_input_that_never_ends_is_given_up(words, capsys, monkeypatch):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open("/dev/zero", encoding="utf-8") as endless:
        monkeypatch.setattr("sys.stdin", endless)
        assert cli.main(words) == 2
    assert capsys.readouterr().err == f"chip {words[0]}: line 1 does not end after 16 MiB; no more is read\n"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_what_came_before_an_endless_line_is_answered(run):
    lines = '{"model": "gpt2", "batch": 1}\n' + "x" * 2_000_000 + '\n{"model": "gpt2", "batch": 2}\n' + "x" * (17 << 20)
    code, out, err = run("predict", "-", stdin=lines)
    assert code == 2
    assert [("error" in line, '"batch":2' in line) for line in out.splitlines()] == [
        (False, False), (True, False), (False, True)
    ]  # fmt: skip
    assert "line 4 does not end" in err


def test_a_line_without_end_is_refused(tmp_path):
    path = tmp_path / "it.jsonl"
    path.write_bytes(b'{"schema":"' + b"x" * (20 << 20) + b'"}\n')
    assert "line 1 is larger than 16 MiB" in refusal(artifact.read_lines, path)[0]


def test_a_small_packed_trace_cannot_keep_us_busy(tmp_path, monkeypatch):
    """1.3 MB of gzip hold more than a gigabyte of events."""
    monkeypatch.setattr(chrome, "SMALL", 1 << 20)
    path = tmp_path / "trace.json.gz"
    event = b'{"ph":"M","name":"' + b"x" * 1000 + b'"},'
    path.write_bytes(gzip.compress(b'{"traceEvents":[' + event * 20_000 + b"{}]}", 9))
    assert 300 * path.stat().st_size < 20_000 * len(event), "it must be packed tightly for this test to tell anything"
    line, seconds = refusal(chrome.read, path)
    assert "MiB unpacked; record fewer steps" in line
    assert seconds < 5
    plain = tmp_path / "trace.json"
    plain.write_bytes(b'{"traceEvents":[' + event * 5_000 + b"{}]}")
    chrome.read(plain)  # what is large on disk is read


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
@pytest.mark.parametrize("words", [["predict"], ["validate"], ["show"], ["report"], ["replay"], ["fit", "--profile"]])
def test_a_fifo_keeps_nobody_waiting(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "it.json"
    os.mkfifo(path)
    began = time.monotonic()
    words = [*words, str(path), str(path)] if words[0] == "fit" else [*words, str(path)]
    assert cli.main(words) == 2
    assert time.monotonic() - began < 60  # a FIFO would keep it for ever
    assert capsys.readouterr().err.count("\n") == 1


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    asked = []

    def slow(repo, name, local_files_only):
        asked.append((repo, local_files_only))
        raise OSError("not cached")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", slow)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.answers.cache_clear()
    hub._download.cache_clear()
    for _ in range(3):
        line, _ = refusal(library.find, "nobody/nothing-at-all")
        assert "does not answer, and its config.json is not in the cache" in line
    assert asked == [("nobody/nothing-at-all", True)]
    hub._download.cache_clear()
    hub.answers.cache_clear()


def test_a_hub_whose_name_is_not_resolved_is_given_up(monkeypatch):
    import socket

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr(socket, "create_connection", lambda *_: time.sleep(60))
    monkeypatch.setattr(hub, "REACH_S", 0.2)
    hub.answers.cache_clear()
    began = time.monotonic()
    assert not hub.answers("https://hub.example")
    assert time.monotonic() - began < 30  # of 60
    hub.answers.cache_clear()


@pytest.mark.parametrize("entry", ["model.layers.0.{}.{}", "re:model.layers.0.{}.{}", "visual.{}.{}"])
def test_nothing_of_a_pasted_config_is_kept(entry):
    """Whether it is answered or refused: what is remembered of a model does not grow with its config."""

    def ask(i):
        listed = [entry.format(i, j) + "x" * 60 for j in range(600)]
        quantised = {"quant_method": "fp8", "modules_to_not_convert": listed}
        config = {**LLAMA, "quantization_config": quantised, "unknown": [str(i) * 500_000]}
        with suppress(ChipError):
            api.predict({"model": "m", "config": config})
        return sum(map(len, listed)) + 500_000

    ask(-1)
    gc.collect()
    gc.disable()  # a cycle would keep it for long
    tracemalloc.start()
    try:
        given = sum(ask(i) for i in range(8))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert kept < given / 6, f"{kept} bytes of {given}"


def test_a_pattern_of_a_config_is_short():
    quantised = {"quant_method": "fp8", "modules_to_not_convert": ["re:" + "x" * 2000]}
    line, _ = refusal(describe, {**LLAMA, "quantization_config": quantised}, "it", "it")
    assert "is a pattern of 2000 characters, more than 1000" in line


def test_made_up_architectures_are_not_remembered():
    for i in range(600):
        with pytest.raises(ChipError):
            describe({"architectures": [f"Made{i}" + "x" * 1_000_000]}, "it", "it")
    assert _family.cache_info().currsize <= 256
    assert LONGEST_NAME < 1000, "and of each only so many characters"
