"""Who may ask: the names this server goes by, and a token where one was set."""

from __future__ import annotations

import hmac
import re
import socket
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

COOKIE = "chip_token"
LEAST_TOKEN = 8  # characters
LOCAL = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("0.0.0.0", "::", "")
ADDRESS = re.compile(r"\d{1,3}(\.\d{1,3}){3}|[0-9a-f:.]*:[0-9a-f:.]*")  # IPv4 or IPv6, not a name


class Guard:
    """A page of another site cannot ask through a browser: a name that was pointed at this machine (DNS rebinding) is
    not among `names`. Addresses are no names and cannot be pointed anywhere."""

    def __init__(self, bound: str, allowed: Collection[str] = (), token: str = "") -> None:
        self.token, self.bound = token, bound.lower()
        self.addresses = bound in EVERYWHERE
        self.names = {*LOCAL, bound.lower(), *(name.lower() for name in allowed)}
        if self.addresses:
            self.names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    @property
    def open(self) -> bool:
        """Whether anyone who reaches this server from another machine may ask."""
        return not self.token and self.bound not in LOCAL

    def knows(self, host: str | None) -> bool:
        """Whether a Host header names this server; one without the header comes from no browser."""
        if host is None:
            return True
        name = host_name(host)
        return name in self.names or (self.addresses and ADDRESS.fullmatch(name) is not None)

    def admits(self, authorization: str | None, cookie: str | None) -> bool:
        if not self.token:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        return (scheme.lower() == "bearer" and self._same(given.strip())) or self._same(_cookie(cookie))

    def invites(self, query: str) -> bool:
        """Whether an address carries the right token: `/?token=...`, as printed at the start."""
        return bool(self.token) and self._same(parse_qs(query, max_num_fields=8).get("token", [""])[0])

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def host_name(header: str) -> str:
    """`[::1]:8471` -> `::1`, `LocalHost:80` -> `localhost`."""
    host = header.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _cookie(header: str | None) -> str:
    if not header or len(header) > 4096:
        return ""
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
