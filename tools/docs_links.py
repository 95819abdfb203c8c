"""Hook of mkdocs: pages from other folders of the repository, and links to its files.

READMEs of examples and distributions are pages too. A link to a file that is no page becomes the
name of the file; one that is not there ends the build.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def outside_pages() -> list[Path]:
    """Return the pages that are not in docs/."""
    return [
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "examples").rglob("README.md")),
        *sorted(ROOT.glob("*/README.md")),
        *sorted((ROOT / "p4switch/docs").glob("*.md")),
    ]


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages to those of the site, by their paths in the repository."""
    for path in dict.fromkeys(outside_pages()):
        name = str(path.relative_to(ROOT))
        files.append(File.generated(config, name, content=path.read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page's text with its links to other folders replaced. Raises PluginError."""
    name = Path(page.file.src_uri)
    outside = ROOT / name in outside_pages()
    folder = (ROOT / name if outside else DOCS / name).parent

    def replace(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if not outside and target.is_relative_to(DOCS):
            # mkdocs itself checks these, and knows the pages that a build makes.
            return link[0]
        if not target.exists():
            raise PluginError(f"{name}: {link[2]}: there is no such file")
        place = _place(target)
        if place is not None:
            return f"[{link[1]}]({os.path.relpath(place, name.parent)}{link[3] or ''})"
        of_repository = target.relative_to(ROOT)
        same = link[1].strip("`") in (of_repository.name, str(of_repository))
        return f"`{of_repository}`" if same else f"{link[1]} (`{of_repository}`)"

    parts = BLOCK.split(markdown)
    blocks = [*BLOCK.findall(markdown), ""]
    return "".join(LINK.sub(replace, p) + b for p, b in zip(parts, blocks, strict=True))


def _place(target: Path) -> Path | None:
    """Return where a file is in the site, None if it is no page or picture of it."""
    if target == ROOT / "README.md":
        return Path("index.md")
    if target.is_relative_to(DOCS) and target.is_file():
        return target.relative_to(DOCS)
    return target.relative_to(ROOT) if target in outside_pages() else None
