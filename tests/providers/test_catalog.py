"""The catalog: which models there are, what an id names, and what the configuration file may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weftline.config import Config, load_config
from weftline.errors import WeftlineError
from weftline.messages import User
from weftline.net.errors import TimeLimits
from weftline.providers.assemble import collect
from weftline.providers.base import ModelInfo, ModelRequest, Provider
from weftline.providers.catalog import MAX_CANDIDATES, Catalog, build_catalog, usual_providers
from weftline.providers.families import FAMILIES, ProviderSettings
from weftline.providers.google.provider import Google
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.providers.throttle import ThrottledProvider
from weftline.testing.recordings import RecordedTransport

TRANSPORT = RecordedTransport([])
SCRIPTED = ScriptedProvider(parse_scripts(b'{"hello": {"turns": [{"text": "Hi"}]}}'))


def catalog(*settings: ProviderSettings, **more: Any) -> Catalog:
    return build_catalog(settings, transport=TRANSPORT, environ={}, **more)


def claude(**more: Any) -> ProviderSettings:
    fields: dict[str, Any] = {
        "name": "claude",
        "family": "anthropic",
        "api_key": "sk-secret",
        "models": (ModelInfo("claude-sonnet-4-5", "Sonnet", 200_000), ModelInfo("claude-opus-4-5")),
    }
    return ProviderSettings(**(fields | more))


def openai(name: str = "openai", **more: Any) -> ProviderSettings:
    fields: dict[str, Any] = {"family": "openai_responses", "api_key": "sk-secret", "models": (ModelInfo("gpt-5.5"),)}
    return ProviderSettings(name=name, **(fields | more))


def invalid(models: Catalog, model_id: str | None) -> list[str]:
    with pytest.raises(WeftlineError) as caught:
        models.resolve(model_id)
    assert (caught.value.code, caught.value.status) == ("invalid_model", 400)
    return caught.value.details["candidates"]


def refused(path: Path, text: str) -> WeftlineError:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(WeftlineError) as caught:
        load_config(path).catalog(transport=TRANSPORT, environ={})
    assert caught.value.code == "bad_config"
    assert str(path) in caught.value.message
    assert caught.value.details["file"] == str(path)
    return caught.value


def test_model_entry_has_id_label_provider_window_and_price() -> None:
    sonnet, opus = catalog(claude()).entries()
    assert sonnet.id == "claude:claude-sonnet-4-5"
    assert (sonnet.label, opus.label) == ("Sonnet", "claude-opus-4-5")
    assert (sonnet.provider, sonnet.vendor_model_id) == ("anthropic", "claude-sonnet-4-5")
    assert (sonnet.context_window_tokens, sonnet.source, sonnet.pricing) == (200_000, "workspace_provider", None)


def test_platform_offerings_alone_have_a_price() -> None:
    [entry, *_] = catalog(claude(source="platform_offering")).entries()
    assert entry.source == "platform_offering"
    assert entry.pricing is not None
    assert entry.pricing.input_per_1m_usd is not None


def test_scripts_are_models_of_their_own_and_never_the_default() -> None:
    models = catalog(scripted=SCRIPTED)
    [entry] = models.entries()
    assert (entry.id, entry.provider, entry.vendor_model_id) == ("scripted:hello", "scripted", "hello")
    assert models.resolve("scripted:hello").provider is SCRIPTED
    assert models.default_id is None
    assert invalid(models, None) == ["scripted:hello"]
    assert catalog(scripted=SCRIPTED, default_model="scripted:hello").resolve(None).vendor_id == "hello"


async def test_a_resolved_model_can_be_called() -> None:
    model = catalog(scripted=SCRIPTED).resolve("scripted:hello")
    assert (await collect(model.provider, ModelRequest(model.vendor_id, [User.of("Hello")]))).text == "Hi"


@pytest.mark.requirement("wire.models.resolve")
def test_ids_resolve_in_the_documented_order() -> None:
    models = catalog(claude(), openai())

    def named(model_id: str | None) -> tuple[str, str]:
        found = models.resolve(model_id)
        return found.catalog_id, found.vendor_id

    assert named("claude:claude-opus-4-5") == ("claude:claude-opus-4-5", "claude-opus-4-5")
    assert named("provider:claude") == ("claude:claude-sonnet-4-5", "claude-sonnet-4-5")
    assert named("provider:claude:claude-opus-4-5") == ("claude:claude-opus-4-5", "claude-opus-4-5")
    assert named("gpt-5.5") == ("openai:gpt-5.5", "gpt-5.5")
    assert named("openai:gpt-5.5") == ("openai:gpt-5.5", "gpt-5.5")
    assert named("anthropic:claude-opus-4-5") == ("claude:claude-opus-4-5", "claude-opus-4-5")
    assert named(None) == ("claude:claude-sonnet-4-5", "claude-sonnet-4-5")
    assert catalog(claude(), openai(), default_model="gpt-5.5").default_id == "openai:gpt-5.5"


@pytest.mark.requirement("wire.models.resolve")
def test_a_platform_offering_is_named_by_platform_and_its_id() -> None:
    models = catalog(claude(source="platform_offering"))
    assert models.resolve("platform:claude-opus-4-5").catalog_id == "claude:claude-opus-4-5"
    assert models.resolve("platform:claude:claude-opus-4-5").catalog_id == "claude:claude-opus-4-5"
    assert invalid(catalog(claude()), "platform:claude-opus-4-5")


def test_vendor_id_with_colon_is_looked_up_whole_first() -> None:
    free = openai("router", family="openai_chat", options={"profile": "openrouter"}, models=(ModelInfo("a/b:free"),))
    assert catalog(free).resolve("a/b:free").catalog_id == "router:a/b:free"
    assert catalog(free).resolve("router:a/b:free").vendor_id == "a/b:free"


def test_vendor_id_of_two_providers_is_ambiguous() -> None:
    models = catalog(openai("one"), openai("two"))
    assert invalid(models, "gpt-5.5") == ["one:gpt-5.5", "two:gpt-5.5"]
    assert invalid(models, "openai:gpt-5.5") == ["one:gpt-5.5", "two:gpt-5.5"]
    assert models.resolve("two:gpt-5.5").catalog_id == "two:gpt-5.5"


def test_unlisted_model_id_needs_the_providers_permission() -> None:
    assert invalid(catalog(claude()), "claude:claude-next")[0].startswith("claude:")
    assert invalid(catalog(claude()), "provider:claude:claude-next")
    for models in (catalog(claude(any_model=True)), catalog(claude(models=()))):
        found = models.resolve("claude:claude-next")
        assert (found.catalog_id, found.vendor_id) == ("claude:claude-next", "claude-next")
        assert (found.entry.label, found.entry.context_window_tokens) == ("claude-next", None)
        assert models.resolve("provider:claude:claude-next").vendor_id == "claude-next"
        assert models.resolve("anthropic:claude-next").vendor_id == "claude-next"
        assert invalid(models, "claude-next")
        assert invalid(models, "claude:")
    assert invalid(catalog(claude(models=(), any_model=False)), "claude:claude-next")


def test_unknown_id_names_nearest_candidates_first_and_only_so_many() -> None:
    many = tuple(ModelInfo(f"model-{number}") for number in range(100))
    candidates = invalid(catalog(claude(), openai(models=many)), "claude-sonet-4-5")
    assert candidates[0] == "claude:claude-sonnet-4-5"
    assert len(candidates) == MAX_CANDIDATES
    assert invalid(catalog(), None) == []
    assert invalid(catalog(claude()), "") == ["claude:claude-sonnet-4-5", "claude:claude-opus-4-5"]


def test_default_that_is_not_there_is_refused_at_start() -> None:
    with pytest.raises(WeftlineError) as caught:
        catalog(claude(), default_model="claude:nothing")
    assert caught.value.code == "invalid_model"


def _inner(provider: Provider) -> Provider:
    assert isinstance(provider, ThrottledProvider)
    return provider.inner


def test_without_configuration_each_key_in_the_environment_is_a_provider() -> None:
    keys = {
        "ANTHROPIC_API_KEY": "anthropic",
        "OPENAI_API_KEY": "openai",
        "GEMINI_API_KEY": "google",
        "OPENROUTER_API_KEY": "openrouter",
        "GROQ_API_KEY": "groq",
        "CEREBRAS_API_KEY": "cerebras",
        "XAI_API_KEY": "xai",
        "DEEPSEEK_API_KEY": "deepseek",
        "MISTRAL_API_KEY": "mistral",
        "OLLAMA_BASE_URL": "ollama",
        "VLLM_BASE_URL": "vllm",
        "AZURE_OPENAI_API_KEY": "azure",
        "AWS_BEARER_TOKEN_BEDROCK": "bedrock",
    }
    for variable, name in keys.items():
        value = "http://lab.test" if variable.endswith("URL") else "sk-secret"
        more = {"AZURE_OPENAI_ENDPOINT": "https://lab.test"} if name == "azure" else {"AWS_REGION": "eu-west-1"}
        models = Config().catalog(transport=TRANSPORT, environ={variable: value, **more})
        assert models.resolve(f"{name}:m").provider.name == name
        if models.entries():
            assert {entry.provider for entry in models.entries()} == {name}
            assert models.resolve(None).catalog_id == models.entries()[0].id
        assert len(models.unavailable()) == len(keys) - 1
    assert {one.name for one in usual_providers()} == set(keys.values())
    google = Config().catalog(transport=TRANSPORT, environ={"GOOGLE_API_KEY": "sk-secret"})
    assert isinstance(_inner(google.resolve(None).provider), Google)


@pytest.mark.requirement("provider.request.key_secrecy")
@pytest.mark.parametrize(
    ("provider", "key", "variable", "address", "sent_to"),
    [
        ("azure", "AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT", "http://gw.test/", "/openai/v1/chat/completions"),
        ("anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "http://gw.test/claude", "/claude/v1/messages"),
        ("openai", "OPENAI_API_KEY", "OPENAI_BASE_URL", "http://gw.test/v1/", "/v1/responses"),
        ("google", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL", "http://gw.test/g", "/g/v1beta/models/"),
        ("google", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL", "http://gw.test/v1", "/v1/models/"),
    ],
)
async def test_gateway_that_environment_names_is_asked_in_place_of_vendor(
    provider: str, key: str, variable: str, address: str, sent_to: str
) -> None:
    transport = RecordedTransport([])
    environ = {key: "sk-secret", variable: address}
    found = Config().catalog(transport=transport, environ=environ).resolve(f"{provider}:m")
    with pytest.raises(LookupError):
        await collect(found.provider, ModelRequest("m", [User.of("Hi")]))
    assert transport.sent[0].url.startswith(f"http://gw.test{sent_to}")
    assert "sk-secret" in str(transport.sent[0].headers)
    with pytest.raises(WeftlineError, match=variable):
        Config().catalog(transport=transport, environ={key: "sk-secret", variable: "gw.test"})
    assert Config().catalog(transport=transport, environ={variable: "gw.test"}).entries() == []


@pytest.mark.requirement("provider.request.key_secrecy")
@pytest.mark.parametrize(
    ("settings", "variable", "sent_to"),
    [
        ('family = "anthropic"', "ANTHROPIC_BASE_URL", "http://gw.test/v1/messages"),
        ('family = "openai_chat"', "OPENAI_BASE_URL", "http://gw.test/chat/completions"),
        ('family = "openai_responses"', "OPENAI_BASE_URL", "http://gw.test/responses"),
        ('family = "google"', "GOOGLE_GEMINI_BASE_URL", "http://gw.test/v1beta/models/"),
        ('family = "anthropic"\nbase_url = "http://lab.test"', "ANTHROPIC_BASE_URL", "http://lab.test/v1/messages"),
        ('family = "openai_chat"\nprofile = "groq"', "OPENAI_BASE_URL", "https://api.groq.com/"),
    ],
)
async def test_provider_of_file_without_address_asks_that_gateway_too(
    tmp_path: Path, settings: str, variable: str, sent_to: str
) -> None:
    path = tmp_path / "weftline.toml"
    path.write_text(f'[providers.mine]\n{settings}\napi_key = "sk-secret"\nmodels = ["m"]\n')
    transport = RecordedTransport([])
    found = load_config(path).catalog(transport=transport, environ={variable: "http://gw.test"}).resolve("mine:m")
    with pytest.raises(LookupError):
        await collect(found.provider, ModelRequest("m", [User.of("Hi")]))
    assert transport.sent[0].url.startswith(sent_to)


@pytest.mark.parametrize(
    ("environ", "model", "sent_to"),
    [
        ({"OLLAMA_BASE_URL": "http://lab:11434"}, "ollama:m", "http://lab:11434/v1/chat/completions"),
        ({"VLLM_BASE_URL": "http://lab:8000/v1/"}, "vllm:m", "http://lab:8000/v1/chat/completions"),
        ({"OLLAMA_HOST": "lab"}, "ollama:llama3.2:3b", "http://lab:11434/v1/chat/completions"),
        ({"OLLAMA_HOST": "0.0.0.0:8000"}, "ollama:m", "http://127.0.0.1:8000/v1/chat/completions"),
        ({"OLLAMA_HOST": "https://lab.test/"}, "ollama:m", "https://lab.test/v1/chat/completions"),
        (
            {
                "AZURE_OPENAI_ENDPOINT": "https://lab.openai.azure.com/",
                "AZURE_OPENAI_API_KEY": "sk-secret",
                "OPENAI_API_VERSION": "2024-10-21",
            },
            "azure:my gpt",
            "https://lab.openai.azure.com/openai/deployments/my%20gpt/chat/completions?api-version=2024-10-21",
        ),
        (
            {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "sk-secret", "AWS_DEFAULT_REGION": "eu-west-1"},
            "bedrock:m",
            "https://bedrock-runtime.eu-west-1.amazonaws.com/model/m/invoke-with-response-stream",
        ),
        ({"DEEPSEEK_API_KEY": "k"}, "deepseek:deepseek-chat", "https://api.deepseek.com/v1/chat/completions"),
        ({"MISTRAL_API_KEY": "k"}, "mistral:mistral-large-latest", "https://api.mistral.ai/v1/chat/completions"),
    ],
)
async def test_usual_variables_of_other_vendors_are_enough(environ: dict[str, str], model: str, sent_to: str) -> None:
    transport = RecordedTransport([])
    found = build_catalog(usual_providers(), transport=transport, environ=environ).resolve(model)
    with pytest.raises(LookupError):
        await collect(found.provider, ModelRequest(found.vendor_id, [User.of("Hi")]))
    assert transport.sent[0].url == sent_to
    if model.startswith("azure"):
        assert transport.sent[0].headers["api-key"] == "sk-secret"


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("opnai:gpt-5", " Did you mean 'openai'?"),
        ("cohere:command-r", ""),
        ("ollama3:x", " Did"),
        ("gemini:x", " Did you mean 'google'?"),
    ],
)
def test_unknown_provider_is_answered_with_the_known_ones(model: str, hint: str) -> None:
    models = build_catalog(usual_providers(), transport=TRANSPORT, environ={})
    with pytest.raises(WeftlineError) as refused:
        models.resolve(model)
    names = ", ".join(sorted(one.name for one in usual_providers()))
    said = refused.value.message
    named = model.partition(":")[0]
    assert said.startswith(f"There is no model {model!r}: there is no provider {named!r}; known are {names}.")
    assert ("Did you mean" in said) is bool(hint) and hint in said


def test_provider_without_an_address_says_which_variable_to_set() -> None:
    models = build_catalog(usual_providers(), transport=TRANSPORT, environ={"AZURE_OPENAI_API_KEY": "k"})
    for model, variable in (("ollama:m", "OLLAMA_HOST"), ("azure:m", "AZURE_OPENAI_ENDPOINT"), ("groq:m", "GROQ_API_")):
        with pytest.raises(WeftlineError, match=variable):
            models.resolve(model)


def test_unavailable_feature_says_why() -> None:
    models = build_catalog(usual_providers(), transport=TRANSPORT, environ={"OPENAI_API_KEY": ""})
    reasons = {one.name: one.reason for one in models.unavailable()}
    assert models.entries() == []
    assert "OPENAI_API_KEY" in reasons["openai"]
    assert "GEMINI_API_KEY or GOOGLE_API_KEY" in reasons["google"]
    [missing] = catalog(claude(api_key="env:CLAUDE_KEY")).unavailable()
    assert (missing.name, missing.family) == ("claude", "anthropic")
    assert "CLAUDE_KEY" in missing.reason


def test_a_family_whose_package_is_missing_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "exotic", "a_package_that_is_not_installed.models:Exotic")
    [missing] = catalog(claude(family="exotic")).unavailable()
    assert "a_package_that_is_not_installed" in missing.reason


def test_a_new_family_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "mine", "weftline.providers.google.provider:Google")
    assert isinstance(_inner(catalog(claude(family="mine")).resolve("claude:claude-opus-4-5").provider), Google)


@pytest.mark.requirement("provider.request.key_secrecy")
def test_settings_do_not_show_their_key() -> None:
    assert "sk-secret" not in f"{claude()!r}{Config(providers=(claude(),))!r}"


def test_a_file_names_providers_models_prices_and_the_default(tmp_path: Path) -> None:
    path = tmp_path / "weftline.toml"
    path.write_text(
        """
default_model = "lab:llama"

[providers.claude]
family = "anthropic"
api_key = "env:CLAUDE_KEY"
source = "platform_offering"
models = ["claude-sonnet-4-5", {id = "claude-lab", label = "Lab", context_window_tokens = 1000, vision = true}]

[providers.lab]
family = "openai_chat"
base_url = "http://gpu.test:8000/v1"
models = ["llama"]
any_model = true

[[prices]]
provider = "anthropic"
model = "claude-lab"
input_per_1m_usd = 1
output_per_1m_usd = 2.5

[server]
port = 8080
""",
        encoding="utf-8",
    )
    config = load_config(path)
    assert config.server == {"port": 8080}
    models = config.catalog(transport=TRANSPORT, environ={"CLAUDE_KEY": "sk-secret"})
    entries = {entry.id: entry for entry in models.entries()}
    assert list(entries) == ["claude:claude-sonnet-4-5", "claude:claude-lab", "lab:llama"]
    assert models.default_id == "lab:llama"
    lab = entries["claude:claude-lab"]
    assert (lab.label, lab.context_window_tokens) == ("Lab", 1000)
    assert lab.pricing is not None
    assert (lab.pricing.input_per_1m_usd, lab.pricing.output_per_1m_usd) == (1.0, 2.5)
    assert entries["lab:llama"].provider == "lab"
    assert models.resolve("lab:other").vendor_id == "other"
    assert models.unavailable() == ()


@pytest.mark.requirement("provider.request.key_secrecy")
@pytest.mark.parametrize(("family", "variable"), [("openai_chat", "OPENAI_API_KEY"), ("google", "GEMINI_API_KEY")])
async def test_address_of_ones_own_gets_no_key_from_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, variable: str
) -> None:
    monkeypatch.setenv(variable, "sk-secret")
    path = tmp_path / "weftline.toml"
    path.write_text(f'[providers.lab]\nfamily = "{family}"\nbase_url = "http://gpu.test/v1"\nmodels = ["m"]\n')
    transport = RecordedTransport([])
    model = load_config(path).catalog(transport=transport).resolve("lab:m")
    with pytest.raises(LookupError):
        await collect(model.provider, ModelRequest("m", [User.of("Hi")]))
    assert transport.sent[0].url.startswith("http://gpu.test/v1/")
    assert "sk-secret" not in str(transport.sent[0].headers)


@pytest.mark.parametrize("family", ["anthropic", "bedrock", "google", "openai_chat", "openai_responses"])
async def test_each_time_limit_of_a_provider_can_be_set(tmp_path: Path, family: str) -> None:
    path = tmp_path / "weftline.toml"
    region = 'region = "eu-west-1"\n' if family == "bedrock" else ""
    path.write_text(
        f'[providers.lab]\nfamily = "{family}"\nbase_url = "http://gpu.test/v1"\nmodels = ["m"]\napi_key = "k"\n'
        f"{region}"
        "timeout_s = 50\nconnect_timeout_s = 0.5\nfirst_byte_timeout_s = 20\nidle_timeout_s = 10\n"
    )
    transport = RecordedTransport([])
    model = load_config(path).catalog(transport=transport).resolve("lab:m")
    for request in (ModelRequest("m", [User.of("Hi")]), ModelRequest("m", [User.of("Hi")], timeout_s=30)):
        with pytest.raises(LookupError):
            await collect(model.provider, request)
    whole, asked_for_less = (sent.limits for sent in transport.sent)
    assert whole == TimeLimits(connect_s=0.5, first_byte_s=20.0, idle_s=10.0, total_s=50.0)
    assert asked_for_less == whole.within(30)


@pytest.mark.parametrize("key", ["", 'api_key = "k"\n'])
def test_misspelt_provider_setting_is_named_with_or_without_a_key(tmp_path: Path, key: str) -> None:
    path = tmp_path / "weftline.toml"
    path.write_text(f'default_model = "lab:m"\n[providers.lab]\nfamily = "openai_chat"\nbaseurl = "http://x"\n{key}')
    with pytest.raises(WeftlineError) as wrong:
        load_config(path).catalog(transport=TRANSPORT, environ={})
    assert (wrong.value.code, wrong.value.details["key"]) == ("bad_config", "providers.lab.baseurl")
    assert wrong.value.message.endswith("Did you mean 'base_url'?")


def test_unavailable_default_provider_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "weftline.toml"
    path.write_text('default_model = "lab:m"\n[providers.lab]\nfamily = "anthropic"\napi_key = "env:LAB_KEY"\n')
    with pytest.raises(WeftlineError) as wrong:
        load_config(path).catalog(transport=TRANSPORT, environ={})
    assert wrong.value.code == "invalid_model" and "LAB_KEY" in wrong.value.message


def test_a_file_without_providers_takes_the_usual_ones(tmp_path: Path) -> None:
    path = tmp_path / "weftline.toml"
    path.write_text('default_model = "google:gemini-2.5-pro"\n', encoding="utf-8")
    models = load_config(path).catalog(transport=TRANSPORT, environ={"GEMINI_API_KEY": "sk-secret"})
    assert models.default_id == "google:gemini-2.5-pro"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("colour = 1", "colour"),
        ("default_model = 1", "default_model"),
        ("providers = 1", "providers"),
        ("[providers]\nclaude = 1", "providers.claude"),
        ('[providers."a:b"]\nfamily = "anthropic"', "providers.a:b"),
        ('[providers.scripted]\nfamily = "anthropic"', "providers.scripted"),
        ("[providers.claude]", "providers.claude.family"),
        ('[providers.claude]\nfamily = "anthropomorphic"', "providers.claude.family"),
        ('[providers.claude]\nfamily = "anthropic"\nbase_url = "ftp://x"', "providers.claude.base_url"),
        ('[providers.claude]\nfamily = "anthropic"\napi_key = "env:"', "providers.claude.api_key"),
        ('[providers.claude]\nfamily = "anthropic"\nsource = "moon"', "providers.claude.source"),
        ('[providers.claude]\nfamily = "anthropic"\napi_key = "k"\ntimeout_s = 0', "providers.claude.timeout_s"),
        ('[providers.claude]\nfamily = "anthropic"\napi_key = "k"\ntimeout_s = true', "providers.claude.timeout_s"),
        (
            '[providers.claude]\nfamily = "anthropic"\napi_key = "k"\nidle_timeout_s = "1"',
            "providers.claude.idle_timeout_s",
        ),
        ('[providers.claude]\nfamily = "anthropic"\napi_key = "k"\nlimits = 1', "providers.claude.limits"),
        ('[providers.claude]\nfamily = "anthropic"\nany_model = "yes"', "providers.claude.any_model"),
        ('[providers.claude]\nfamily = "anthropic"\nmodels = "x"', "providers.claude.models"),
        ('[providers.claude]\nfamily = "anthropic"\nmodels = [1]', "providers.claude.models[0]"),
        (
            '[providers.claude]\nfamily = "anthropic"\nmodels = [{id = "x", size = 1}]',
            "providers.claude.models[0].size",
        ),
        (
            '[providers.claude]\nfamily = "anthropic"\nmodels = [{id = "x", vision = "much"}]',
            "providers.claude.models[0]",
        ),
        ('[providers.claude]\nfamily = "anthropic"\napi_key = "k"\ncolour = 1', "providers.claude.colour"),
        ('[providers.lab]\nfamily = "openai_chat"\nprofile = "nobody"', "providers.lab.profile"),
        ('[providers.lab]\nfamily = "openai_chat"\nprofile = "compatible"', "providers.lab.base_url"),
        ("prices = 1", "prices"),
        ('[[prices]]\nprovider = "a"', "prices[0].model"),
        ('[[prices]]\nprovider = "a"\nmodel = "b"\ninput_per_1m_usd = -1', "prices[0].input_per_1m_usd"),
        ('[[prices]]\nprovider = "a"\nmodel = "b"\nper_hour = 1', "prices[0].per_hour"),
        ("server = 1", "server"),
    ],
)
def test_wrong_setting_is_refused_with_file_and_key(tmp_path: Path, text: str, key: str) -> None:
    error = refused(tmp_path / "weftline.toml", text)
    assert error.details["key"] == key
    assert key in error.message


def test_file_that_cannot_be_read_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "weftline.toml"
    refused(path, "[providers")
    with pytest.raises(WeftlineError, match=r"missing\.toml") as caught:
        load_config(tmp_path / "missing.toml")
    assert caught.value.code == "bad_config"
