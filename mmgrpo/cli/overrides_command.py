"""A command that takes overrides, ``a.b=c``."""

from __future__ import annotations

from typing import Any, final

from typer.core import TyperCommand

from mmgrpo.config.peers import peer_suggestions

WRITTEN = "settings of a run are written without dashes, update.optimizer.lr=1e-4"


@final
class OverridesCommand(TyperCommand):
    """A command whose error about an unknown option says how settings are written, and the key for one of a peer."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As in click. Raises its NoSuchOption with the further sentences."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option: str | None = getattr(error, "option_name", None)
            if option is not None and type(error).__name__ == "NoSuchOption":  # click is a part of typer, or a package
                key = option.lstrip("-").replace("-", "_")
                error.message = "; ".join([str(error), WRITTEN, *peer_suggestions(key)])  # type: ignore[attr-defined]
            raise
