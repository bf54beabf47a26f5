"""How large the house is: files, lines, the longest file and function of each room. ``python tools/sizes.py``"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent


def longest_function(path: Path) -> int:
    """Lines of a file's longest function, those nested in it included."""
    functions = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return max(((f.end_lineno or f.lineno) - f.lineno + 1 for f in functions), default=0)


def row(name: str, files: list[Path]) -> str:
    """One line of the table."""
    sizes = {path: len(path.read_text().splitlines()) for path in files}
    largest = max(files, key=sizes.__getitem__)
    return f"{name:24s} {len(files):5d} {sum(sizes.values()):7d}   {sizes[largest]:4d} {largest.name:34s} {max(map(longest_function, files)):4d}"


def main() -> None:
    """Print the table."""
    package = ROOT / "dgnumba"
    rooms: dict[str, list[Path]] = {}
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).parts
        rooms.setdefault(f"dgnumba/{inside[0]}" if len(inside) > 1 else "dgnumba/*.py", []).append(path)
    rooms = dict(sorted(rooms.items())) | {"dgnumba, all": sorted(package.rglob("*.py"))}
    for folder in ("tests", "bench", "examples", "tools", "notebooks"):
        files = sorted((ROOT / folder).rglob("*.py"))
        if files:
            rooms[folder] = files
    print(f"{'room':24s} {'files':>5s} {'lines':>7s}   {'longest file':39s} {'function':>4s}")
    for name, files in rooms.items():
        print(row(name, files))


if __name__ == "__main__":
    main()
