"""Parts of the native engine by themselves: draws, pages, the scheduler, who computes a launch."""

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_native import tiny  # noqa: E402

from chip.lab.run.native import pages, sampler, spec  # noqa: E402
from chip.lab.run.native.graphs import size_for  # noqa: E402
from chip.lab.run.native.launches import LAUNCHES, Launches  # noqa: E402
from chip.lab.run.native.requests import NativeRequest, SamplingParams  # noqa: E402
from chip.lab.run.native.scheduler import Scheduler  # noqa: E402
from chip.types import ChipError  # noqa: E402


def test_draws_follow_the_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, 1.5]])
    counts = torch.zeros(5)
    request = NativeRequest("r", (1,), SamplingParams(temperature=0.7, seed=11))
    for _ in range(2000):
        counts[int(sampler.choose(logits, [request]))] += 1
    want = torch.softmax(logits[0] / 0.7, 0)
    assert float((counts / 2000 - want).abs().max()) < 0.03


@pytest.mark.parametrize(("cut", "kept"), [({"top_k": 2}, {0, 4}), ({"top_p": 0.5}, {0, 4}), ({"top_p": 0.01}, {0}),
                                           ({"top_k": 3, "top_p": 0.99}, {0, 1, 4}), ({"top_k": 1}, {0})])  # fmt: skip
def test_cuts_keep_the_likeliest(cut, kept):
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, 1.5]])
    request = NativeRequest("r", (1,), SamplingParams(temperature=1.0, seed=1, **cut))
    assert {int(sampler.choose(logits, [request])) for _ in range(400)} == kept


def test_a_row_is_drawn_alike_in_any_batch():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(4))
    settings = (
        SamplingParams(temperature=0.9, seed=1),
        SamplingParams(),
        SamplingParams(temperature=1.3, top_p=0.8, seed=2),
    )
    many = sampler.choose(logits, [NativeRequest(str(i), (1,), s) for i, s in enumerate(settings)])
    each = [int(sampler.choose(logits[i : i + 1], [NativeRequest("r", (1,), s)])) for i, s in enumerate(settings)]
    assert many.tolist() == each


def test_pages_are_handed_out_once_and_all_come_back():
    allocator = pages.Allocator(6, 4)
    first, second = pages.PageTable(), pages.PageTable()
    assert allocator.grow(first, 9)
    assert allocator.grow(second, 8)
    assert not allocator.grow(second, 9)  # five pages are out, the spare one is nobody's
    assert len({*first.pages, *second.pages}) == 5
    assert pages.SPARE not in first.pages + second.pages
    allocator.release(first)
    assert allocator.grow(second, 20)
    allocator.release(second)
    assert allocator.free == allocator.total == 5


def test_the_oldest_always_goes_on():
    scheduler = Scheduler(pages.Allocator(5, 4), 16, 8, 64)
    for i in range(3):
        scheduler.add(NativeRequest(str(i), (1,) * 6, SamplingParams(10)))
    order = []
    for _ in range(200):
        shares = scheduler.next_step()
        if not shares:
            break
        done = [s for s in shares if s.samples]
        for s in shares:
            s.request.computed += s.new
        for s in done:
            s.request.accept(1, ())
            if s.request.finish:
                order.append(s.request.name)
                scheduler.finish(s.request)
    assert order == ["0", "1", "2"]
    assert scheduler.idle


def test_graph_sizes_cover_every_batch():
    assert [size_for(n) for n in (1, 2, 3, 4, 5, 8, 9, 32, 33)] == [1, 2, 4, 4, 8, 8, 16, 32, 40]


def test_every_launch_says_who_computes_it_and_why_not_who_was_asked():
    made = spec.read(tiny("llama-3.1-8b"), "x")
    cpu = torch.device("cpu")
    asked = Launches("chip", made, torch.float32, cpu, 64).rows()
    assert [row["launch"] for row in asked] == list(LAUNCHES)
    by = {row["launch"]: row for row in asked}
    if os.environ.get("TRITON_INTERPRET") != "1":
        assert all(row["by"] == "torch" and row["why"] for row in asked)
        assert "no NVIDIA GPU" in by["linear"]["why"]
        assert all(rung in by["linear_few"]["why"] for rung in ("skinny_2_wgmma", "skinny_1_mma"))
    plain = Launches("torch", made, torch.float32, cpu, 64).rows()
    assert all(row["by"] == "torch" and not row["why"] for row in plain)
    with pytest.raises(ChipError, match="--kernels 'cuda': choose torch, triton, chip"):
        Launches("cuda", made, torch.float32, cpu, 64)
    with pytest.raises(ChipError, match="launch 'norm' is not one of"):
        Launches("chip", made, torch.float32, cpu, 64, frozenset({"norm"}))


def test_tiles_cover_every_query_once_the_longest_walk_first():
    from chip.lab.kernels.triton.prefill_attention import TILE, tiles_of

    chunks = [(0, 300, 0), (300, 5, 1000), (305, TILE, 7)]
    flat = tiles_of(chunks)
    tiles = [flat[i : i + 4] for i in range(0, len(flat), 4)]
    rows = sorted(row + i for row, count, _, _ in tiles for i in range(count))
    assert rows == list(range(305 + TILE))
    reach = [past + count for _, count, past, _ in tiles]
    assert reach == sorted(reach, reverse=True)
    for row, _, past, sequence in tiles:
        first, _, before = chunks[sequence]
        assert past - before == row - first
