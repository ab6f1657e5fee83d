"""Real text in and out: the tokenizer and chat template that lie beside a model's weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chip.run.model import brief, libraries
from chip.types import ChipError


def encode(
    folder: Path, text: str, system: str, raw: bool, trust_remote_code: bool = False, tokenizer: Any = None
) -> tuple[int, ...]:
    """Tokens of a prompt, through the chat template unless `raw`. `tokenizer`: one that is open already."""
    tokenizer = tokenizer or open_tokenizer(folder, trust_remote_code)
    if raw:
        if system:
            raise ChipError("--system goes through a chat template; leave out --raw-prompt, or put it into the text")
        ids = tokenizer(text)["input_ids"]
    else:
        ids = _chat(folder, tokenizer, text, system)
    if not ids:
        raise ChipError("--prompt-text: the tokenizer makes no token of it")
    return tuple(ids)


def _chat(folder: Path, tokenizer: Any, text: str, system: str) -> Sequence[int]:
    if not tokenizer.chat_template:
        raise ChipError(f"{folder}: its tokenizer has no chat template; give the text as it is with --raw-prompt")
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    try:
        ids: Sequence[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    except Exception as e:  # templates are programs: they raise what they like
        remedy = "leave out --system" if system else "use --raw-prompt"
        raise ChipError(f"{folder}: its chat template refuses this prompt ({brief(e)}); {remedy}") from None
    return ids


def decode(folder: Path, rows: Sequence[Sequence[int]], trust_remote_code: bool = False) -> tuple[str, ...]:
    """What was said, each different answer once, ended where the model ended it."""
    tokenizer = open_tokenizer(folder, trust_remote_code)
    ends = {tokenizer.eos_token_id} - {None}
    said = []
    for row in rows:
        stop = next((i for i, token in enumerate(row) if token in ends), len(row))
        said.append(tokenizer.decode(list(row[:stop]), skip_special_tokens=True))
    return tuple(dict.fromkeys(said))


def open_tokenizer(folder: Path, trust_remote_code: bool) -> Any:
    _, transformers = libraries()
    try:
        return transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as e:  # missing or broken files, unknown classes
        raise ChipError(f"{folder}: no tokenizer could be loaded from it ({brief(e)})") from None
