"""`weftline models` on a configuration file with mistakes: it says what is wrong, and what is there all the same."""

from __future__ import annotations

from pathlib import Path

from commands import Done, weftline


def models(folder: Path, config: str) -> Done:
    file = folder / "weftline.toml"
    file.write_text(config)
    return weftline("models", "--config", str(file), env={"LAB_KEY": None})


def test_a_misspelt_setting_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    done = models(
        tmp_path,
        'default_model = "lab:llama"\n[providers.lab]\nfamily = "openai_chat"\nbaseurl = "http://127.0.0.1:1"\n',
    )
    assert done.code == 1 and "providers.lab.baseurl" in done.err and "Did you mean 'base_url'?" in done.err, done


def test_default_that_is_not_there_does_not_hide_what_is(tmp_path: Path) -> None:
    done = models(
        tmp_path,
        'default_model = "lab:llama"\n[providers.lab]\nfamily = "anthropic"\napi_key = "env:LAB_KEY"\n'
        '[providers.near]\nfamily = "openai_chat"\nbase_url = "http://127.0.0.1:1"\nmodels = ["here"]\n',
    )
    assert "near:here" in done.out and "not available: lab (anthropic)" in done.err, done
    assert done.code == 1 and "default_model" in done.err and "LAB_KEY" in done.err, done


def test_a_price_that_no_model_has_is_named(tmp_path: Path) -> None:
    near = '[providers.near]\nfamily = "openai_chat"\nbase_url = "http://127.0.0.1:1"\nmodels = ["here"]\n'
    price = '[[prices]]\nprovider = "{}"\nmodel = "{}"\ninput_per_1m_usd = 1\n'
    done = models(tmp_path, near + price.format("near", "here") + price.format("anthropic", "workspaces-own"))
    assert (done.code, done.err) == (0, "")
    for provider, model in (("near", "hear"), ("nera", "here")):
        done = models(tmp_path, near + price.format(provider, model))
        assert done.code == 0 and repr(provider) in done.err and repr(model) in done.err, done
