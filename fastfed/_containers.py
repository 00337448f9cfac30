"""The compression and kind of a file, found from its first bytes, and the cells of a CSV file.

Simulations and silos read tables by these functions. Names of files do not matter, since browsers
and mail programs change them; but a name that ends in .gz promises gzip.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from fastfed._validate import InputError

#: Delimiters of a CSV file, most common first.
DELIMITERS = ",;\t|"
#: If a header contains several possible delimiters, this number of records is compared: with the
#: right delimiter they have as many cells as the header.
_RECORDS_TRIED = 50
#: Largest number of characters in which the end of the header is looked for.
_MAX_HEADER_CHARACTERS = 1 << 20


def _zstd(data: bytes) -> bytes:
    """Return the decompressed bytes of a zstd file; raise InputError if pyarrow is missing."""
    try:
        import pyarrow
    except ImportError:
        raise InputError("zstd needs pyarrow, which is not installed: unpack the file") from None
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), "zstd") as stream:
        return bytes(stream.read())


#: Compression -> its first bytes, ending of names, and function that decompresses a file.
_COMPRESSIONS: dict[str, tuple[bytes, str, Callable[[bytes], bytes]]] = {
    "gzip": (b"\x1f\x8b", ".gz", gzip.decompress),
    "bzip2": (b"BZh", ".bz2", bz2.decompress),
    "xz": (b"\xfd7zXZ\x00", ".xz", lzma.decompress),
    "zstd": (b"\x28\xb5\x2f\xfd", ".zst", _zstd),
}
#: Endings of compressed files.
COMPRESSED = tuple(ending for _, ending, _ in _COMPRESSIONS.values())
_ZIP = b"PK\x03\x04"
_CONTENT_TYPES = b"[Content_Types].xml"  # name of the first file in documents of Office
#: Endings by which tables are recognised in a ZIP archive that has several files.
_TABLES = (".csv", ".tsv", ".parquet", ".feather", ".arrow", ".xlsx", ".xlsm", ".sqlite", ".db")
#: Largest size of an unpacked archive.
_MAX_UNPACKED_BYTES = 2**34
#: First bytes of files that are neither text nor compressed: what such a file is, and what to do.
_OTHER_KINDS = {
    _ZIP: "a ZIP archive: unpack it",
    b"\xd0\xcf\x11\xe0": "an old Excel file: save the table as CSV (UTF-8)",
    b"SQLite format 3\x00": "an SQLite file: export the table as text",
    b"\x89HDF": "an HDF5 file: save the table as CSV (UTF-8)",
    b"%PDF": "a PDF file: save the table as CSV (UTF-8)",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it",
    b"Rar!": "a RAR archive: unpack it",
}
#: Errors of zipfile for a damaged archive.
DAMAGED_ZIP = (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def columnar(data: bytes) -> str | None:
    """Return "parquet" or "feather" for the bytes of such a file, None for others."""
    if data.startswith(b"PAR1"):
        return "parquet"
    return "feather" if data.startswith((b"ARROW1", b"FEA1")) else None


def compression(data: bytes) -> str | None:
    """Return the name of the compression of a file that begins with these bytes, or None."""
    for name, (start, _, _) in _COMPRESSIONS.items():
        # A header of a CSV file may begin with BZh; then the magic number of a block is missing.
        if data.startswith(start) and (
            name != "bzip2" or data[4:10] in (b"1AY&SY", b"\x17rE8P\x90")
        ):
            return name
    return None


def file_content(path: Path, name: str) -> bytes:
    """Return the bytes of a file, decompressed; of a ZIP archive, the bytes of its only table.

    Parameters
    ----------
    path : Path
    name : str
        How error messages name the file.

    Raises
    ------
    InputError
        For a file that cannot be read or is damaged. The message does not quote its content.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from None
    kind = compression(data)
    if kind is None:
        for promised, (_, ending, _) in _COMPRESSIONS.items():
            if path.name.lower().endswith(ending):
                raise InputError(f"{name} must be a whole {promised} file, got something else")
        return _unzipped(data, name) if data.startswith(_ZIP) else data
    content = _decompressed(data, kind, name)
    if inner_compression := compression(content):
        raise InputError(
            f"{name} must be compressed once, but its content is a {inner_compression} file: "
            "unpack it"
        )
    return content


def _decompressed(data: bytes, kind: str, name: str) -> bytes:
    """Return the content of the compressed file ``name``, whose compression is ``kind``.

    Raises InputError if the file is damaged.
    """
    try:
        return _COMPRESSIONS[kind][2](data)
    except InputError as error:
        raise InputError(f"{name} is compressed: {error}") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise InputError(
            f"{name} must be a whole {kind} file, got damage ({type(error).__name__}): "
            "copy it again"
        ) from None


def _unzipped(data: bytes, name: str) -> bytes:
    """Return the bytes of the only table in the ZIP archive ``name``, unpacked.

    Excel and OpenDocument files are ZIP archives too; their bytes are returned unchanged. Raises
    InputError if the archive is damaged, or has no table or several.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except DAMAGED_ZIP as error:
        is_excel = name.lower().endswith((".xlsx", ".xlsm")) or _CONTENT_TYPES in data[:4096]
        kind, advice = ("Excel file", "save the table as CSV (UTF-8)") if is_excel else (
            "ZIP archive", "copy it again")  # fmt: skip
        raise InputError(
            f"{name} must be a whole {kind}, got damage ({type(error).__name__}): {advice}"
        ) from None
    with archive:
        names = archive.namelist()
        # Documents of Excel and OpenDocument are archives too.
        if "[Content_Types].xml" in names or "mimetype" in names:
            return data
        files = [
            member_info
            for member_info in archive.infolist()
            if not member_info.filename.endswith("/")
            and not member_info.filename.startswith("__MACOSX/")
            and not member_info.filename.rpartition("/")[2].startswith(".")
        ]
        endings = (
            *_TABLES,
            *(table + ending for table in (".csv", ".tsv") for ending in COMPRESSED),
        )
        tables = [
            member_info for member_info in files if member_info.filename.lower().endswith(endings)
        ]
        if len(files) == 1:
            tables = files
        if len(tables) != 1:
            listed = ", ".join(member_info.filename for member_info in (tables or files)[:20])
            raise InputError(
                f"{name} must hold exactly one table, got {len(tables)}"
                + (f" ({listed})" if listed else "")
                + ": unpack it, and name the file"
            )
        (member,) = tables
        if member.flag_bits & 1:
            raise InputError(f"{name} is encrypted: unpack it")
        if member.file_size > _MAX_UNPACKED_BYTES:
            raise InputError(f"{name} would have {member.file_size} bytes unpacked: unpack it")
        try:
            content = archive.read(member)
        except Exception as e:  # zipfile and its decompressors raise many kinds of errors
            raise InputError(
                f"{name} must be a whole ZIP archive, got damage ({type(e).__name__}): "
                "copy it again"
            ) from None
    compressed = compression(content)
    return content if compressed is None else _decompressed(content, compressed, name)


def other_kind(data: bytes, name: str) -> str | None:
    """Return a text that names the kind of file and what to do, for bytes that are no CSV file.

    Return None for an unknown kind. ``name`` is the file's name.
    """
    if data.startswith(_ZIP):
        if name.lower().endswith((".xlsx", ".xlsm")) or _CONTENT_TYPES in data[:4096]:
            return "an Excel file: save the table as CSV (UTF-8)"
        if b"opendocument" in data[:200]:
            return "an OpenDocument file: save the table as CSV (UTF-8)"
    beginning = data[:200].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if beginning.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "HTML or XML: save the table as CSV (UTF-8)"
    if beginning.startswith((b"[{", b'{"')):
        return "JSON: save the table as CSV (UTF-8)"
    return next((kind for start, kind in _OTHER_KINDS.items() if data.startswith(start)), None)


def is_utf_16(data: bytes) -> bool:
    """Return True for bytes with the byte order mark of UTF-16."""
    return data.startswith(_UTF_16)


def arrow_table(data: bytes, kind: str, name: str) -> Any:
    """Return the pyarrow table of the bytes of a Parquet or Feather file."""
    try:
        import pyarrow
        from pyarrow import feather, parquet
    except ImportError:
        raise InputError(
            f"{name} is a {kind.capitalize()} file, for which pyarrow is not installed: "
            "pip install 'fastfed[export]'"
        ) from None
    read = parquet.read_table if kind == "parquet" else feather.read_table
    try:
        return read(pyarrow.BufferReader(data))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise InputError(
            f"{name} is no {kind.capitalize()} file, or it is damaged ({type(error).__name__})"
        ) from None


# ---- CSV files -----------------------------------------------------------------------------------


def delimiter_of(text: str) -> str:
    """Return the delimiter of a CSV file: the most frequent one in its header outside of quotes.

    If the header contains several possible delimiters, the most frequent one is returned with which
    the first records have as many cells as the header. If no delimiter passes this check, the most
    frequent one is returned.
    """
    header = _bare_header(text)
    candidates = sorted((d for d in DELIMITERS if d in header), key=lambda d: -header.count(d))
    for delimiter in candidates[1:] and candidates:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        try:
            widths = {len(row) for row in islice(filled(reader), _RECORDS_TRIED)}
        except csv.Error:
            continue
        if len(widths) == 1:
            return delimiter
    return candidates[0] if candidates else DELIMITERS[0]


def _bare_header(text: str) -> str:
    """Return the header line of a CSV file without the texts in quotes."""
    first = re.search(r'[^ \t\r\n,;|"]', text)
    start = 0 if first is None else max(text.rfind(end, 0, first.start()) for end in "\r\n") + 1
    bare = []
    # Every second part is outside of quotes. The header ends at the first line end in such a part.
    for part in text[start : start + _MAX_HEADER_CHARACTERS].split('"')[::2]:
        line = part.replace("\r", "\n").split("\n", 1)
        bare.append(line[0])
        if len(line) > 1:
            break
    return "".join(bare)


def filled(rows: Any) -> Iterator[list[str]]:
    """Yield the stripped cells of each row; skip blank lines and lines with only delimiters."""
    for row in rows:
        cells = [cell.strip() for cell in row]
        if any(cells):
            yield cells


class DamagedCsv(Exception):
    """Raised for text that is not valid CSV, with the line number and the problem."""

    def __init__(self, line: int, problem: str) -> None:
        """Store the problem and the line number."""
        super().__init__(problem)
        self.line = line


def csv_rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the stripped cells of the rows of a CSV file.

    Lines that hold only delimiters are skipped. Raises `DamagedCsv` for an open quote.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for cells in filled(reader):
            yield reader.line_num, cells
    except csv.Error as error:
        raise DamagedCsv(reader.line_num, str(error)) from None
