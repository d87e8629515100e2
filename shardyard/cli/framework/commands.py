"""Commands whose help shows no types of flags, and their group, which knows the names that other tools have."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])

#: Names that people know from elsewhere, and the commands that they are.
ALIASES = {"ls": "list", "status": "show", "stop": "cancel"}


class PlainCommand(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_flag_types(super().get_params(ctx))


class CommandGroup(TyperGroup):
    """The command `shardyard`, or one that has commands of its own."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def get_params(self, ctx: Any) -> list[Any]:
        return without_flag_types(super().get_params(ctx))


def without_flag_types(params: list[Any]) -> list[Any]:
    """The parameters of a command, whose help then shows flags without a type: it would be `<bool>` for all of them."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class CommandApp(typer.Typer):
    """Registers commands as `PlainCommand`s."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **how: Any
    ) -> Callable[[CommandFunction], CommandFunction]:
        return super().command(name, cls=cls or PlainCommand, **how)


def make_app(**how: Any) -> CommandApp:
    return CommandApp(cls=CommandGroup, **how)
