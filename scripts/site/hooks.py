"""What mkdocs calls while it builds the site: generated pages are added, links are mended."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

import gallery
import reference

ROOT = Path(__file__).resolve().parents[2]
#: Files of the repository that are pages of the site too.
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
         "SECURITY.md": "security.md", "README.md": "index.md"}  # fmt: skip
#: What is shown of examples/; a folder's page lists its files.
SHOWN = {".py": "python", ".toml": "toml", ".yaml": "yaml", "": "dockerfile"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")


def on_config(config):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if "urls" in project:
        config.repo_url = project["urls"]["Repository"]
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = reference.nav()
    return config


def on_files(files, config):
    made = dict(reference.pages())
    for name, page in PAGES.items():
        if page != "index.md":
            made[page] = (ROOT / name).read_text(encoding="utf-8")
    made |= _examples()
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    (listed,) = [entry["Gallery"] for entry in config.nav if "Gallery" in entry]
    order = [page.removeprefix("gallery/") for page in listed[1:] if isinstance(page, str)]
    for uri, image in gallery.run(ROOT / "docs" / "gallery", order).items():
        files.append(File.generated(config, f"gallery/{uri}", content=image))
    files.append(
        File.generated(config, "site.css", content=(ROOT / "scripts/site/site.css").read_text())
    )
    return files


def _examples() -> dict[str, str]:
    """A page for every folder of examples/, with its README and all its files."""
    made = {}
    for folder in [p for p in [ROOT / "examples", *(ROOT / "examples").rglob("*")] if p.is_dir()]:
        here = folder.relative_to(ROOT)
        readme = folder / "README.md"
        lines = [readme.read_text(encoding="utf-8") if readme.exists() else f"# `{here}`", ""]
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                lines += [f"- [{path.name}]({path.name}/index.md)"]
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.suffix in SHOWN and not path.name.startswith("."):
                code = path.read_text(encoding="utf-8").rstrip()
                lines += [f"\n## `{path.name}`\n", f"```{SHOWN[path.suffix]}\n{code}\n```"]
        made[f"{here.as_posix()}/index.md"] = "\n".join(lines) + "\n"
    return made


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    if uri.startswith("gallery/"):
        markdown = gallery.filled(uri.removeprefix("gallery/"), markdown)
    depth = uri.count("/")

    # Where the page stands in the repository, and the same as the site has it.
    sources = {page: name for name, page in PAGES.items()} | {"index.md": "docs/index.md"}
    if uri.startswith("examples/"):
        own = Path(uri).with_name("README.md")
    else:
        own = Path(sources.get(uri, f"docs/{uri}"))

    def mended(match):
        before, target, after = match.groups()
        before = _named(before, own.parent / target)
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, hash_, anchor = target.partition("#")
        found = (ROOT / own.parent / path).resolve()
        if not found.is_relative_to(ROOT) or not found.exists():
            return match[0]
        there = found.relative_to(ROOT).as_posix()
        if there in PAGES:
            there = PAGES[there]
        elif there.startswith("docs/"):
            there = there.removeprefix("docs/")
        elif there.startswith("examples"):
            if found.is_file():
                # Every file is a section of its folder's page.
                hash_ = anchor = ""
                there = found.parent.relative_to(ROOT).as_posix()
            there += "/index.md"
        else:
            return match[0]
        return before + "../" * depth + there + hash_ + anchor + after

    # Links in code blocks are no links.
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(mended, part) for part in parts)


def _named(text, target):
    """A link's beginning, whose text is a page's title where it is the name of the page's file."""
    if text != f"[{target.name}](" and text != f"[{target.stem}](":
        return text
    page = (ROOT / target).resolve()
    if page.suffix != ".md" or not page.is_file():
        return text
    first = page.read_text(encoding="utf-8").partition("\n")[0]
    return f"[{first.removeprefix('# ')}](" if first.startswith("# ") else text


#: A type of numpydoc with its shapes, which mkdocstrings reads as a tuple.
SHAPED = re.compile(r"<code>\(?([\w ,.|]+), shape(\([^()<]*\)(?:(?:,| or) \([^()<]*\))*)\)?</code>")


def on_page_content(html, page, config, files):
    return SHAPED.sub(_typed, html)


#: A tuple of one, which has lost its comma there too.
ONE = re.compile(r"\((\w[^,()]*)\)")


def _typed(match):
    shapes = ONE.sub(r"(\1,)", match[2])
    return f"<code>{match[1]}, shape {shapes}</code>"
