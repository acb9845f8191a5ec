"""The documentation builds strictly, and its pages ask no other host for anything."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: what makes a browser fetch something as soon as it shows a page
_FETCHED = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src", "embed": "src",
    "object": "data", "input": "src", "track": "src", "use": "href",
}  # fmt: skip
_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "manifest",
}
_ELSEWHERE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        try:
            there = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            there = None
        if there is None:
            pytest.skip(f"{module} is not installed: the pages cannot be built")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


class _Page(HTMLParser):
    """The addresses that a page makes a browser fetch, and the classes of its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.classes |= set(found.get("class", "").split())
        if tag in _FETCHED:
            self.fetched.append(found.get(_FETCHED[tag], ""))
        if tag == "link" and set(found.get("rel", "").split()) & _LINKS:
            self.fetched.append(found.get("href", ""))
        self.fetched += [part.split()[0] for part in found.get("srcset", "").split(",") if part.strip()]
        self.fetched += _of_css(found.get("style", ""))


def _of_css(text: str) -> list[str]:
    return re.findall(r"""(?:url\(|@import\s+)\s*['"]?([^'")\s]+)""", text)


def _pages(site: Path) -> Iterator[tuple[Path, _Page]]:
    for path in sorted(site.rglob("*.html")):
        yield path, _Page(path.read_text())


def test_every_page_is_there(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file(), page.name


def test_no_page_asks_another_host(site: Path) -> None:
    asked = [
        (path.name, address)
        for path, page in _pages(site)
        for address in page.fetched
        if _ELSEWHERE.match(address)
    ]
    assert asked == []
    # the theme fetches its drawing library only for a page with such a drawing
    assert not any("mermaid" in page.classes for _, page in _pages(site))


def test_no_style_asks_another_host(site: Path) -> None:
    sheets = list(site.rglob("*.css"))
    assert sheets
    assert [a for sheet in sheets for a in _of_css(sheet.read_text()) if _ELSEWHERE.match(a)] == []


def test_what_a_page_fetches_is_there(site: Path) -> None:
    gone = [
        (path.name, address)
        for path, page in _pages(site)
        if path.name != "404.html"
        for address in page.fetched
        if address and not address.startswith(("data:", "#"))
        if not (path.parent / address.split("?")[0].split("#")[0]).resolve().exists()
    ]
    assert gone == []


def test_the_library_is_described(site: Path) -> None:
    text = (site / "library.html").read_text()
    for name in ("ullage.api.plan", "ullage.api.why", "ullage.api.diff", "ullage.core.report.Plan"):
        assert f'id="{name}"' in text, name
    assert str(ROOT) not in text
