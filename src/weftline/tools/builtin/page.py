"""The readable text of HTML: headings, paragraphs, lists and links, and nothing else.

Pages are read as a stream of tags. No tree is built: by the rules of HTML that takes quadratic or even cubic time on a
hostile page, while a stream takes linear time (`docs/decisions/0004-hostile-input.md`).
"""

from __future__ import annotations

import re
from collections import Counter
from urllib.parse import urljoin

from turbohtml import Token, TokenType, tokenize

from weftline.text.characters import decoded

MAX_TEXT_CHARS = 4_000_000
"""For a whole page. Links can get many times longer when they are made absolute."""
MAX_LINK_CHARS = 2_000
_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "head", "canvas"})
_BLOCKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "dd", "div", "dl", "dt", "fieldset", "figcaption", "figure"),
        *("footer", "form", "header", "hr", "main", "nav", "ol", "p", "pre", "section", "table", "tbody", "tfoot"),
        *("thead", "tr", "ul"),
    }
)
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_BLANKS = re.compile(r"[^\S\n]+")
_GAPS = re.compile(r"\n{3,}")


def page_text(html: str, *, url: str = "") -> str:
    """Returns the readable text of a page, with its title first. Link targets are made absolute with `url`."""
    reader = _Reader(url)
    for token in tokenize(html):
        reader.take(token)
        if reader.chars > MAX_TEXT_CHARS:
            break
    return reader.text()


def page_job(data: bytes, charset: bytes, url: bytes) -> bytes:
    """Runs `page_text` in a worker with a time limit."""
    return page_text(decoded(data, charset.decode()), url=url.decode()).encode("utf-8", "replace")


class _Reader:
    def __init__(self, url: str) -> None:
        self.chars = 0
        self._url = url
        self._pieces: list[str] = []
        self._title: list[str] = []
        self._silent: list[str] = []
        self._silent_tags: Counter[str] = Counter()
        self._in_title = False
        self._preformatted = 0
        self._links: list[str] = []

    def take(self, token: Token) -> None:
        tag = token.tag or ""
        if token.type is TokenType.TEXT:
            self._data(token.data or "")
        elif token.type is TokenType.START_TAG:
            self._start(tag, token)
        elif token.type is TokenType.END_TAG:
            self._end(tag)

    def text(self) -> str:
        title = " ".join("".join(self._title).split())
        lines = "".join(self._pieces).split("\n")
        body = _GAPS.sub("\n\n", "\n".join(line.strip() if not line.startswith("    ") else line for line in lines))
        return f"{title}\n\n{body.strip()}".strip()

    def _start(self, tag: str, token: Token) -> None:
        if tag == "title" and not self._title:
            self._in_title = True
        elif tag == "body":
            # Ends a head that was never closed.
            self._silent.clear()
            self._silent_tags.clear()
        elif tag in _SILENT:
            self._silent.append(tag)
            self._silent_tags[tag] += 1
        elif tag in _HEADINGS:
            self._add(f"\n\n{_HEADINGS[tag]} ")
        elif tag == "li":
            self._add("\n- ")
        elif tag == "br":
            self._add("\n")
        elif tag in ("td", "th"):
            self._add(" | ")
        elif tag in _BLOCKS:
            self._add("\n" if tag == "tr" else "\n\n")
            self._preformatted += tag == "pre"
        elif tag == "a":
            target = token.attr("href") or ""
            keep = len(target) <= MAX_LINK_CHARS and not target.startswith(("#", "javascript:"))
            self._links.append(target if keep else "")
        elif tag == "img" and not self._silent:
            alt = token.attr("alt")
            if alt:
                self._add(f"[image: {alt}]")

    def _end(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif self._silent_tags[tag]:
            last = ""
            while last != tag:
                last = self._silent.pop()
                self._silent_tags[last] -= 1
        elif tag == "a" and self._links:
            target = self._links.pop()
            if target and not self._silent:
                self._add(f" ({self._absolute(target)})")
        elif tag in _HEADINGS or tag in _BLOCKS:
            self._add("\n" if tag == "tr" else "\n\n")
            self._preformatted -= tag == "pre" and self._preformatted > 0

    def _data(self, data: str) -> None:
        if self._in_title:
            self._title.append(data)
        elif not self._silent:
            self._add(data if self._preformatted else _BLANKS.sub(" ", data.replace("\n", " ")))

    def _add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.chars += len(piece)

    def _absolute(self, target: str) -> str:
        try:
            return urljoin(self._url, target)[: 2 * MAX_LINK_CHARS]
        except ValueError:
            return target
