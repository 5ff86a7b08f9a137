"""Why a run has no accepted answer of its model yet."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from weftline.kernel.bodies import FailedBody
from weftline.kernel.entries import AttemptFailed


class LatestFailure(Struct, frozen=True, eq=False, gc=False):
    """Model calls that failed, and answers that were rejected, since the latest turn was completed."""

    failed: tuple[AttemptFailed, FailedBody] | None = None
    """The latest model call that failed."""
    partial: str = ""
    """The text that had been streamed by then."""
    rejected: str = ""
    """What the model read about its latest answer, if it was rejected."""

    @property
    def message(self) -> str:
        """The error that ended the latest model call, if it failed."""
        return "" if self.failed is None else self.failed[1].message

    def after(self, attempt: AttemptFailed, body: FailedBody) -> LatestFailure:
        """Another model call has failed. If it did so before its first word, the text of an earlier one is kept."""
        return replace(self, failed=(attempt, body), partial=body.text or self.partial)


NO_FAILURE = LatestFailure()
