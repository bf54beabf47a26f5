"""Follow every local link of a built site: to a file that is there, and to an anchor that it has."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse


class _Page(HTMLParser):
    """The targets and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take one tag."""
        for name, value in attrs:
            if value is None:
                continue
            if name in ("id", "name"):
                self.anchors.add(value)
            if name in ("href", "src") and tag != "base":
                self.targets.append(value)


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


def dead(site: Path) -> list[str]:
    """What leads nowhere, as "page: link". Links to other servers are not followed."""
    out = []
    for path in sorted(site.rglob("*.html")):
        for target in _read(path).targets:
            address, anchor = urldefrag(target)
            if urlparse(target).scheme or target.startswith("//"):
                continue
            leads = path if not address else (path.parent / unquote(urlparse(address).path)).resolve()
            if leads.is_dir():
                leads /= "index.html"
            missing = not leads.exists() or not leads.is_relative_to(site.resolve())
            if missing or (anchor and leads.suffix == ".html" and unquote(anchor) not in _read(leads).anchors):
                out.append(f"{path.relative_to(site)}: {target}")
    return out
