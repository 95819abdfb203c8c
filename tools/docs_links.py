"""Hook of mkdocs: links to files of the repository that are not pages of the site.

They become the name of the file; one that is not there ends the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page's text with these links replaced. Raises PluginError."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def replace(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            # mkdocs itself checks these, and knows the pages that a build makes.
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri}: {link[2]}: there is no such file")
        name = target.relative_to(ROOT)
        same = link[1].strip("`") in (name.name, str(name))
        return f"`{name}`" if same else f"{link[1]} (`{name}`)"

    return LINK.sub(replace, markdown)
