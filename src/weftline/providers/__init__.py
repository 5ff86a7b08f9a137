"""Models and their APIs: each is imported from its own module. See docs/models.md."""

from typing import TYPE_CHECKING

if not TYPE_CHECKING:  # a type checker would assume that every name exists
    from weftline.text.public_pages import helping

    __getattr__ = helping(__name__)
