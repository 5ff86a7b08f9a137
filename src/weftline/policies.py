"""Limits on what an agent may call, and code that decides about each turn. See docs/policies.md."""

from weftline.agent.policy import BasicPolicy, Caps, Policy, PolicyDecision, PolicyTurn
from weftline.spec.groups import TagClause

__all__ = [
    "BasicPolicy",
    "Caps",
    "Policy",
    "PolicyDecision",
    "PolicyTurn",
    "TagClause",
]
