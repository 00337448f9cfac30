"""Hooks that mkdocs calls while it builds the site: they add generated pages and adapt links."""

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
#: Files of the repository that are also pages of the site.
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
         "SECURITY.md": "security.md", "README.md": "index.md"}  # fmt: skip
#: Suffixes of the files in examples/ that the site shows, and their languages.
SHOWN = {".py": "python", ".toml": "toml", ".yaml": "yaml", "": "dockerfile"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")


def on_config(config):
    """Set the address of the repository, and add the reference to the navigation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if "urls" in project:
        config.repo_url = project["urls"]["Repository"]
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = reference.nav()
    return config


def on_files(files, config):
    """Add the reference, the pages of the repository, examples and figures of the gallery."""
    generated = dict(reference.pages())
    for name, page in PAGES.items():
        if page != "index.md":
            generated[page] = (ROOT / name).read_text(encoding="utf-8")
    generated |= _examples()
    for uri, text in generated.items():
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
    """Return a page for every folder of examples/, with its README and all its files, by URI."""
    pages = {}
    for folder in [p for p in [ROOT / "examples", *(ROOT / "examples").rglob("*")] if p.is_dir()]:
        relative = folder.relative_to(ROOT)
        readme = folder / "README.md"
        lines = [readme.read_text(encoding="utf-8") if readme.exists() else f"# `{relative}`", ""]
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                lines += [f"- [{path.name}]({path.name}/index.md)"]
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.suffix in SHOWN and not path.name.startswith("."):
                code = path.read_text(encoding="utf-8").rstrip()
                lines += [f"\n## `{path.name}`\n", f"```{SHOWN[path.suffix]}\n{code}\n```"]
        pages[f"{relative.as_posix()}/index.md"] = "\n".join(lines) + "\n"
    return pages


def on_page_markdown(markdown, page, config, files):
    """Add output to pages of the gallery, and point links to files of the repository to pages."""
    uri = page.file.src_uri
    if uri.startswith("gallery/"):
        markdown = gallery.filled(uri.removeprefix("gallery/"), markdown)
    depth = uri.count("/")

    # Links are relative to the file of the page in the repository.
    sources = {page: name for name, page in PAGES.items()} | {"index.md": "docs/index.md"}
    if uri.startswith("examples/"):
        source = Path(uri).with_name("README.md")
    else:
        source = Path(sources.get(uri, f"docs/{uri}"))

    def to_site(match):
        """Return a link with the target in the site, if the target is a file of the repository."""
        before, target, after = match.groups()
        before = _named(before, source.parent / target)
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, hash_, anchor = target.partition("#")
        file = (ROOT / source.parent / path).resolve()
        if not file.is_relative_to(ROOT) or not file.exists():
            return match[0]
        site_path = file.relative_to(ROOT).as_posix()
        if site_path in PAGES:
            site_path = PAGES[site_path]
        elif site_path.startswith("docs/"):
            site_path = site_path.removeprefix("docs/")
        elif site_path.startswith("examples"):
            if file.is_file():
                # Link to the page of the folder, of which every file is a section.
                hash_ = anchor = ""
                site_path = file.parent.relative_to(ROOT).as_posix()
            site_path += "/index.md"
        else:
            return match[0]
        return before + "../" * depth + site_path + hash_ + anchor + after

    # Do not change code blocks, in which nothing is a link.
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(to_site, part) for part in parts)


def _named(text, target):
    """Return the beginning of a link, ``[text](``; a file name as text becomes the title."""
    if text != f"[{target.name}](" and text != f"[{target.stem}](":
        return text
    page = (ROOT / target).resolve()
    if page.suffix != ".md" or not page.is_file():
        return text
    first_line = page.read_text(encoding="utf-8").partition("\n")[0]
    return f"[{first_line.removeprefix('# ')}](" if first_line.startswith("# ") else text


#: An array type with shapes in a docstring. mkdocstrings reads it as a tuple.
SHAPED = re.compile(r"<code>\(?([\w ,.|]+), shape(\([^()<]*\)(?:(?:,| or) \([^()<]*\))*)\)?</code>")


def on_page_content(html, page, config, files):
    """Write array types as they are in the docstrings."""
    return SHAPED.sub(_array_type, html)


#: A shape with one dimension, which mkdocstrings writes without its comma.
ONE = re.compile(r"\((\w[^,()]*)\)")


def _array_type(match):
    """Return an array type with its shapes as in the docstring."""
    shapes = ONE.sub(r"(\1,)", match[2])
    return f"<code>{match[1]}, shape {shapes}</code>"
