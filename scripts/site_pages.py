"""A hook for MkDocs: links to files of the repository lead to pages of the site.

A link such as `../SECURITY.md` is right where the repository is browsed, but MkDocs knows only what is under `docs/`.
So the files that the pages link to are given to it as pages of their own, and the links are turned to them.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?P<path>[^()\s:#]+)(?P<anchor>#[^()\s]*)?(?=\))")


def outside() -> dict[str, str]:
    """The files outside of `docs/` that become pages, and the pages that they become, by their places."""
    texts = {name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}
    programs = (path.name for path in sorted((ROOT / "examples").glob("*.py")) if path.stem != "__init__")
    return texts | {f"examples/{name}": f"examples/{PurePosixPath(name).stem}.md" for name in programs}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files of the repository that become pages."""
    for place, page in outside().items():
        text = (ROOT / place).read_text(encoding="utf-8")
        is_program = place.endswith(".py")
        content = f"# {PurePosixPath(place).name}\n\n````python\n{text}````\n" if is_program else text
        added = File.generated(config, page, content=content)
        # The page about examples lists the programs; the navigation need not say it again.
        added.inclusion = InclusionLevel.NOT_IN_NAV if is_program else InclusionLevel.INCLUDED
        files.append(added)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page from places in the repository to places in the site."""
    return turned(markdown, page.file.src_uri)


def turned(markdown: str, here: str) -> str:
    """The text of the page `here` with its links turned; one that leads nowhere is left for a complaint."""
    pages = outside()
    folder = posixpath.dirname(here if here in pages.values() else f"docs/{here}")
    pages |= {"README.md": "index.md", "examples": "examples.md"}

    def turn(link: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(folder, link["path"]))
        if place not in pages and not place.startswith("docs/"):
            return link[0]
        target = pages.get(place, place.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(here) or ".") + (link["anchor"] or "")

    return LINK.sub(turn, markdown)
