"""Limits on what an agent may call, and code that decides about each turn. See docs/policies.md."""

from typing import TYPE_CHECKING

from weftline.agent.settings import BasicPolicy, Caps, Policy, PolicyDecision, PolicyTurn
from weftline.spec.groups import TagClause

__all__ = [
    "BasicPolicy",
    "Caps",
    "Policy",
    "PolicyDecision",
    "PolicyTurn",
    "TagClause",
]

if not TYPE_CHECKING:  # a type checker would assume that every name exists
    from weftline.text.public_pages import helping

    __getattr__ = helping(__name__)
