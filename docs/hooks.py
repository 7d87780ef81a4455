"""Hooks of MkDocs: links of the pages that lead out of docs/, or to a folder, which a site does not have.

In the files they are plain relative links, which work in a checkout and wherever Markdown is shown with its folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page for the site: a link out of docs/ becomes its text and path, one to a folder those of its files."""
    return _LINK.sub(lambda found: link(found[1], found[2]), markdown)


def link(text: str, target: str) -> str:
    """Return a link as the site has it."""
    path = (DOCS / target.partition("#")[0]).resolve()
    if ":" in target or not path.exists() or path == DOCS:
        return f"[{text}]({target})"
    if not path.is_relative_to(DOCS):
        name = str(path.relative_to(DOCS.parent))
        return text if name in text else f"{text} (`{name}`)"
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if each.is_file())
        return f"{text} ({', '.join(f'[{name}]({path.relative_to(DOCS)}/{name})' for name in names)})"
    return f"[{text}]({target})"
