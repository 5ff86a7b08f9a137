"""HTML as text."""

from __future__ import annotations

from weftline.tools.builtin.page import page_text

PAGE = """<!doctype html><html><head><title> A  page </title><style>p {}</style></head>
<body><nav><a href="/home">Home</a></nav>
<h1>Top</h1><p>One <b>two</b>
three&nbsp;&amp; four<br>five</p>
<script>alert("no")</script>
<ul><li>first<li>second <a href="#x">here</a></ul>
<table><tr><th>a</th><td>b</td></tr></table>
<pre>x = 1
    y = 2</pre><img src="x.png" alt="A cat"><noscript>hidden</noscript>
"""


def test_a_page_reads_like_a_page() -> None:
    text = page_text(PAGE, url="https://x.example/deep/")
    lines = [line for line in text.splitlines() if line]
    assert lines == [
        "A page",
        "Home (https://x.example/home)",
        "# Top",
        "One two three & four",
        "five",
        "- first",
        "- second here",
        "| a | b",
        "x = 1",
        "    y = 2",
        "[image: A cat]",
    ]


def test_broken_html_is_read_as_far_as_it_goes() -> None:
    assert page_text("<p>open <b>bold <script>never closed") == "open bold"
    assert page_text("</div></script><p>x") == "x"
    assert page_text("<head><meta x><body>text") == "text"
    assert page_text("plain") == "plain"
