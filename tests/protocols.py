"""What a protocol consists of."""

from __future__ import annotations


def members_of(*protocols: type) -> set[str]:
    """The public names that our protocols declare, themselves or through those that they extend."""
    ours = [one for protocol in protocols for one in protocol.__mro__ if one.__module__.startswith("weftline.")]
    declared = {name for one in ours for name in (*vars(one), *vars(one).get("__annotations__", ()))}
    return {name for name in declared if not name.startswith("_")}
