"""`fastfed completion`: the script with which a shell completes commands, options and files."""

from __future__ import annotations

import rich_click as click
from click.shell_completion import get_completion_class

#: For each shell, the line to add to its start-up file, and the name of this file.
STARTUP_LINES = {
    "bash": 'eval "$(fastfed completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(fastfed completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "fastfed completion fish | source     # in ~/.config/fish/config.fish",
}


@click.command(epilog="\n\n".join(["To switch completion on:", *STARTUP_LINES.values()]))
@click.argument("shell", type=click.Choice(list(STARTUP_LINES)))
def completion(shell: str) -> None:
    """Print the script that completes `fastfed` in bash, zsh or fish.

    Commands, options, choices and files are completed. The script calls the installed `fastfed`,
    so it remains correct after an upgrade.
    """
    from fastfed.cli import cli

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(completion_class(cli, {}, "fastfed", "_FASTFED_COMPLETE").source())


COMMANDS = {"completion": completion}
