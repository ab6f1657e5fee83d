"""CHIP in a browser: what its page asks of the same Python, without a server. `report/static/worker.js` calls it."""

from __future__ import annotations

from chip.show.serve import api
from chip.show.serve.reply import Refused, failure, parsed

NO_LIMIT_S = 0.0  # its visitor may wait as long as they like


def answer(path: str, body: str) -> tuple[int, str]:
    """Status and JSON, as the server answers a POST."""
    try:
        if path not in api.ASKED or path == api.HUB:
            raise Refused(404, f"{path[:80]} is not answered without a server")
        return 200, api.ASKED[path](parsed(body.encode()))
    except Exception as e:
        found = failure(e, path, NO_LIMIT_S)
        return found.status, found.body.decode()
