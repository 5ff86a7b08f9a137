"""A secret is found in whatever JSON, addresses, HTML and base64 make of it."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.text.redaction import REDACTED, Redactor

SECRET = 'tok+9Qw/7Lm=Kp&4<Rt6"Yv8'
AWKWARD = 'p@ss/w+rd="q\\z&<Q7'
PLAIN = "Zx9Qw7Lm2Kp4Rt6Yv8"
DATA = SECRET.encode()


def _only(chars: str, form: str) -> str:
    """With these characters escaped, as one writer of JSON or another does it."""
    return "".join(form.format(ord(char)) if char in chars else char for char in SECRET)


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


GO = _only("&<", "\\u{:04x}").replace('"', '\\"')
NET = _only('+&<"', "\\u{:04X}")
SPELLINGS = {
    "Go": GO,
    ".NET": NET,
    "Gson": _only('&<="', "\\u{:04x}"),
    "PHP": GO.replace("/", "\\/"),
    "PHP with hex": _only('"&<', "\\u{:04X}").replace("/", "\\/"),
    "JSON, all of it": _only(SECRET, "\\u{:04X}"),
    "JSON, every other": "".join(f"\\u{ord(c):04x}" if i % 2 else c for i, c in enumerate(SECRET)).replace('"', '\\"'),
    "JSON in JSON": _in_json(NET),
    "JSON in JSON in JSON": _in_json(_in_json(GO)),
    "JavaScript": "".join(f"\\x{byte:02x}" for byte in DATA),
    "braces": _only("+/=", "\\u{{{:x}}}"),
    "octal": "".join(f"\\{byte:03o}" for byte in DATA),
    "address": quote(SECRET, safe=""),
    "address in lower case": quote(SECRET, safe="").replace("%2B", "%2b").replace("%2F", "%2f").replace("%3D", "%3d"),
    "address with its slash": quote(SECRET),
    "address, all of it": "".join(f"%{byte:02x}" for byte in DATA),
    "address in an address": quote(quote(SECRET, safe=""), safe=""),
    "address in JSON in JSON": _in_json(_in_json(quote(SECRET, safe="/"))),
    "HTML": html.escape(SECRET),
    "HTML of Go": html.escape(SECRET).replace("&quot;", "&#34;").replace("+", "&#43;"),
    "HTML by number": "".join(f"&#{byte};" for byte in DATA),
    "HTML by number, without a semicolon": "".join(f"&#{byte}" for byte in DATA),
    "HTML by hex number": "".join(f"&#X{byte:04X};" for byte in DATA),
    "HTML by name": SECRET.replace("&", "&amp;").replace("+", "&plus;").replace("=", "&equals;").replace("<", "&lt;"),
    "HTML in JSON": _in_json(html.escape(SECRET)),
    "hex": DATA.hex(),
    "HEX": DATA.hex().upper(),
    "base64": base64.b64encode(DATA).decode().rstrip("="),
    "base64 for addresses": base64.urlsafe_b64encode(DATA).decode().rstrip("="),
    "base64 in lines": "\n".join(base64.b64encode(DATA).decode().rstrip("=")[at : at + 8] for at in range(0, 32, 8)),
    "base64 in an address": quote(base64.b64encode(DATA).decode().rstrip("="), safe=""),
    "base64 in lines in JSON": _in_json(base64.encodebytes(DATA * 1).decode().strip().rstrip("=")),
    "two lines": SECRET[:9] + "\n" + SECRET[9:],
}


@pytest.mark.parametrize("spelled", SPELLINGS.values(), ids=SPELLINGS)
def test_a_secret_is_found_in_this_spelling(spelled: str) -> None:
    assert Redactor([SECRET]).text(f"before: {spelled} :after") == f"before: {REDACTED} :after"


@pytest.mark.parametrize("before", ["", "u", "us", "user:", "another-user:"])
@pytest.mark.parametrize("secret", [SECRET, AWKWARD, PLAIN, "abcde"])
def test_base64_is_found_wherever_the_secret_begins_in_it(before: str, secret: str) -> None:
    encoded = base64.b64encode(before.encode() + secret.encode() + b" and more").decode()
    shown = Redactor([secret]).text(f"({encoded})")
    assert REDACTED in shown
    left = shown[1:-1].partition(REDACTED)
    assert len(left[0]) <= len(before) * 8 // 6 and encoded.startswith(left[0]) and encoded.endswith(left[2])


_SPELL: tuple[Callable[[str], str], ...] = (
    lambda char: char,
    lambda char: f"\\u{ord(char):04x}",
    lambda char: f"\\u{ord(char):04X}",
    lambda char: "".join(f"%{byte:02x}" for byte in char.encode()),
    lambda char: f"&#{ord(char)};",
    lambda char: f"&#x{ord(char):x};",
    lambda char: _in_json(_in_json(char)) if char in '"\\' else char,
)


@given(st.text(alphabet="abcXYZ019+/=<>\"'@:;.ü€ -_~", min_size=3, max_size=30), st.data())
def test_every_character_may_be_spelled_in_its_own_way(secret: str, data: st.DataObject) -> None:
    spelled = "".join(data.draw(st.sampled_from(_SPELL))(char) for char in secret)
    shown = Redactor([secret]).text(f"{{{spelled}}}")
    assert shown == f"{{{REDACTED}}}"


@given(st.text(min_size=3, max_size=30), st.integers(min_value=0, max_value=3))
def test_json_inside_of_json_is_found_whatever_the_secret_is(secret: str, levels: int) -> None:
    spelled = secret
    for _ in range(levels):
        spelled = _in_json(spelled)
    assert Redactor([secret]).text(f"<{spelled}>") == f"<{REDACTED}>"


@given(st.text(max_size=200))
def test_a_text_without_the_secret_stays_as_it_is(text: str) -> None:
    assert Redactor([PLAIN]).text(text) == text


@pytest.mark.parametrize("secret", ["a%41b%42", "x&amp;y&lt;z", "q\\nz\\tq"])
def test_a_secret_that_looks_escaped_itself_is_found(secret: str) -> None:
    for spelled in (secret, _in_json(secret), quote(secret, safe=""), html.escape(secret)):
        assert Redactor([secret]).text(f"[{spelled}]") == f"[{REDACTED}]"
