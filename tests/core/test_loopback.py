"""Names of what listens on this machine, and requests from elsewhere."""

from __future__ import annotations

import pytest

from ullage.core.loopback import from_another_site, is_loopback, own_hosts


@pytest.mark.parametrize(("address", "true"), [
    ("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("localhost", True),
    ("0.0.0.0", False), ("::", False), ("10.0.0.5", False), ("example.org", False), ("", False),
])  # fmt: skip
def test_loopback(address: str, true: bool) -> None:
    assert is_loopback(address) is true


def test_own_names() -> None:
    assert own_hosts("127.0.0.1", 80) == {"127.0.0.1:80", "localhost:80", "[::1]:80"}
    assert own_hosts("fe80::A", 80) == {"[fe80::a]:80"}


@pytest.mark.parametrize(("headers", "true"), [
    ({}, False),
    ({"origin": "http://Localhost:80"}, False),
    ({"origin": "http://evil.example"}, True),
    ({"origin": "null"}, True),
    ({"origin": "http://["}, True),
    ({"origin": "http://localhost:81"}, True),
    ({"sec-fetch-site": "cross-site"}, True),
    ({"sec-fetch-site": "same-site"}, True),
    ({"sec-fetch-site": "none"}, False),
])  # fmt: skip
def test_another_site(headers: dict[str, str], true: bool) -> None:
    assert from_another_site({"host": "localhost:80", **headers}) is true
