"""Checks of a kernel that are not made at every run: `check` runs it with all of them on and gives a `Report`.

They look on from outside, as `Observer`s: a run without them does nothing for them.
"""

from .check import check
from .report import BoxUse, Finding, GlobalAccess, Report, SharedAccess

__all__ = ["BoxUse", "Finding", "GlobalAccess", "Report", "SharedAccess", "check"]
