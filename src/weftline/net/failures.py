"""Translates the HTTP library's errors to our own."""

from __future__ import annotations

import ssl

from weftline.net.egress import EgressRefused
from weftline.net.errors import RequestFailed
from weftline.net.limits import DEFAULT_LIMITS, TimeLimits


def failure(error: Exception, *, host: str, begun: bool, limits: TimeLimits = DEFAULT_LIMITS) -> RequestFailed:
    """Returns the failure.

    `begun` says whether the head of the response had arrived; `limits` were those of the request.
    """
    import aiohttp

    match error:
        case RequestFailed():
            return error
        case EgressRefused() | aiohttp.ClientConnectorError(os_error=EgressRefused()):
            refusal = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            return RequestFailed("refused", str(refusal), sent=False)
        case aiohttp.ClientConnectorCertificateError():
            cause = error.certificate_error
            why = f": {cause.verify_message}" if isinstance(cause, ssl.SSLCertVerificationError) else ""
            return RequestFailed("certificate", f"The certificate of {host} is not trusted{why}.", sent=False)
        case aiohttp.ClientProxyConnectionError():
            return RequestFailed("connect", "Could not connect to the proxy.", sent=False)
        case aiohttp.ClientHttpProxyError():
            return RequestFailed("proxy", f"The proxy did not connect to {host}: status {error.status}.", sent=False)
        case aiohttp.ClientConnectorError():
            return RequestFailed("connect", f"Could not connect to {host}.", sent=False)
        case aiohttp.ConnectionTimeoutError():
            return RequestFailed(
                "timeout", f"Could not connect to {host} within {limits.connect_s or 0:g} s.", sent=False
            )
        case TimeoutError():
            return RequestFailed("timeout", f"{host} did not answer within {limits.head_s or 0:g} s.", sent=True)
        case aiohttp.InvalidURL() | ValueError():
            return RequestFailed("invalid", "The URL or a header of the request is not valid.", sent=False)
        case aiohttp.ClientError() | OSError():
            when = "in the middle of its response" if begun else "before it responded"
            return RequestFailed("broken", f"The connection to {host} broke {when}.", sent=True)
        case _:
            return RequestFailed("unknown", f"The request to {host} failed: {type(error).__name__}.", sent=True)
