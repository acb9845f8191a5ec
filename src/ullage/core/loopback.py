"""What listens on this machine alone: its address, the names it goes by, and requests that come from elsewhere.

A page of another site can make a browser send requests to it, and can give its own name this machine's address
(DNS rebinding): so Host must be one of its names, and Origin the same.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def is_loopback(address: str) -> bool:
    """True if only this machine reaches the address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def netloc(address: str, port: int) -> str:
    """ "127.0.0.1:8787", "[::1]:8787"."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def own_hosts(address: str, port: int) -> frozenset[str]:
    """Values of the Host header that name what listens at ``address``."""
    more = ("localhost", "127.0.0.1", "::1") if is_loopback(address) else ()
    return frozenset(netloc(each, port).lower() for each in (address, *more))


def from_another_site(headers: Mapping[str, str]) -> bool:
    """True if a browser says that the request was made by a page of another site. ``headers`` by lower-case
    names; programs that are no browser send neither Origin nor Sec-Fetch-Site."""
    origin = headers.get("origin")
    if origin is not None:
        try:
            return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
        except ValueError:  # "http://[": an address that is none
            return True
    return headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
