"""How the command line explains itself: plainly, since typer's boxes take as long to import as all the rest."""

import click
from typer import core

core.HAS_RICH = False  # typer asks this wherever it writes of an argument


class Commands(core.TyperGroup):
    """Commands, each listed with its whole first sentence, over as many lines as that takes."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            shown = {name: command for name, command in self.commands.items() if not command.hidden}
            formatter.write_dl([(name, command.get_short_help_str(limit=1000)) for name, command in shown.items()])
