"""`chip roofline` end to end: files in, text, JSON and pictures out, and one clear line for what is wrong."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from test_roofline import PROFILE, measured

from chip import ops
from chip.files import artifact, codec, measurements
from chip.hardware import gpus
from chip.show.cli import main
from chip.types import HardwareProfile, Measurement


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "gpu.json"
    artifact.write(path, artifact.new(HardwareProfile.SCHEMA, codec.to_json(PROFILE), {}))
    return path


@pytest.fixture
def thirty(tmp_path):
    """Thirty points, some of them variants of one operator."""
    path = tmp_path / "points.jsonl"
    measurements.start(path, "Test GPU", {"torch": "x"})
    r = random.Random(1)
    for i in range(10):
        for implementation in ("torch", "triton"):
            shape = {"rows": 256 << i % 5, "cols": 512 << i}
            seconds = r.uniform(1, 2) * ops.build("rms_norm", shape).cost().bytes / 4e12
            measurements.add(path, measured("rms_norm", seconds + 1e-6, implementation=implementation, **shape))
        measurements.add(path, measured("linear", 2e-6 + 2 * 4096 * 4096 * (4 << i) / 5e14, m=4 << i, n=4096, k=4096))
    measurements.add(path, measured("embedding", 2e-5, rows=4096, cols=4096))
    measurements.add(
        path,
        Measurement(measurements.record(ops.build("add", {"rows": 1, "cols": 1})), "torch", "cold", "failed", "oom"),
    )
    return path


def run(capsys, *words):
    code = main(["roofline", *map(str, words)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_text(capsys, profile, thirty):
    code, out, _ = run(capsys, profile, thirty)
    assert code == 0
    assert "Test GPU, measured" in out
    assert "linear 4x4096x4096" in out
    assert "what would help" in out
    assert out.count("-bound") >= 30


def test_json(capsys, profile, thirty):
    code, out, _ = run(capsys, thirty, profile, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["source"] == "measured"
    assert len(found["points"]) == 31
    assert found["ridges_flop_per_byte"]["matmul_bf16"]["hbm"] == pytest.approx(800 / 4.2)
    one = found["points"][0]
    assert one["bytes_per_s"] == pytest.approx(one["bytes"] / one["p50_us"] * 1e6)
    assert {"verdict", "would_help", "share_of_roof", "bound", "level"} <= set(one)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_picture(capsys, tmp_path, profile, thirty, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot.{suffix}"
    code, _, err = run(capsys, profile, thirty, "--plot", path)
    assert code == 0, err
    data = path.read_bytes()
    if suffix == "png":
        assert data.startswith(b"\x89PNG")
        assert len(data) > 50_000
    else:
        text = data.decode()
        for word in ("memory-bound", "compute-bound", "bf16", "vector fp32", "rms_norm", "triton"):
            assert word in text


def test_numbers_do_not_cover_each_other():
    """The placing of labels, without a picture: all thirty numbers keep apart."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure
    from test_roofline import ROOFS

    from chip.hardware.roofline import place
    from chip.show.report import roofline_plot

    points = [place(measured("rms_norm", 1e-6 * 1.3**i, rows=256, cols=4096), ROOFS) for i in range(30)]
    bounds = roofline_plot._bounds(points, ROOFS, ["vector_fp32"])
    axes = Figure(figsize=(14, 8)).add_axes((0.1, 0.1, 0.5, 0.8))
    marks = roofline_plot._marks(points, bounds)
    left, right, low, high = bounds
    from math import hypot, log

    at = [
        (log(m.x / left) / log(right / left) * 504 + dx, log(m.y / low) / log(high / low) * 460.8 + dy)
        for m, (dx, dy) in zip(marks, roofline_plot._offsets(axes, marks, bounds))
    ]
    closest = min(hypot(a[0] - b[0], a[1] - b[1]) for i, a in enumerate(at) for b in at[:i])
    assert closest > 6  # points: numbers are 7.5 high


def test_a_crowd_is_drawn_apart(monkeypatch, capsys, tmp_path):
    """Variants of operators of one intensity have their numbers in a view of their own, and only there."""
    pytest.importorskip("matplotlib")
    from chip.show.report import figure_file

    drawn = []
    monkeypatch.setattr(figure_file, "save", lambda path, draw: drawn.append(draw()))
    recorded = Path(__file__).parents[2] / "results" / "h200" / "kernels" / "kernels.jsonl"
    for calls in ("32768x4096,16384x4096,4096x11008,65536x4096 fp32,4096x4096x4096", "4096x4096x4096"):
        code, _, err = run(capsys, recorded, "--call", calls, "--plot", tmp_path / "x.png")
        assert code == 0, err
    main_axes = drawn[0].axes[0]
    (apart,) = main_axes.child_axes
    numbers, inside = ([t.get_text() for t in axes.texts if t.get_text().isdigit()] for axes in (main_axes, apart))
    assert sorted(numbers + inside, key=int) == [str(n) for n in range(1, 28)]
    assert len(numbers) == 7, "the ladder's, which stand alone"
    names = [label.get_text().strip() for label in apart.get_xticklabels()]
    assert names == ["layer_norm", "rms_norm", "softmax", "add_rms_norm", "silu_mul", "row_normalize"]
    assert not drawn[1].axes[0].child_axes, "one operator has room"


def test_roofs_alone(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    code, out, _ = run(capsys, "--gpu", "h100", "--plot", tmp_path / "roofs.svg")
    assert code == 0
    assert "datasheet" in out
    assert (tmp_path / "roofs.svg").stat().st_size > 1000


def test_matplotlib_missing_is_one_line(capsys, monkeypatch, profile, thirty, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run(capsys, profile, thirty, "--plot", tmp_path / "x.png")
    assert code == 2
    assert err.strip().endswith("drawing needs matplotlib: pip install '.[plot]' in CHIP's checkout")


def write(path, text):
    path.write_text(text)
    return path


def test_roofs_that_are_not_to_be_trusted_are_said(capsys, tmp_path, profile):
    path = tmp_path / "fast.jsonl"
    measurements.start(path, "Test GPU", {"torch": "x"})
    measurements.add(path, measured("linear", 2 * 4096**3 / 800e12 / 4.9, m=4096, n=4096, k=4096))
    code, out, err = run(capsys, profile, path)
    assert code == 0
    assert "at the roof" not in out
    said = "1 of 1 points are above their roof, up to 4.9 times (linear 4096x4096x4096): calibrate again"
    assert err.startswith(f"warning: {said}")
    disturbed = tmp_path / "disturbed.json"
    flagged = replace(PROFILE, flags=("disturbed: other processes used 1.5 of 2 CPUs",))
    artifact.write(disturbed, artifact.new(HardwareProfile.SCHEMA, codec.to_json(flagged), {}))
    first, second = json.loads(run(capsys, disturbed, path, "--json")[1])["warnings"]
    assert first == "other processes used 1.5 of 2 CPUs when the roofs were measured"
    assert said in second


def test_a_gpu_that_is_not_listed_is_placed_under_estimated_roofs_with_a_warning(capsys, tmp_path):
    path = tmp_path / "points.jsonl"
    measurements.start(path, "NVIDIA RTX 9999", {"compute_capability": "8.9", "units": 140})
    point = replace(measured("linear", 1e-3, m=4096, n=4096, k=4096), device="NVIDIA RTX 9999")
    measurements.add(path, point)
    code, out, err = run(capsys, path)
    assert code == 0
    assert "NVIDIA RTX 9999, which is not listed, estimated from" in out.splitlines()[0]
    assert err.startswith("warning: NVIDIA RTX 9999, which is not listed, estimated from")
    assert "`chip calibrate` measures its own roofs" in err
    nearest = gpus.unlisted("x", "8.9", 140).estimated_from
    assert abs(gpus.spec(nearest).sm_count - 140) == min(
        abs(s.sm_count - 140) for s in map(gpus.spec, gpus.spec_names()) if s.compute_capability == "8.9"
    )


def test_bad_input_is_one_line(capsys, tmp_path, profile, thirty):
    lines = thirty.read_text().splitlines()
    other = json.dumps({**json.loads(lines[1]), "device": "Other GPU"})
    for words, expected in [
        ([], "give a hardware profile, measurements, or --gpu NAME"),
        ([profile, tmp_path / "none.jsonl"], "no such file"),
        ([profile, write(tmp_path / "a.jsonl", lines[0][:40])], "no whole line"),
        ([profile, write(tmp_path / "b.jsonl", lines[0] + "\n{not json}\n")], "line 2 is not JSON"),
        ([profile, write(tmp_path / "c.jsonl", '{"schema": "other.thing/1"}\n')], "is a other.thing file"),
        ([profile, write(tmp_path / "d.jsonl", lines[0].replace("measurement/1", "measurement/9") + "\n")], "newer"),
        (
            [profile, write(tmp_path / "e.jsonl", lines[0] + "\n" + lines[1].replace('"status"', '"state"') + "\n")],
            "state",
        ),
        ([profile, write(tmp_path / "f.jsonl", lines[0] + "\n" + lines[1].replace('"rows"', '"rowz"') + "\n")], "rowz"),
        ([profile, write(tmp_path / "g.jsonl", lines[0] + "\n" + other + "\n")], "is a profile of Test GPU"),
        ([write(tmp_path / "h.json", profile.read_text()[:200]), thirty], "cut short"),
        ([thirty], "no roofs are known for Test GPU"),
        ([profile, thirty, "--context", "warm"], "'warm' is not known"),
        ([profile, thirty, "--op", "conv2d"], "not among the measured operators"),
        ([profile, thirty, "--call", "7x7"], "no measured call ends so"),
        ([profile, thirty, "--context", "hot"], "no measurement to place"),
        ([profile, thirty, "--plot", tmp_path / "x.gif"], "written as .png, .svg or .pdf"),
        ([profile, profile, thirty], "second hardware profile"),
    ]:
        code, _, err = run(capsys, *words)
        assert code == 2, (words, err)
        assert expected in err, (words, err)
        assert len([line for line in err.strip().splitlines() if not line.startswith("left out")]) == 1


def test_a_line_cut_by_a_kill_does_not_count(capsys, profile, thirty):
    whole = run(capsys, profile, thirty, "--json")[1]
    with open(thirty, "a") as f:
        f.write('{"op": {"op": "linear", "m": 1')
    assert run(capsys, profile, thirty, "--json")[1] == whole


def test_variants_of_one_kernel_say_what_they_reach_and_what_the_best_bought():
    pytest.importorskip("matplotlib")
    from test_roofline import ROOFS

    from chip.hardware.roofline import place
    from chip.show.report import roofline_gain, roofline_plot

    slow, fast = (measured("row_normalize", s, rows=4096, cols=4096, dtype="fp32") for s in (200e-6, 50e-6))
    points = [place(replace(m, implementation=n), ROOFS) for m, n in ((slow, "torch"), (fast, "triton"))]
    marks = roofline_plot._marks(points, roofline_plot._bounds(points, ROOFS, ["vector_fp32"]))
    assert roofline_gain.is_of_one(marks)
    assert roofline_gain.text_at(marks[0]).endswith("FLOP/s, 0.75 FLOP/B")
    assert "torch to triton\n200 us to 50 us: 4.00 times as fast\n" in roofline_gain.text_of_gain(marks)
    assert roofline_gain.text_of_gain(marks[:1]) == ""
    texts = [t.get_text() for t in roofline_plot._draw(points, ROOFS).axes[0].texts]
    assert roofline_gain.text_of_gain(marks) in texts
