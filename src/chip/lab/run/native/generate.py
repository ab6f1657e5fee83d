"""What `chip generate` does: read requests, run them through the engine, tell each answer when it is finished."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from chip.files import artifact
from chip.lab.measure.device import default_device, open_device
from chip.lab.run import text
from chip.lab.run.model import locate
from chip.lab.run.native.engine import NativeEngine, NativeSettings, default_kernels
from chip.lab.run.native.requests import GREEDY, NativeRequest, SamplingParams
from chip.types import ChipError

SCHEMA = "chip.generate/1"
SAMPLING = {f.name: type(f.default) for f in fields(SamplingParams)}
UNFINISHED = "�"  # what a tokenizer shows for bytes of a character that is not complete


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
        default = Wish("prompt", o.prompt_text, system=o.system, sampling=sampling)
        wishes = read_wishes(o.requests, default) if o.requests else [default]
        device = open_device(o.device or default_device())
        settings = NativeSettings(
            kernels=o.kernels or default_kernels(device.kind),
            dtype=device.dtype(o.dtype),
            device=device.name,
            max_rows=o.max_batch,
            max_step_tokens=o.step_tokens,
            page_tokens=o.page_tokens,
            kv_tokens=o.kv_tokens,
            graphs=not o.no_graphs,
        )
        return cls(o.model, o.weights, wishes, settings, o.raw_prompt, o.trust_remote_code)

    def _prepare(self, wishes: list[Wish], raw: bool) -> None:
        written = [wish for wish in wishes if not wish.tokens]
        if written and (self.tokenizer is None or self.folder is None):
            raise ChipError(f"{written[0].name}: {self.title} comes without a tokenizer; give the request as tokens")
        prompts = [(wish.prompt, wish.system) for wish in written]
        encoded = iter(text.encode_all(self.folder, prompts, raw, self.tokenizer) if self.folder and written else ())
        for wish in wishes:
            self.requests.append(NativeRequest(wish.name, wish.tokens or next(encoded), wish.sampling))
            if self.tokenizer is not None:
                self.streams[wish.name] = TextStream(self.tokenizer)

    def substitutes(self) -> list[dict[str, str]]:
        """Launches that another than the one asked for computes, those with one reason together."""
        launches: dict[tuple[str, str], list[str]] = {}
        for row in self.engine.launches.rows():
            if row["why"]:
                launches.setdefault((row["by"], row["why"]), []).append(row["launch"])
        return [{"launches": ", ".join(names), "by": by, "why": why} for (by, why), names in launches.items()]

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
        decoded = self.tokenizer.decode(r.output, skip_special_tokens=True) if self.tokenizer is not None else ""
        first = r.token_s[0] - r.added_s if r.token_s else 0.0
        further = (r.token_s[-1] - r.token_s[0]) / (len(r.token_s) - 1) if len(r.token_s) > 1 else 0.0
        return Completion(
            r.name, status, len(r.prompt), tuple(r.output), decoded, r.finish, "", first, further, r.preempted
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


# -- the JSON Lines file of requests ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Wish:
    """A request as it was asked for: text or tokens."""

    name: str
    prompt: str = ""
    tokens: tuple[int, ...] = ()
    system: str = ""
    sampling: SamplingParams = GREEDY


def read_wishes(path: Path, default: Wish) -> list[Wish]:
    """Requests of a JSON Lines file; what a line leaves out is as in `given`."""
    numbered = enumerate(artifact.lines(path), 1)
    wishes = [_wish(line, f"{path}: line {i}", f"request {i}", default) for i, line in numbered if line.strip()]
    if not wishes:
        raise ChipError(f"{path}: holds no request")
    names = [w.name for w in wishes]
    if doubled := next((n for n in names if names.count(n) > 1), None):
        raise ChipError(f"{path}: two requests are called {doubled!r}")
    return wishes


def _wish(line: str, where: str, name: str, default: Wish) -> Wish:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        raise ChipError(f"{where}: is not JSON") from None
    if not isinstance(raw, dict):
        raise ChipError(f"{where}: a request is a JSON object")
    known = {"name", "prompt", "tokens", "system", *SAMPLING}
    if unknown := sorted(set(raw) - known):
        raise ChipError(f"{where}: unknown field {unknown[0]!r}; known: {', '.join(sorted(known))}")
    if ("prompt" in raw) == ("tokens" in raw):
        raise ChipError(f"{where}: give prompt or tokens, one of them")
    for key in ("name", "prompt", "system"):
        if key in raw and (not isinstance(raw[key], str) or (key != "system" and not raw[key])):
            raise ChipError(f"{where}: {key} must be text")
    tokens = raw.get("tokens", [0])
    if not isinstance(tokens, list) or not tokens or not all(type(t) is int for t in tokens):
        raise ChipError(f"{where}: tokens must be a list of whole numbers")
    chosen = {key: _typed(raw[key], kind, f"{where}: {key}") for key, kind in SAMPLING.items() if key in raw}
    sampling = replace(default.sampling, **chosen)
    sampling.check(where)
    return Wish(
        name=raw.get("name", name),
        prompt=raw.get("prompt", ""),
        tokens=tuple(tokens) if "tokens" in raw else (),
        system=raw.get("system", default.system),
        sampling=sampling,
    )


def _typed(value: Any, kind: type, where: str) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and whole:
        return value
    if kind is float and (whole or isinstance(value, float)):
        return float(value)
    words = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
    raise ChipError(f"{where} must be {words}")


# -- text as it comes -------------------------------------------------------------------------------------------------
class TextStream:
    """Decodes a window: what was told last gives the context in which the new tokens are read."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.context, self.told = 0, 0  # where the window begins; tokens told so far

    def add(self, token: int) -> str:
        """The characters that this token makes certain; often none."""
        self.tokens.append(token)
        return self._piece(hold=True)

    def end(self) -> str:
        """What was held back."""
        return self._piece(hold=False)

    def _piece(self, hold: bool) -> str:
        before = self._text(self.tokens[self.context : self.told])
        after = self._text(self.tokens[self.context :])
        if len(after) <= len(before) or (hold and after.endswith(UNFINISHED)):
            return ""
        self.context, self.told = self.told, len(self.tokens)
        return after[len(before) :]

    def _text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))
