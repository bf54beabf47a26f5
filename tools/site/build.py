"""Build the documentation site into build/site: ``python tools/site/build.py``. Every warning is an error, every local link is followed.

    python tools/site/build.py             # after `python tools/notebooks.py run`
    python tools/site/build.py --draft     # without the notebooks
    python tools/site/build.py --external  # also asks every server that a page links to

The written pages are in docs/, the tutorial is notebooks/; the reference comes from the code. All meet in build/docs, which Sphinx reads.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

import documents  # noqa: E402
import links  # noqa: E402
import operations  # noqa: E402
import rendered  # noqa: E402

PAGES, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"


def assemble(with_notebooks: bool) -> None:
    """Every page's source, in build/docs."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    made: dict[str, str | bytes] = {
        path: text for path, _, text in (*operations.pages(), *documents.reference(), *documents.of_the_house())
    }
    made |= dict(documents.pictures())
    if with_notebooks:
        made |= dict(rendered.files())
    for path, content in made.items():
        target = PAGES / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)


def sphinx(builder: str, target: Path, *strict: str) -> int:
    """Run Sphinx; with `strict` warnings are errors."""
    command = [sys.executable, "-m", "sphinx", "-b", builder, *strict, "--keep-going", "--quiet", str(PAGES), str(target)]
    return subprocess.run(command, check=False).returncode


def main() -> None:
    """Assemble, build, follow the links."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draft", action="store_true", help="without the notebooks")
    parser.add_argument("--external", action="store_true", help="ask other servers too")
    options = parser.parse_args()
    assemble(not options.draft)
    shutil.rmtree(SITE, ignore_errors=True)
    failed = sphinx("html", SITE, *([] if options.draft else ["--fail-on-warning"]))
    dead = links.dead(SITE)
    print(*dead, sep="\n" if dead else "")
    if options.external:
        failed |= sphinx("linkcheck", ROOT / "build" / "linkcheck", "--fail-on-warning")
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}, {len(dead)} dead links")
    sys.exit(1 if failed or dead else 0)


if __name__ == "__main__":
    main()
