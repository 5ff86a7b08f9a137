"""The `awaits` and `onDeploy` of a run's spec: how long people may take, and how long an approval is valid."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Raw, Struct, json
from msgspec.structs import replace

from weftline.kernel.control import OnDeploy, stricter
from weftline.kernel.entries import Limits
from weftline.wire.json_text import encode

_OnExpired: TypeAlias = Literal["deny", "end"]


class WireAwaits(Struct, rename="camel", omit_defaults=True):
    timeout_ms: int | None = None
    on_expired: _OnExpired | None = None
    grant_ttl_ms: int | None = None
    four_eyes: bool | None = None

    def within(self, above: WireAwaits) -> WireAwaits:
        """Returns the tighter of both: less time, and the additional demands of either."""
        return WireAwaits(
            _less(self.timeout_ms, above.timeout_ms),
            "end" if "end" in (self.on_expired, above.on_expired) else self.on_expired or above.on_expired,
            _less(self.grant_ttl_ms, above.grant_ttl_ms),
            self.four_eyes or above.four_eyes,
        )


_decode = json.Decoder(WireAwaits).decode
_decode_on_deploy = json.Decoder(OnDeploy).decode


def with_awaits(limits: Limits, awaits: WireAwaits | None, on_deploy: OnDeploy | None) -> Limits:
    """Returns the limits of a run with these settings."""
    if awaits is None:
        return limits if on_deploy is None else replace(limits, on_deploy=on_deploy)
    return replace(
        limits,
        await_timeout_us=None if awaits.timeout_ms is None else awaits.timeout_ms * 1000,
        on_await_expired=awaits.on_expired or limits.on_await_expired,
        grant_ttl_us=limits.grant_ttl_us if awaits.grant_ttl_ms is None else awaits.grant_ttl_ms * 1000,
        four_eyes=bool(awaits.four_eyes),
        on_deploy=on_deploy or limits.on_deploy,
    )


def awaits_within(own: Raw, above: Raw) -> Raw:
    """Returns the rules for a run with its own, within those of its agent or session."""
    return Raw(encode(_decode(own).within(_decode(above))))


def on_deploy_within(own: Raw, above: Raw) -> Raw:
    """Returns the stricter of two, in the order `adopt`, `ask`, `pin`."""
    return Raw(encode(stricter(_decode_on_deploy(own), _decode_on_deploy(above))))


def _less(one: int | None, other: int | None) -> int | None:
    given = [ms for ms in (one, other) if ms is not None]
    return min(given) if given else None
