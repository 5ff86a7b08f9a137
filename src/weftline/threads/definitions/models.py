"""Models: a name in the folder for a model of a provider, with its prices and what it can do.

model = define_model(name="fast", provider="openai", model="gpt-5-mini", fallbacks=["careful"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from msgspec import Struct

from weftline.threads.definitions.base import Checks, PackedMetadata

ProviderFactory: TypeAlias = Callable[..., Any]
"""Makes a provider of its configuration. Its attribute `provider_options`, if it has one, is the type that a model's
options are checked against."""


class ModelCapabilities(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a model can do; None where that is not known."""

    reasoning_levels: dict[int, str | None] | None = None
    """The provider's word by level, from 0 to 100; None turns reasoning off."""
    supports_images: bool | None = None
    supports_tool_calls: bool | None = None
    supports_streaming: bool | None = None
    supports_json_mode: bool | None = None
    max_context_tokens: int | None = None
    max_output_tokens: int | None = None


class ModelDefinition(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A model of a folder. Prices are USD per million tokens."""

    name: str
    provider: str | Any
    """The name of a provider of the server (`openai`, `anthropic`, `scripted`, `test`), or what makes one."""
    model: str
    """What the provider calls it."""
    fallbacks: tuple[str, ...] = ()
    """The models of the folder that are tried next, in order."""
    included_providers: tuple[str, ...] = ()
    input_price: float | None = None
    output_price: float | None = None
    cached_price: float | None = None
    capabilities: ModelCapabilities | None = None
    provider_options: dict[str, Any] = {}
    provider_tools: tuple[str, ...] = ()
    """Tools that the provider executes itself, by its own names."""
    packed: PackedMetadata | None = None
    """The package that it is from; None for one of the folder itself."""

    def __post_init__(self) -> None:
        checks = Checks("model", self.name, self.packed)
        checks.name(self.name)
        checks.text(self.model, "model")
        provider: object = self.provider
        if not (callable(provider) or (isinstance(provider, str) and provider.strip())):
            checks.problem("provider", f"must be the name of a provider or a function that makes one, not {provider!r}")
        for field in ("input_price", "output_price", "cached_price"):
            price: object = getattr(self, field)
            if price is None:
                continue
            if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
                checks.problem(field, f"must be USD per million tokens, 0 or more, not {price!r}")
        checks.names(self.fallbacks, "fallbacks")
        checks.names(self.included_providers, "included_providers")
        checks.names(self.provider_tools, "provider_tools")
        checks.options(self.provider_options, "provider_options")
        if self.capabilities is not None:
            _check_capabilities(self.capabilities, checks)
        if not checks.issues:
            for path, message in _option_problems(self.provider, self.provider_options):
                checks.problem(path, message)
        checks.done()


def define_model(
    *,
    name: str,
    provider: str | ProviderFactory,
    model: str,
    fallbacks: Iterable[str] = (),
    included_providers: Iterable[str] = (),
    input_price: float | None = None,
    output_price: float | None = None,
    cached_price: float | None = None,
    capabilities: ModelCapabilities | None = None,
    provider_options: Mapping[str, Any] | None = None,
    provider_tools: Iterable[str] = (),
) -> ModelDefinition:
    """Returns a model of a folder.

    Raises:
        DefinitionError: if a field is wrong; all of them are named.
    """
    return ModelDefinition(
        name=name,
        provider=provider,
        model=model,
        fallbacks=as_tuple(fallbacks),
        included_providers=as_tuple(included_providers),
        input_price=input_price,
        output_price=output_price,
        cached_price=cached_price,
        capabilities=capabilities,
        provider_options=as_dict(provider_options),
        provider_tools=as_tuple(provider_tools),
    )


def map_reasoning_level(level: int, levels: Mapping[int, str | None] | None) -> str | None:
    """Returns the provider's word for a level from 0 to 100: that of the nearest level that has one, of two the lower.

    None if there are no levels, and for one that turns reasoning off.
    """
    if not levels:
        return None
    return levels[min(levels, key=lambda one: (abs(one - level), one))]


def as_tuple(values: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the values; what is no list, such as a string, as it is, so that the check can say so."""
    given = cast(object, values)
    return (
        cast("tuple[Any, ...]", given) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(values)
    )


def as_dict(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the values; what is no mapping as it is, so that the check can say so."""
    given = cast(object, values)
    return dict(values or {}) if given is None or isinstance(given, Mapping) else cast("dict[str, Any]", given)


def _check_capabilities(given: object, checks: Checks) -> None:
    if not isinstance(given, ModelCapabilities):
        checks.problem("capabilities", f"must be ModelCapabilities(…), not {given!r}")
        return
    for level in given.reasoning_levels or {}:
        checks.whole(level, "capabilities.reasoning_levels", most=100)


def _option_problems(provider: object, options: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    schema: object = getattr(provider, "provider_options", None)
    if not isinstance(schema, type):
        return ()
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(schema).validate_python(dict(options))
    except ValidationError as error:
        return [(".".join(map(str, ("provider_options", *one["loc"]))), one["msg"]) for one in error.errors()]
    return ()
