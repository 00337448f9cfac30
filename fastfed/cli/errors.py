"""Errors of the command line that are no bad input."""

from __future__ import annotations

import rich_click as click


class RunFailed(click.ClickException):
    """The run could not be finished for a reason that can be told in a sentence."""

    exit_code = 1


class Stopped(RunFailed):
    """The user stopped it: no error, but not done either."""
