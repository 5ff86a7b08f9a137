from __future__ import annotations

from weftline.text.display import escaped


def test_escaped_text_cannot_end_its_element_or_attribute() -> None:
    assert escaped('<a b="c">&') == "&lt;a b=&quot;c&quot;&gt;&amp;"
