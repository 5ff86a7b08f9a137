"""HTML as a person would read it aloud: headings, paragraphs, lists and links, nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import urljoin

_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "head", "canvas"})
_BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "dd", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer"}
    | {
        "form",
        "header",
        "hr",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "tbody",
        "tfoot",
        "thead",
        "tr",
        "ul",
    }
)
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_BLANKS = re.compile(r"[^\S\n]+")
_GAPS = re.compile(r"\n{3,}")


def page_text(html: str, *, url: str = "") -> str:
    """The readable text of a page, its title first. Links keep their target, made absolute by `url`."""
    reader = _Reader(url)
    reader.feed(html)
    reader.close()
    return reader.text()


class _Reader(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._url = url
        self._pieces: list[str] = []
        self._title: list[str] = []
        self._silent: list[str] = []
        self._in_title = False
        self._preformatted = 0
        self._links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title" and not self._title:
            self._in_title = True
        elif tag == "body":
            # A head that nobody closed ends here.
            self._silent.clear()
        elif tag in _SILENT:
            self._silent.append(tag)
        elif tag in _HEADINGS:
            self._pieces.append(f"\n\n{_HEADINGS[tag]} ")
        elif tag == "li":
            self._pieces.append("\n- ")
        elif tag == "br":
            self._pieces.append("\n")
        elif tag in ("td", "th"):
            self._pieces.append(" | ")
        elif tag in _BLOCKS:
            self._pieces.append("\n" if tag == "tr" else "\n\n")
            self._preformatted += tag == "pre"
        elif tag == "a":
            target = dict(attrs).get("href") or ""
            self._links.append("" if target.startswith(("#", "javascript:")) else target)
        elif tag == "img" and not self._silent:
            alt = dict(attrs).get("alt")
            if alt:
                self._pieces.append(f"[image: {alt}]")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self._silent:
            while self._silent.pop() != tag:
                pass
        elif tag == "a" and self._links:
            target = self._links.pop()
            if target and not self._silent:
                self._pieces.append(f" ({self._absolute(target)})")
        elif tag in _HEADINGS or tag in _BLOCKS:
            self._pieces.append("\n" if tag == "tr" else "\n\n")
            self._preformatted -= tag == "pre" and self._preformatted > 0

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._title.append(data)
        elif not self._silent:
            self._pieces.append(data if self._preformatted else _BLANKS.sub(" ", data.replace("\n", " ")))

    def text(self) -> str:
        title = " ".join("".join(self._title).split())
        lines = "".join(self._pieces).split("\n")
        body = _GAPS.sub("\n\n", "\n".join(line.strip() if not line.startswith("    ") else line for line in lines))
        return f"{title}\n\n{body.strip()}".strip()

    def _absolute(self, target: str) -> str:
        try:
            return urljoin(self._url, target)
        except ValueError:
            return target
