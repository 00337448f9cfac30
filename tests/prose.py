"""Looks for phrases that pages, docstrings and comments must not use, and draws text for a reading.

scripts/prose              prints file, line and what to write instead; fails if there is any
scripts/prose --draw 7     30 random functions and 30 random paragraphs, the same for one seed
"""

import argparse
import ast
import io
import random
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Phrase, as a regular expression, and what to write instead.
BANNED = (
    (r"by (it|them)sel(f|ves)", "name what is meant: separately, automatically, alone"),
    (r"(of its own|of their own)", "separate, independent, different; or its, their"),
    (r"of (your|one's) own|of yours", "that you write, that you supply; or your"),
    (r"(is|are) said", "name who states it: the certificate states, the log reports"),
    (r"so many", "the number, or the name of what is counted"),
    (r"put(s|ting)? back", "restore"),
    (r"t(old|ells?) apart", "distinguish"),
    (r"hangs? on", "depends on"),
    (r"what is left", "the remaining ..."),
    (r"hear[sd]?", "receive, get an answer of"),
    (r"go(es|ing)? on from", "continues, resumes from"),
    (r"mend(s|ed|ing)?", "fix, correct"),
    (r"(is|are) met first|met first", "seen first"),
    (r"as ever", "as usual"),
    (r"anew", "again"),
    (r"in the place of", "instead of"),
)
PATTERNS = [
    (re.compile(rf"\b(?:{phrase})\b".replace(" ", r"\s+"), re.IGNORECASE), advice)
    for phrase, advice in BANNED
]

#: The table in this section repeats sentences of the program, which a test compares.
QUOTED_SECTION = "## What a party waits for"


def pages() -> list[Path]:
    """Return every page that a reader of the project is shown."""
    names = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
    return [*(ROOT / name for name in names), *sorted((ROOT / "docs").rglob("*.md"))]


def prose_of(text: str) -> str:
    """Return a page without code, link targets and quoted tables, with the same line numbers."""
    kept, fence, quoted = [], False, False
    for line in text.split("\n"):
        if line.startswith("## "):
            quoted = line == QUOTED_SECTION
        if line.lstrip().startswith("```"):
            fence = not fence
            line = ""
        skipped = fence or line.startswith("    ") or (quoted and line.startswith("|"))
        kept.append("" if skipped else line)
    return re.sub(r"`[^`\n]*`|\]\([^)\n]*\)", "``", "\n".join(kept))


def banned_phrases(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line number, phrase and advice for every banned phrase, also across two lines."""
    prose = prose_of(text)
    for pattern, advice in PATTERNS:
        for match in pattern.finditer(prose):
            line = prose.count("\n", 0, match.start()) + 1
            yield line, " ".join(match[0].split()), advice


def docstrings_and_comments(source: str) -> str:
    """Return the docstrings and comments of a Python file, at their lines."""
    lines = [""] * (source.count("\n") + 2)
    for node in ast.walk(ast.parse(source)):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        text = ast.get_docstring(node) if isinstance(node, documented) else None
        for number, line in enumerate(text.split("\n"), node.body[0].lineno - 1) if text else ():
            # Indented lines are no code here; examples are code.
            lines[number] = "" if line.startswith(">>>") else line.lstrip()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = token.string.lstrip("#: ")
    return "\n".join(lines)


def complaints() -> list[str]:
    """Return a sentence for every banned phrase in pages, docstrings and comments."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    for path in sorted((ROOT / "fastfed").rglob("*.py")):
        texts[path] = docstrings_and_comments(path.read_text(encoding="utf-8"))
    return [
        f"{path.relative_to(ROOT)}:{line}: {phrase!r}; write instead: {advice}"
        for path, text in texts.items()
        for line, phrase, advice in sorted(banned_phrases(text))
    ]


def python_functions(paths: list[Path]) -> list[str]:
    """Return the source of every function in these files, each with its place."""
    actual = []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        lines = source.split("\n")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                actual.append(f"{path.relative_to(ROOT)}:{node.lineno}\n{text}")
    return actual


def c_functions(paths: list[Path]) -> list[str]:
    """Return the source of every function in these C and Cython files, with its comment."""
    actual = []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".c":
            comment = r"(?:^/\*(?:(?!\*/)[\s\S])*\*/\n)?"
            function = comment + r"^[a-z][^;={}()\n]*\([^;{}]*\)\s*\{[\s\S]*?^\}"
        else:
            function = r"^(?:cp?def|def) [^\n]*\n(?:[ )][^\n]*\n|\n)*"
        for match in re.finditer(function, source, re.MULTILINE):
            line = source.count("\n", 0, match.start()) + 1
            actual.append(f"{path.relative_to(ROOT)}:{line}\n{match[0].rstrip()}")
    return actual


def paragraphs() -> list[str]:
    """Return every paragraph of the pages of at least 80 characters."""
    actual = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        # Code is replaced by its line ends, so that line numbers of paragraphs stay right.
        text = re.sub(r"(?m)^```[\s\S]*?^```", lambda m: "\n" * m[0].count("\n"), text)
        line = 1
        for part in text.split("\n\n"):
            first = line + len(part) - len(part.lstrip("\n"))
            line += part.count("\n") + 2
            if len(part.strip()) >= 80 and not part.strip().startswith(("#", "|")):
                actual.append(f"{page.relative_to(ROOT)}:{first}\n{part.strip()}")
    return actual


def draw_passages(seed: int) -> list[str]:
    """Draw 30 functions (15 of the package, 5 of C and Cython, 10 of tests) and 30 paragraphs."""
    draw = random.Random(seed)
    sources = ROOT / "fastfed" / "_kernels" / "src"
    kernels = [*sources.glob("*.c"), *(ROOT / "fastfed" / "_kernels").rglob("*.pyx")]
    kinds = (
        (15, python_functions(sorted((ROOT / "fastfed").rglob("*.py")))),
        (5, c_functions(sorted(set(kernels)))),
        (10, python_functions(sorted((ROOT / "tests").rglob("*.py")))),
        (30, paragraphs()),
    )
    return [text for count, texts in kinds for text in draw.sample(texts, count)]


def main() -> int:
    """Print complaints, or passages for a reading; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draw", type=int, metavar="SEED", help="print text for a reading")
    seed = parser.parse_args().draw
    if seed is not None:
        print("\n\n".join(f"--- {i}. {text}" for i, text in enumerate(draw_passages(seed), 1)))
        return 0
    found = complaints()
    print("\n".join(found) if found else f"No banned phrase in {len(pages())} pages.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
