"""What `chip generate` does: read requests, run them through the engine, tell each answer when it is finished."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from chip import artifact
from chip.measure.device import default_device, open_device
from chip.run import text
from chip.run.model import locate
from chip.run.native.engine import NativeEngine, NativeSettings, default_kernels
from chip.run.native.requests import NativeRequest, SamplingParams
from chip.run.native.stream import TextStream
from chip.run.request_file import Wish, read_wishes
from chip.types import ChipError

SCHEMA = "chip.generate/1"


@dataclass(frozen=True, slots=True)
class Completion:
    name: str
    status: str  # "ok", "failed", "unfinished"
    prompt_tokens: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    finish: str = ""
    reason: str = ""
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    preempted: int = 0

    def record(self) -> dict[str, Any]:
        return asdict(self)


class Generation:
    def __init__(
        self, model: str, weights: str, wishes: list[Wish], settings: NativeSettings, raw: bool, trust: bool
    ) -> None:
        path, self.title, self.folder = locate(model, weights)
        self.tokenizer = (
            text.open_tokenizer(self.folder, trust) if self.folder and _has_tokenizer(self.folder) else None
        )
        self.answers: list[Completion] = []
        self.requests: list[NativeRequest] = []
        self.streams: dict[str, TextStream] = {}
        self._prepare(wishes, raw)
        self.count = len(wishes)
        wanted = max((len(r.prompt) + r.sampling.max_tokens for r in self.requests), default=1)
        self.engine = NativeEngine(
            artifact.read_json(path), str(path), replace(settings, max_context=wanted), self.folder
        )

    @classmethod
    def from_options(cls, o: Namespace) -> Generation:
        sampling = SamplingParams(o.max_tokens, o.temperature, o.top_k, o.top_p, o.seed, o.ignore_eos)
        sampling.check("options")
        given = Wish("prompt", o.prompt_text, system=o.system, sampling=sampling)
        wishes = read_wishes(o.requests, given) if o.requests else [given]
        device = open_device(o.device or default_device())
        settings = NativeSettings(
            kernels=o.kernels or default_kernels(device.kind),
            dtype=o.dtype or ("fp32" if device.kind == "cpu" else "bf16"),
            device=device.name,
            max_rows=o.max_batch,
            max_step_tokens=o.step_tokens,
            page_tokens=o.page_tokens,
            kv_tokens=o.kv_tokens,
            graphs=not o.no_graphs,
        )
        return cls(o.model, o.weights, wishes, settings, o.raw_prompt, o.trust_remote_code)

    def _prepare(self, wishes: list[Wish], raw: bool) -> None:
        said = [wish for wish in wishes if not wish.tokens]
        if said and (self.tokenizer is None or self.folder is None):
            raise ChipError(f"{said[0].name}: {self.title} comes without a tokenizer; give the request as tokens")
        prompts = [(wish.prompt, wish.system) for wish in said]
        encoded = iter(text.encode_all(self.folder, prompts, raw, self.tokenizer) if self.folder and said else ())
        for wish in wishes:
            self.requests.append(NativeRequest(wish.name, wish.tokens or next(encoded), wish.sampling))
            if self.tokenizer is not None:
                self.streams[wish.name] = TextStream(self.tokenizer)

    def substitutes(self) -> list[dict[str, str]]:
        """Launches that another than the one asked for computes, those with one reason together."""
        found: dict[tuple[str, str], list[str]] = {}
        for row in self.engine.launches.rows():
            if row["why"]:
                found.setdefault((row["by"], row["why"]), []).append(row["launch"])
        return [{"launches": ", ".join(names), "by": by, "why": why} for (by, why), names in found.items()]

    def run(self, on_piece: Callable[[str], None] | None, on_answer: Callable[[Completion], object]) -> None:
        """Until all are finished. Whatever ends it, `answers` has every request, and the finished ones were told."""
        for request in self.requests:
            try:
                request.on_token = self._heard(on_piece)
                self.engine.add(request)
            except ChipError as e:
                self._keep(Completion(request.name, "failed", len(request.prompt), reason=str(e)), on_answer)
        try:
            while not self.engine.scheduler.idle:
                for request in self.engine.step():
                    if on_piece and request.name in self.streams:
                        on_piece(self.streams[request.name].end())
                    self._keep(self._answer(request, "ok"), on_answer)
        finally:
            told = {a.name for a in self.answers}
            self.answers += [self._answer(r, "unfinished") for r in self.requests if r.name not in told]

    def _heard(self, on_piece: Callable[[str], None] | None) -> Callable[[NativeRequest, int], None] | None:
        def heard(request: NativeRequest, token: int) -> None:
            if request.name in self.streams and on_piece:
                on_piece(self.streams[request.name].add(token))

        return heard if on_piece else None

    def _keep(self, answer: Completion, on_answer: Callable[[Completion], object]) -> None:
        self.answers.append(answer)
        on_answer(answer)

    def _answer(self, r: NativeRequest, status: str) -> Completion:
        said = self.tokenizer.decode(r.output, skip_special_tokens=True) if self.tokenizer is not None else ""
        first = r.token_s[0] - r.added_s if r.token_s else 0.0
        further = (r.token_s[-1] - r.token_s[0]) / (len(r.token_s) - 1) if len(r.token_s) > 1 else 0.0
        return Completion(
            r.name, status, len(r.prompt), tuple(r.output), said, r.finish, "", first, further, r.preempted
        )

    def document(self, interrupted: bool) -> dict[str, Any]:
        e = self.engine
        return {
            "schema": SCHEMA,
            "model": self.title,
            "weights": "files" if self.folder else "random",
            "device": e.settings.device,
            "dtype": e.settings.dtype,
            "kernels": e.settings.kernels,
            "launches": e.launches.rows(),
            "kv_tokens": e.allocator.total * e.settings.page_tokens,
            "steps": e.steps,
            "interrupted": interrupted,
            "requests": [a.record() for a in self.answers],
        }


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json"))
