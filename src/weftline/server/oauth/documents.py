"""Fetches the documents that describe OAuth clients, from untrusted addresses."""

from __future__ import annotations

import logging

from weftline.net.dial import Dialer
from weftline.net.errors import BodyTooLarge, RequestFailed
from weftline.workspace.client_documents import MAX_DOCUMENT_BYTES, DocumentUnusable

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0


async def read_document(dialer: Dialer, url: str) -> bytes:
    """Returns the content of the address itself, without following redirects. Raises `DocumentUnusable`."""
    try:
        async with dialer.request("GET", url, headers={"Accept": "application/json"}, timeout_s=_TIMEOUT_S) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.status != 200:
                raise DocumentUnusable(f"names a document that could not be fetched: the answer was {response.status}")
            if kind != "application/json" and not kind.endswith("+json"):
                raise DocumentUnusable("names something that is not a JSON document")
            return await response.read(limit=MAX_DOCUMENT_BYTES)
    except BodyTooLarge:
        raise DocumentUnusable(f"names a document of more than {MAX_DOCUMENT_BYTES} bytes") from None
    except RequestFailed as error:
        # The client learns nothing about this server's network.
        logger.info("the document of an OAuth client could not be fetched from %s: %s", url[:500], error)
        raise DocumentUnusable("names a document that could not be fetched") from None
