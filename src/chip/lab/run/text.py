"""Real text in and out: the tokenizer and chat template that lie beside a model's weights."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chip.forked import Forked
from chip.lab.measure.device import reason_of
from chip.lab.run.model import libraries
from chip.types import ChipError

TEMPLATE_S, TEMPLATE_BYTES = 10, 1 << 30  # that a chat template may take


def encode(folder: Path, text: str, system: str, raw: bool, trust_remote_code: bool = False) -> tuple[int, ...]:
    """Tokens of a prompt, through the chat template unless `raw`."""
    return encode_all(folder, [(text, system)], raw, open_tokenizer(folder, trust_remote_code))[0]


def encode_all(folder: Path, prompts: Sequence[tuple[str, str]], raw: bool, tokenizer: Any) -> list[tuple[int, ...]]:
    """The same of several prompts, each a text and its system prompt."""
    if raw:
        if any(system for _, system in prompts):
            raise ChipError("--system goes through a chat template; leave out --raw-prompt, or put it into the text")
        encoded = [tokenizer(text)["input_ids"] for text, _ in prompts]
    else:
        encoded = _chat(folder, tokenizer, prompts)
    if not all(encoded):
        raise ChipError("--prompt-text: the tokenizer makes no token of it")
    return [tuple(ids) for ids in encoded]


def _chat(folder: Path, tokenizer: Any, prompts: Sequence[tuple[str, str]]) -> list[list[int]]:
    """In a process of its own, within bounds: a template is a program and may loop for ever."""
    if not tokenizer.chat_template:
        raise ChipError(f"{folder}: its tokenizer has no chat template; give the text as it is with --raw-prompt")

    def tokens(messages: bytes) -> bytes:
        _bound()
        try:
            how = {"add_generation_prompt": True, "return_dict": False}
            return json.dumps(tokenizer.apply_chat_template(json.loads(messages), **how)).encode()
        except MemoryError:
            return b"null"
        except Exception as e:  # templates raise what they like
            return json.dumps(reason_of(e)).encode()

    encoded = []
    with _apart(tokens) as ask:
        for text, system in prompts:
            messages = [{"role": "system", "content": system}] if system else []
            ids = json.loads(ask(json.dumps([*messages, {"role": "user", "content": text}]).encode()) or b"null")
            if ids is None:
                most = f"{TEMPLATE_S} s or {TEMPLATE_BYTES >> 20} MiB"
                raise ChipError(f"{folder}: its chat template takes more than {most} for this prompt; use --raw-prompt")
            if isinstance(ids, str):
                remedy = "leave out --system" if system else "use --raw-prompt"
                raise ChipError(f"{folder}: its chat template refuses this prompt ({ids}); {remedy}")
            encoded.append(ids)
    return encoded


@contextmanager
def _apart(answer: Callable[[bytes], bytes]) -> Iterator[Callable[[bytes], bytes | None]]:
    """Asks a fork of this process; None where it has died."""
    if not hasattr(os, "fork"):
        yield answer
        return
    one = Forked(answer)

    def ask(message: bytes) -> bytes | None:
        one.ask(message)
        return one.told()

    try:
        yield ask
    finally:
        one.close()
        os.kill(one.pid, signal.SIGKILL)
        os.waitpid(one.pid, 0)


def _bound() -> None:
    """From now on this process dies after so much CPU time, and has so much memory."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    spent = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (spent + TEMPLATE_S, resource.RLIM_INFINITY))
    statm = Path("/proc/self/statm")
    if statm.exists():
        most = int(statm.read_text().split()[0]) * resource.getpagesize() + TEMPLATE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def decode(folder: Path, rows: Sequence[Sequence[int]], trust_remote_code: bool = False) -> tuple[str, ...]:
    """What was said, each different answer once, ended where the model ended it."""
    tokenizer = open_tokenizer(folder, trust_remote_code)
    ends = {tokenizer.eos_token_id} - {None}
    texts = []
    for row in rows:
        stop = next((i for i, token in enumerate(row) if token in ends), len(row))
        texts.append(tokenizer.decode(list(row[:stop]), skip_special_tokens=True))
    return tuple(dict.fromkeys(texts))


def open_tokenizer(folder: Path, trust_remote_code: bool) -> Any:
    _, transformers = libraries()
    try:
        return transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as e:  # missing or broken files, unknown classes
        raise ChipError(f"{folder}: no tokenizer could be loaded from it ({reason_of(e)})") from None
