"""A config from the Hugging Face hub, without waiting for a hub that does not answer."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from chip.types import ChipError, install

REACH_S = 3.0  # for the hub to answer at all


def config_of(repo: str, hint: str) -> Path:
    """config.json of a repository, from the hub or its cache. `hint` ends the error."""
    try:
        from huggingface_hub import constants
    except ImportError:
        raise ChipError(f"no file {repo!r}, and hub ids need huggingface_hub ({install('hub')}){hint}") from None
    found = _download(repo, answers(constants.ENDPOINT))
    if isinstance(found, Path):
        return found
    raise ChipError(f"{repo}: config.json could not be had from the hub ({found}){hint}")


def also(repo: str, name: str) -> None:
    """Bring another file of a repository beside its config.json, where it has one and the hub answers."""
    with suppress(Exception):
        from huggingface_hub import constants, hf_hub_download

        hf_hub_download(repo, name, local_files_only=not answers(constants.ENDPOINT))


@lru_cache(maxsize=1024)
def _download(repo: str, online: bool) -> Path | str:
    """The file, or why there is none: a sweep that asks again gets the same answer at once."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repo, "config.json", local_files_only=not online))
    except Exception as e:  # the hub's errors are many: not found, gated, offline, no network
        reason = str(e).strip().splitlines()[0][:120] if str(e).strip() else type(e).__name__
        return reason if online else "it does not answer, and its config.json is not in the cache"


@lru_cache(maxsize=8)
def answers(endpoint: str) -> bool:
    """Whether the hub can be reached, asked once a process: without a look its client tries for half a minute."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "ON", "YES"):
        return False
    if getproxies().get("https"):  # then only the proxy knows
        return True
    url = urlsplit(endpoint)
    answered: list[bool] = []

    reach = socket.create_connection  # looked up here: the thread may outlive whoever replaced it

    def connect() -> None:
        with suppress(OSError):
            if made := reach((url.hostname or "", url.port or 443), REACH_S):
                answered.append(True)
                made.close()

    look = threading.Thread(target=connect, daemon=True)  # resolving a name has no time limit of its own
    look.start()
    look.join(REACH_S)
    return bool(answered)
