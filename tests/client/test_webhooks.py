"""What the receiver of a webhook believes."""

from __future__ import annotations

from typing import Any

import pytest

from weftline.client import InvalidSignature, verify_webhook
from weftline.workspace.delivering import signature

SECRET, BODY, NOW = "whsec_1", b'{"type": "run.ended"}', 1_800_000_000
GOOD = signature(SECRET.encode(), BODY, at_s=NOW)


@pytest.mark.parametrize("after_s", [-300, 0, 300])
def test_a_request_of_the_server_is_accepted_within_the_tolerance(after_s: int) -> None:
    assert verify_webhook(BODY, GOOD, SECRET, now_s=NOW + after_s) == {"type": "run.ended"}


def test_one_of_several_signatures_is_enough() -> None:
    assert verify_webhook(BODY, GOOD.replace(",", f",v1={'0' * 64}, "), SECRET, now_s=NOW)


@pytest.mark.parametrize(
    ("body", "given", "secret", "now_s"),
    [
        (BODY + b" ", GOOD, SECRET, NOW),
        (BODY, GOOD, "whsec_2", NOW),
        (BODY, GOOD, SECRET, NOW + 301),
        (BODY, GOOD, SECRET, NOW - 301),
        (BODY, GOOD.replace(str(NOW), str(NOW + 1)), SECRET, NOW),
        (BODY, GOOD.replace("v1=", "v0="), SECRET, NOW),
        (BODY, None, SECRET, NOW),
        (BODY, "", SECRET, NOW),
        (BODY, GOOD + f",t={NOW}", SECRET, NOW),
        (BODY, f"t=²,v1={'0' * 64}", SECRET, NOW),
        (BODY, f"t={'9' * 5000},v1=0", SECRET, NOW),
        (BODY, f"t={NOW},v1=é\udc80", SECRET, NOW),
    ],
)
def test_any_other_request_is_refused(body: bytes, given: str | None, secret: str, now_s: int) -> None:
    with pytest.raises(InvalidSignature):
        verify_webhook(body, given, secret, now_s=now_s)


def test_parsed_json_is_not_a_body() -> None:
    parsed: Any = {"type": "run.ended"}
    with pytest.raises(TypeError, match="must be the bytes of the request"):
        verify_webhook(parsed, GOOD, SECRET)
