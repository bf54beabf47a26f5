"""What a result says of its making."""

from __future__ import annotations

import sys
from pathlib import Path


def command() -> str:
    """The command that runs, from the repository's root; of an absolute path the last part alone, as no other machine has the rest."""
    script, *arguments = sys.argv
    return " ".join(["python", f"bench/{Path(script).name}", *(Path(x).name if Path(x).is_absolute() else x for x in arguments)])
