"""What is wrong with the body of a run."""

from __future__ import annotations

import pytest

from weftline.errors import InvalidRequest
from weftline.spec.door import parse_run


def refused(raw: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_run(raw)
    return caught.value


def paths(error: InvalidRequest) -> list[str]:
    return [issue["path"] for issue in error.details["issues"]]
