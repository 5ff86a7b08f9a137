"""Types that keep a value out of logs, where arguments always are."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints


def refuse_secrets(hint: object, *, where: str) -> None:
    """Raises `TypeError` if a type hint of arguments has a secret type anywhere in it; `where` begins the message."""
    if secret := _secret_in(hint):
        raise TypeError(
            f"{where} takes a {secret}, but a model writes the arguments, and the log keeps them as they are;"
            " have the function get the secret from its environment or its deps instead"
        )


def _secret_in(hint: object) -> str:
    """Returns the name of a secret type of pydantic's anywhere in a type hint; empty if there is none."""
    from pydantic import BaseModel, Secret, SecretBytes, SecretStr

    seen: set[int] = set()
    waiting: list[Any] = [hint]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        waiting += get_args(one)
        kind: type[object] | None = one if isinstance(one, type) else None
        if kind is None:  # a generic type with its arguments, an alias made by `type X = …`, or a `NewType`
            waiting += [getattr(one, part, None) for part in ("__origin__", "__value__", "__supertype__")]
        elif issubclass(kind, SecretStr | SecretBytes | Secret):
            return kind.__name__
        elif issubclass(kind, BaseModel):
            waiting += [field.annotation for field in kind.model_fields.values()]
        elif is_dataclass(kind) or hasattr(kind, "__total__") or hasattr(kind, "_fields"):
            waiting += _hints(kind)
    return ""


def _hints(kind: type) -> list[Any]:
    try:
        return list(get_type_hints(kind, include_extras=True).values())
    except NameError:  # pydantic reports what cannot be resolved
        return []
