"""`weftline completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> None:
    """Print a script that makes your shell complete weftline's commands and options.

    \b
    bash:  eval "$(weftline completion bash)"      in ~/.bashrc
    zsh:   eval "$(weftline completion zsh)"       in ~/.zshrc
    fish:  weftline completion fish | source       in ~/.config/fish/config.fish
    """
    from weftline.cli import cli

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(cli, {}, "weftline", "_WEFTLINE_COMPLETE").source())
