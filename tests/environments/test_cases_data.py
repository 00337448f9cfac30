"""Small inputs as users have them: each is read right, or refused with a helpful sentence."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import warnings
from datetime import date
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import fastfed
from fastfed import _cells, kernels, off_policy
from fastfed._containers import delimiter_of
from fastfed._validate import InputError
from fastfed.bandits.linucb import check_actions
from fastfed.deployment.data import source_of, surveyed
from fastfed.deployment.declared import schema_of
from fastfed.deployment.replay import _similar_subjects
from fastfed.environments import Classification, Letor
from fastfed.environments.letor import letor_pool
from fastfed.environments.letor_files import read_letor
from fastfed.environments.storage import cache_folder
from fastfed.environments.tables import digest_of, read_table

SCHEMA = schema_of(
    {
        "columns": [
            {"name": "age", "kind": "number", "low": 20, "high": 80, "fill": 50},
            {
                "name": "dx",
                "kind": "category",
                "codes": ["900000000000000001", "900000000000000511"],
                "missing_flag": True,
            },
            {"name": "smokes", "kind": "flag", "fill": "no"},
        ],
        "actions": {"names": ["A", "B"]},
        "reward": {"column": "result", "correct": {"0": "A", "1": "B"}},
    }
)
HEAD = "age,dx,smokes,result\n"
MARKERS = ["NULL", "N/A", "NA", "None", "null", "#N/A", "<NA>", "NaN", "", "-"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep parsed files in a new folder."""
    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path / "cache"))


def put(folder, name, text):
    """Write a file, and return its path."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def deployed(folder, text, name="t.csv", **source):
    """Return the cases and the problems of a table as a silo reads it."""
    put(folder, name, text)
    return surveyed(source_of({"file": name, **source}, folder), SCHEMA)


def simulate(environment, **more):
    """Simulate agents without communication, and return their curve."""
    more = {"silos": 1, "horizon": 20, "replicates": 1, **more}
    return fastfed.simulate(environment, curves=[{"algorithm": "local-linucb"}], **more).curves[0]


def records(site=lambda i: "ns"[i % 2], sick=lambda i: "ab"[i % 2]):
    """Return a CSV of 20 records; `site` and `sick` give the columns from the row number."""
    return "age,y,site\n" + "".join(f"{20 + i},{sick(i)},{site(i)}\n" for i in range(20))


def classified(data, **more):
    """Simulate on a classification table."""
    keys = {"label": "y", "silo": "site", "sampling": "with-replacement", **more}
    return simulate(Classification(data=data, **keys), silos=None)


# ---- Missing values ------------------------------------------------------------------------------


@pytest.mark.parametrize("marker", MARKERS)
def test_every_marker_is_missing_in_both_readers(tmp_path, marker):
    path = put(tmp_path, "t.csv", records(lambda i: marker if i == 3 else "ns"[i % 2]))
    with pytest.raises(InputError, match=r"t.csv:5: silo 'site' must be given"):
        classified(path)
    path = put(tmp_path, "t.csv", records(sick=lambda i: marker if i == 3 else "ab"[i % 2]))
    with pytest.raises(InputError, match=r"t.csv:5: label 'y' must be given"):
        classified(path)
    plan, problems = deployed(tmp_path, f"{HEAD}{marker},{marker},{marker},1\n30,,no,1\n")
    assert not problems
    assert list(plan[0].record.values()) == [None, None, None]
    plan, problems = deployed(tmp_path, HEAD[:-1] + f",who\n30,,no,1,{marker}\n", subject="who")
    assert not plan and "must say who it is" in problems[0]


def test_a_marker_that_is_a_declared_code_is_that_code(tmp_path):
    schema = schema_of(
        {
            "columns": [
                {"name": "test", "kind": "flag", "yes": ["+"], "no": ["-"]},
                {"name": "drug", "kind": "category", "codes": ["None", "A"]},
            ],
            "actions": {"names": ["None", "A"]},
            "reward": {"column": "result", "low": 0, "high": 1},
        }
    )
    put(tmp_path, "t.csv", "test,drug,took,result\n-,None,None,1\n+,A,A,0\n")
    source = source_of({"file": "t.csv", "action": "took"}, tmp_path)
    actual, problems = surveyed(source, schema)
    assert not problems and [case.taken for case in actual] == ["None", "A"]
    assert schema.records.context(actual[0].record) == [-1.0, 1.0, 0.0]


def test_files_read_as_before_keep_their_digests_and_others_do_not(tmp_path):
    import hashlib

    for text, same in (
        (records(), True),
        (records() + "40,NA,n\n", True),
        (records() + "40,a,NULL\n", False),
        (records() + "40,a,-\n", False),
        (records(lambda i: "caf\u00e9"), True),
        (records(lambda i: "cafe\u0301"), False),
    ):
        path = put(tmp_path, "t.csv", text)
        before = hashlib.sha256(path.read_bytes()).hexdigest()
        assert (digest_of(path) == before) is same, text[-12:]


# ---- Codes, categories, subjects, silos and labels -----------------------------------------------


@pytest.mark.parametrize(
    "code",
    ["900000000000000002", 900000000000000002, 9e17, 900000000000000001.0, Decimal(9 * 10**17)],
)
def test_long_codes_are_compared_digit_by_digit(code):
    with pytest.raises(InputError, match="dx"):
        SCHEMA.records.context({"age": 30, "dx": code, "smokes": "no"})


@pytest.mark.parametrize(
    "code",
    [
        "900000000000000001",
        " 900000000000000001 ",
        900000000000000001,
        "900000000000000001.0",
        np.int64(900000000000000001),
        Decimal("900000000000000001"),
    ],
)
def test_a_code_is_one_however_it_is_written(code):
    context = SCHEMA.records.context({"age": 30, "dx": code, "smokes": "no"})
    assert context[1:4] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "spellings",
    [("p1", "p1 "), ("17", "17.0", " 17", "17."), ("caf\u00e9", "cafe\u0301"), ("p1", "\u00a0p1")],
)
def test_a_person_is_one_however_it_is_written(tmp_path, spellings):
    rows = "".join(f'30,,no,1,"{spelling}"\n' for spelling in spellings)
    plan, problems = deployed(tmp_path, HEAD[:-1] + ",who\n" + rows, subject="who")
    assert not problems and len({case.subject for case in plan}) == 1


@pytest.mark.parametrize(
    "spellings",
    [(17, 17.0), (17, "17"), (2**60, str(2**60)), (Decimal(17), 17)],
)
def test_a_person_of_a_query_is_one_whatever_the_type(spellings):
    forms = {_cells.plain_name("who", spelling) for spelling in spellings}
    assert len(forms) == 1


@pytest.mark.parametrize("who", [9e17, 2.0**53, "9.00000000000001E+17", "1E+12"])
def test_a_person_whose_number_was_rounded_is_refused(who):
    with pytest.raises(InputError, match="rounded") as error:
        _cells.plain_name('column "who"', who)
    assert str(who) not in str(error.value)


@pytest.mark.parametrize("spellings", [("1", "2"), ("001", "1"), ("1e5", "100000"), ("p1", "P1")])
def test_persons_who_may_differ_are_different(spellings):
    assert len({_cells.plain_name("who", spelling) for spelling in spellings}) == 2


def test_deploy_check_counts_persons(tmp_path):
    rows = "".join(f"30,,no,1,{who}\n" for who in ("p1", "p1 ", "P1", "007", "7", "8", "p-1", "9"))
    put(tmp_path, "t.csv", HEAD[:-1] + ",who\n" + rows + "30,,no,,NULL\n")
    cases, problems = surveyed(source_of({"file": "t.csv", "subject": "who"}, tmp_path), SCHEMA)
    assert len(problems) == 1 and len({case.subject for case in cases}) == 7
    assert _similar_subjects(cases) == 5


def test_a_silo_is_one_however_it_is_written(tmp_path):
    spellings = ("17", "17.0", "18", "18.0")
    env = Classification(
        data=put(tmp_path, "t.csv", records(lambda i: spellings[i % 4])), label="y", silo="site"
    )
    assert env.natural_silos() == 2
    spellings = ("caf\u00e9", "cafe\u0301", "b")
    env = Classification(
        data=put(tmp_path, "t.csv", records(lambda i: spellings[i % 3])), label="y", silo="site"
    )
    assert env.natural_silos() == 2


def test_a_flag_is_read_in_every_usual_spelling(tmp_path):
    words = {"True": 1, "TRUE": 1, "true": 1, "Yes": 1, "Y": 1, "t": 1, "1": 1, "1.0": 1}
    words |= {"False": -1, "NO": -1, "n": -1, "F": -1, "0": -1}
    rows = "".join(f"30,,{word},1\n" for word in words)
    plan, problems = deployed(tmp_path, HEAD + rows)
    assert not problems
    got = [SCHEMA.records.context(case.record)[-1] for case in plan]
    assert got == list(words.values())


def test_words_for_true_and_false_match_no_other_codes():
    assert _cells.matched("yes", ["1", "2"]) is None
    assert _cells.matched("F", ["f", "m"]) is None
    assert _cells.matched("F", ["F", "m"]) == 0
    assert _cells.matched(True, ["yes", "no"]) == 0
    assert _cells.matched(True, ["1", "0"]) is None


# ---- CSV files and their containers --------------------------------------------------------------


def test_a_line_of_separators_is_no_patient(tmp_path):
    plan, problems = deployed(tmp_path, HEAD + "30,,no,1\n31,,yes,0\n,,,\n , ,\t,\n\n")
    assert len(plan) == 2 and not problems


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ('"age, at visit, in years, rounded";dx;y\n30;;1\n', ";"),
        ('"a;b;c",y\n1,2\n', ","),
        ('"a\nb;c;d;e",y\n1,2\n', ","),
        ("a|b, c and d|y\n1|2|3\n", "|"),
        ("a;b;c, d\n1,5;2;3\n", ";"),
        ("a;b;c;d,y\nw;x;z;u,1\n", ";"),
        ("a;b;c;d,y\nw,1\n", ","),
        ("\n;;\n,,\na\tb\n", "\t"),
        ("a\rb,c\r", ","),
        ("a\n1\n", ","),
    ],
)
def test_the_delimiter_is_found_outside_of_quotes(text, delimiter):
    assert delimiter_of(text) == delimiter


def test_a_header_with_commas_in_quotes(tmp_path):
    text = '"age, at visit, in years, rounded";dx;smokes;result\n30;;no;1\n'
    columns = {"age": "age, at visit, in years, rounded"}
    plan, problems = deployed(tmp_path, text, columns=columns)
    assert len(plan) == 1 and not problems


PACKED = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("name", ["t.csv.{}", "t.csv.{upper}", "renamed.csv", "t"])
def test_compression_is_recognised_by_bytes(tmp_path, ending, name):
    name = name.format(ending, upper=ending.upper())
    packed = put(tmp_path, name, PACKED[ending](records().encode()))
    assert read_table(packed).cells == read_table(put(tmp_path, "u.csv", records())).cells
    plan, _ = deployed(tmp_path, PACKED[ending](f"{HEAD}30,,no,1\n".encode()), name)
    assert len(plan) == 1


@pytest.mark.parametrize(
    ("content", "name", "word"),
    [
        (b"PK\x03\x04\x00\xff\x80", "t.xlsx", "Excel"),
        (b"PK\x03\x04\x00\xff\x80" + b"[Content_Types].xml", "t.csv", "Excel"),
        (b"PK\x03\x04\x00\xff\x80", "t.csv", "ZIP"),
        (b"\xd0\xcf\x11\xe0\x00", "t.csv", "Excel"),
        (b"SQLite format 3\x00", "t.csv", "SQLite"),
        ("\ufeffage,y\n".encode("utf-16-le"), "t.csv", "UTF-16"),
        (b"PAR1 and no more", "t.csv", "Parquet"),
        (b"plain text", "t.csv.gz", "gzip"),
        (gzip.compress(b"a" * 100, mtime=0)[:-9], "t.csv", "gzip"),
        (b"\x28\xb5\x2f\xfd no more", "t.csv", "zstd"),
    ],
)
def test_the_kind_of_a_file_that_is_no_csv_is_named(tmp_path, content, name, word):
    with pytest.raises(InputError, match=word):
        read_table(put(tmp_path, name, content))
    with pytest.raises(InputError, match=word):
        deployed(tmp_path, content, name)


def test_parquet_feather_and_zstd_are_read_by_both(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    columns = {"age": [30, 31], "dx": [None, None], "smokes": [True, False], "result": [1, 0]}
    table = pyarrow.table(columns)
    parquet.write_table(table, tmp_path / "p.csv")
    feather.write_feather(table, tmp_path / "f.csv")
    with pyarrow.CompressedOutputStream(str(tmp_path / "z.csv"), "zstd") as file:
        file.write(b"age,dx,smokes,result\n30,,True,1\n31,,False,0\n")
    for name in ("p.csv", "f.csv", "z.csv"):
        read = read_table(tmp_path / name)
        assert read.names == list(columns)
        assert read.cells == [["30", "", "True", "1"], ["31", "", "False", "0"]]
        actual, problems = surveyed(source_of({"file": name}, tmp_path), SCHEMA)
        assert len(actual) == 2 and not problems


@pytest.mark.parametrize("encoding", ["UTF_8", "utf-8", "U8", "utf8", "UTF-8"])
def test_a_byte_order_mark_is_skipped_however_utf_8_is_written(tmp_path, encoding):
    plan, _ = deployed(tmp_path, "\ufeff" + HEAD + "30,,no,1\n", encoding=encoding)
    assert len(plan) == 1


# ---- Folders -------------------------------------------------------------------------------------


def test_only_the_ending_of_a_name_is_cut(tmp_path):
    for name in ("dr.smith.csv", "north.CSV", "a.b.tsv.gz"):
        text = b"age\ty\n1\ta\n2\tb\n"
        put(tmp_path / "s", name, gzip.compress(text) if name.endswith("gz") else text)
    assert set(read_table(tmp_path / "s").column("silo")) == {"dr.smith", "north", "a.b"}


def test_a_folder_may_hold_tables_of_several_kinds(tmp_path):
    """Check that no kind of table is skipped silently; a document beside tables is ignored."""
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    put(tmp_path / "s", "north.csv", "age,y\n1,a\n2,b\n")
    put(tmp_path / "s", "east.tsv.xz", lzma.compress(b"age\ty\n1\ta\n2\tb\n"))
    frame = pandas.DataFrame({"age": [1, 2], "y": ["a", "b"]})
    frame.to_parquet(tmp_path / "s" / "v1.2.parquet")
    frame.to_feather(tmp_path / "s" / "south.feather")
    put(tmp_path / "s", "codebook.xlsx", b"PK\x03\x04")
    put(tmp_path / "s", "README.md", "what the columns mean")
    names = {"north", "east", "v1.2", "south"}
    assert set(read_table(tmp_path / "s").column("silo")) == names
    put(tmp_path / "s", "south.csv", "age,y\n1,a\n2,b\n")
    with pytest.raises(InputError, match="without endings, got south twice"):
        read_table(tmp_path / "s")


@pytest.mark.parametrize("outer", sorted(PACKED))
@pytest.mark.parametrize("inner", sorted(PACKED))
def test_a_file_that_is_compressed_twice_is_named(tmp_path, outer, inner):
    data = PACKED[outer](PACKED[inner](b"age,dx,smokes,result\n30,,no,1\n"))
    put(tmp_path, "t.csv", data)
    for read in (lambda: read_table(tmp_path / "t.csv"), lambda: deployed(tmp_path, data)):
        with pytest.raises(InputError, match="compressed once, but its content is"):
            read()


def test_hidden_and_lock_files_of_a_folder_are_skipped(tmp_path):
    for name in ("north.csv", "south.csv"):
        put(tmp_path / "s", name, "age,y\n1,a\n2,b\n")
    for name in ("._north.csv", ".hidden.csv", "~$north.csv", ".~lock.north.csv#"):
        put(tmp_path / "s", name, b"\x00\x05\x16\x07")
    assert set(read_table(tmp_path / "s").column("silo")) == {"north", "south"}


def test_a_column_that_only_one_silo_has_may_be_left_out(tmp_path):
    put(tmp_path / "s", "north.csv", "age,ward,y\n1,w,a\n2,w,b\n")
    put(tmp_path / "s", "south.csv", "y,age\na,1\nb,2\n")
    with pytest.raises(InputError, match=r"'ward' in only one of .* columns"):
        classified(tmp_path / "s", silo="silo")
    assert classified(tmp_path / "s", silo="silo", columns=["age"]).final()["mean"] >= 0
    with pytest.raises(InputError, match="columns must be a column"):
        classified(tmp_path / "s", silo="silo", columns=["age", "ward"])


def test_a_mapping_of_columns_is_refused():
    columns = {"age": [1, 2, 3, 4], "y": ["a", "b", "a", "b"], "site": ["n", "n", "s", "s"]}
    for value in (columns, {"age": np.arange(4), "y": "abab"}):
        with pytest.raises(InputError, match="frame"):
            Classification(data=value, label="y", silo="site")


# ---- Times ---------------------------------------------------------------------------------------

SPAN = {"time": "when", "begin": "2023-01-01", "until": "2024-01-01"}


@pytest.mark.parametrize("pattern", ["YYYY-MM-DD", "dd.mm.yyyy", "%d.%m", "%H:%M", "%Q", "%"])
def test_an_invalid_time_format_is_refused(tmp_path, pattern):
    with pytest.raises(InputError, match="time_format must be"):
        deployed(tmp_path, HEAD[:-1] + ",when\n30,,no,1,2023-02-01\n", **SPAN, time_format=pattern)


@pytest.mark.parametrize("pattern", ["%d.%m.%Y", "%d/%m/%y %H:%M", "%Y%m%d", "%b %d %Y"])
def test_time_formats_that_are_read(tmp_path, pattern):
    text = HEAD[:-1] + f",when\n30,,no,1,{date(2023, 2, 1).strftime(pattern)}\n"
    plan, problems = deployed(tmp_path, text, **SPAN, time_format=pattern)
    assert len(plan) == 1 and not problems


@pytest.mark.parametrize(("when", "word"), [("44958", "Excel"), ("1675209600000", "milliseconds")])
def test_times_in_another_unit_are_named(tmp_path, when, word):
    _, problems = deployed(tmp_path, HEAD[:-1] + f",when\n30,,no,1,{when}\n", **SPAN)
    assert word in problems[0] and when not in problems[0]


# ---- Labels that are numbers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "label", "is_noted"),
    [
        (300, lambda i: 20 + (i * 7 % 100) / 10, True),
        (200, lambda i: i % 150, True),
        (442, lambda i: 25 + i * 11 % 214, True),
        (1000, lambda i: (i * 7 % 30) / 10, True),
        (400, lambda i: i % 20, False),
        (400, lambda i: (i % 8) / 2, False),
        (300, lambda i: i % 2, False),
    ],
)
def test_a_label_that_seems_to_be_a_number_is_noted(tmp_path, count, label, is_noted):
    rows = "".join(f"{i % 37},{'ns'[i % 2]},{label(i)}\n" for i in range(count))
    path = put(tmp_path, "t.csv", "x,site,y\n" + rows)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pool = Classification(data=path, label="y", silo="site").pool(None)
    assert any("if it is a number" in note for note in pool.notes) is is_noted
    assert any("if it is a number" in str(w.message) for w in seen) is is_noted


def test_a_label_of_more_than_100_numbers_is_refused_without_bins(tmp_path):
    rows = "".join(f"{i % 37},{20 + (i % 101) / 10}\n" for i in range(300))
    path = put(tmp_path, "t.csv", "x,y\n" + rows)
    with pytest.raises(InputError, match=r"label 'y' must be .* 101 numbers in 300 .* by bins"):
        Classification(data=path, label="y").pool(2)
    assert Classification(data=path, label="y", bins=[25.0]).facts(2, 20).actions == 2


@pytest.mark.parametrize(("inside", "warned"), [(5, False), (4, True), (0, True)])
def test_a_range_that_clips_most_values_is_warned_of(tmp_path, inside, warned):
    values = [*["14"] * inside, *["140.5"] * (10 - inside), ""]
    rows = "".join(f"{cell},{i % 3},{'ab'[i % 2]}\n" for i, cell in enumerate(values))
    path = put(tmp_path, "t.csv", "hb,x,y\n" + rows)
    environment = Classification(data=path, label="y", ranges={"hb": [5, 14], "x": [0, 2]})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pool = environment.pool(2)
    message = f"'hb' has {10 - inside} of 10 values outside ranges.hb = [5, 14]"
    assert [message in str(w.message) for w in seen] == [True] * warned
    assert not any("outside" in note for note in pool.notes)


def test_a_class_without_records_is_noted():
    features = np.random.default_rng(0).normal(size=(60, 3))
    pool = Classification.from_arrays(features, np.arange(60) % 3 + 1).load(2)
    assert any("no record has class 0" in note for note in pool.notes)
    pool = Classification.from_arrays(features, np.arange(60) % 3).load(2)
    assert not any("no record has" in note for note in pool.notes)


# ---- Users without a home folder -----------------------------------------------------------------


def test_a_user_without_a_home_has_a_cache(tmp_path, monkeypatch):
    import pwd

    def unknown(uid):
        raise KeyError(uid)

    for key in ("FASTFED_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = cache_folder()
    assert folder == tmp_path / f"fastfed-{os.getuid()}" and folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("HOME", "")
    assert cache_folder() == folder
    folder.chmod(0o755)
    with pytest.raises(InputError, match="set FASTFED_CACHE"):
        cache_folder()


# ---- Ranking files -------------------------------------------------------------------------------


def ranked(queries=20, rows=15, width=46, scale=50.0, first=1):
    """Return lines of a LETOR file whose features start at index `first`."""
    rng = random.Random(0)
    lines = []
    for q in range(queries):
        for _ in range(rows):
            label = rng.choice([0, 0, 0, 1, 2])
            values = [min(1.0, rng.random() * (0.7 + 0.15 * label)) * scale for _ in range(width)]
            pairs = " ".join(f"{j}:{value:.6f}" for j, value in enumerate(values, first))
            lines.append(f"{label} qid:{q + 10} {pairs}")
    return lines


def rank_file(folder, lines):
    """Write lines as a LETOR file, and return its path."""
    return str(put(folder, "rows.txt", "\n".join(lines) + "\n"))


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_normalised_features_are_accepted_by_default(tmp_path, scale):
    path = rank_file(tmp_path, ranked(scale=scale))
    curve = simulate({"kind": "letor", "path": path})
    assert curve.final()["mean"] > 0
    with pytest.raises(InputError, match="theta_penalty must be smaller"):
        simulate({"kind": "letor", "path": path, "theta_penalty": 1.0})
    simulate({"kind": "letor", "path": path, "theta_penalty": 0.001 * scale})


def test_a_default_penalty_that_fits_is_not_changed(tmp_path):
    path = rank_file(tmp_path, ranked())
    env = Letor(path=path)
    assert not any("penalty" in note for note in env.load(2).notes)
    assert (env.load(2).theta == letor_pool(path, 2, theta_penalty=1.0).theta).all()
    assert set(env.describe()) == {
        *("kind", "sources", "features", "scaling", "sampling", "reward"),
        *env.later_keys,
    }


def test_rows_of_one_query_that_are_not_together_are_refused(tmp_path):
    lines = ranked()
    path = rank_file(tmp_path, lines)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read_letor(path).qids) == 20
    random.Random(1).shuffle(lines)
    path = rank_file(tmp_path, lines)
    with pytest.raises(InputError, match="rows of one query must be together"):
        read_letor(path)


@pytest.mark.parametrize("missing", ["1.79769313486e+308", "nan", "-999.0", "NaN", "NULL"])
def test_a_value_of_missing_features_is_absent(tmp_path, missing):
    lines = ranked(scale=5.0)
    without = [" ".join(w for w in line.split() if not w.startswith("7:")) for line in lines]
    with_it = [line + f" # 7:{missing}" for line in without]
    with_it[3] = without[3].replace(" 8:", f" 7:{missing} 8:")
    with_it[4] = without[4] + f" 47:{missing}"
    path = rank_file(tmp_path, with_it)
    if missing != "-999.0":
        with pytest.raises(InputError, match=f'set missing = "{missing}"'.replace("+", r"\+")):
            read_letor(path)
    rows = read_letor(path, missing=missing)
    wanted = read_letor(rank_file(tmp_path / "other", without))
    assert (rows.features[:, :46] == wanted.features).all() and not rows.features[:, 46:].any()
    simulate({"kind": "letor", "path": path, "missing": missing})
    assert Letor(path=path, missing=missing).describe()["missing"] == missing


def test_the_value_of_missing_features_is_a_number_in_quotes(tmp_path):
    path = rank_file(tmp_path, ranked())
    for missing in (-1, 1e300, "", "none", "1 2"):
        with pytest.raises(InputError, match="missing must be a missing value"):
            Letor(path=path, missing=missing)


def test_rows_that_nobody_judged_are_left_out(tmp_path):
    lines = ranked()
    some = ["-1" + line[1:] if i % 3 == 0 else line for i, line in enumerate(lines)]
    judged = [line for line in some if not line.startswith("-1")]
    path = rank_file(tmp_path, some)
    with pytest.warns(UserWarning, match="100 rows have relevance -1"):
        rows = read_letor(path)
    wanted = read_letor(rank_file(tmp_path / "other", judged))
    assert (rows.features == wanted.features).all() and (rows.starts == wanted.starts).all()
    assert rows.unjudged == read_letor(path).unjudged == 100
    env = Letor(path=path)
    assert env.describe()["unjudged"] == "left out"
    assert any("nobody judged them" in note for note in env.load(2).notes)
    with pytest.raises(InputError, match="judged by somebody, found 300 others"):
        read_letor(rank_file(tmp_path, ["-1" + line[1:] for line in lines]))


def test_a_cache_of_an_earlier_version_is_parsed_again(tmp_path):
    path = rank_file(tmp_path, ranked())
    meta = read_letor(path).folder / "meta.json"
    old = {
        k: v for k, v in json.loads(meta.read_text()).items() if k not in ("unjudged", "returning")
    }
    meta.write_text(json.dumps(old))
    assert read_letor(path).unjudged == 0 and "returning" in json.loads(meta.read_text())


@pytest.mark.parametrize("ending", PACKED)
def test_a_packed_ranking_file_is_read(tmp_path, ending):
    text = "\n".join(ranked()) + "\n"
    rows = read_letor(put(tmp_path, "rows.txt", PACKED[ending](text.encode())))
    wanted = read_letor(put(tmp_path, "plain.txt", text))
    assert (rows.features == wanted.features).all() and (rows.qids == wanted.qids).all()
    with pytest.raises(InputError, match="must be a whole"):
        read_letor(put(tmp_path, "cut.txt", PACKED[ending](text.encode())[:-20]))


@pytest.mark.parametrize(
    ("content", "name", "word"),
    [
        (b"PK\x03\x04\x00", "t.xlsx", "Excel"),
        (b"PK\x03\x04\x00", "t.txt", "ZIP"),
        (b"\x28\xb5\x2f\xfd\x00", "t.txt", "zstd"),
        (b"PAR1\x00\x00", "t.txt", "Parquet"),
        ("1 qid:1 1:2\n".encode("utf-16"), "t.txt", "UTF-16"),
    ],
)
def test_the_kind_of_a_ranking_file_that_is_no_text_is_named(tmp_path, content, name, word):
    with pytest.raises(InputError, match=word):
        read_letor(put(tmp_path, name, content))


def test_messages_about_ranking_files_say_the_limit_and_the_remedy(tmp_path):
    lines = ranked()
    with pytest.raises(InputError, match="relevance must be a whole number of at most 2147483647"):
        read_letor(rank_file(tmp_path, ["3000000000" + line[1:] for line in lines]))
    with pytest.raises(InputError, match="number features from 1"):
        read_letor(rank_file(tmp_path, ranked(first=0)))


@pytest.mark.parametrize(
    ("value", "reward"),
    [(True, 1.0), (False, 0.0), ("True", 1.0), ("false", 0.0), ("1", 1.0), (0.25, 0.25)],
)
def test_an_outcome_may_be_a_click(value, reward):
    outcome = {"column": "result", "low": 0, "high": 1}
    columns = [{"name": "age", "kind": "number", "low": 0, "high": 1}]
    tables = {"columns": columns, "actions": {"names": ["A", "B"]}, "reward": outcome}
    assert schema_of(tables).records.outcome.reward(value, "A") == reward


# ---- Arrays from Python --------------------------------------------------------------------------


def test_a_masked_reward_is_refused():
    rewards = np.ma.masked_array([1.0, 1.0, 0.0, 0.0], mask=[1, 0, 0, 0])
    policy = np.full((4, 2), 0.5)
    with pytest.raises(InputError, match="rewards must have no masked values, got 1 of 4"):
        off_policy.inverse_propensity([0, 1, 0, 1], rewards, [0.5] * 4, policy)
    whole = np.ma.masked_array([1.0, 1.0, 0.0, 0.0])
    assert off_policy.inverse_propensity([0, 1, 0, 1], whole, [0.5] * 4, policy).value == 0.5


def test_a_policy_without_a_logged_action_has_no_estimate():
    log = [0] * 50, [1.0] * 50, [0.5] * 50, np.tile([0.0, 1.0], (50, 1))
    for estimate in (
        off_policy.inverse_propensity,
        off_policy.self_normalised,
        lambda *log: off_policy.doubly_robust(*log, np.zeros((50, 2))),
    ):
        with pytest.raises(InputError, match="it takes none"):
            estimate(*log)
    agent = fastfed.LinUCB(2)
    contexts = np.tile([[1.0, 0.0], [0.5, 0.0]], (50, 1, 1))
    replayed = agent.replay(contexts, [1] * 50, [1.0] * 50)
    assert replayed.inverse_propensity is None and replayed.self_normalised is None


@pytest.mark.parametrize(
    "row",
    [
        [0.333333] * 3,
        [0.3333] * 3,
        [0.142857] * 7,
        [0.1429] * 7,
        [1 / 3] * 3,
        [0.25] * 4,
        [0.166667] * 6,
    ],
)
def test_rounded_probabilities_are_accepted(row):
    policy = np.tile(row, (20, 1))
    value = off_policy.inverse_propensity([0, 1] * 10, [1.0] * 20, [1 / len(row)] * 20, policy)
    assert value.value == pytest.approx(1.0, abs=2e-6)
    with pytest.raises(InputError, match="a sum of"):
        off_policy.inverse_propensity([0, 1] * 10, [1.0] * 20, [0.5] * 20, policy * 0.99)


@pytest.mark.parametrize("dtype", [float, np.longdouble])
@pytest.mark.parametrize("scale", [1e155, 1e200, 1e300])
def test_scores_and_sums_that_overflow_are_refused(dtype, scale):
    factor, theta = kernels.inverse_factor(np.eye(2)), np.array([1.0, 0.0])
    actions = (np.array([[0.1, 0.0], [0.9, 0.0]]) * scale).astype(dtype)
    for function in (kernels.ucb_scores, kernels.ucb_argmax):
        for sets in (actions, actions[None], actions.tolist()):
            with pytest.raises(InputError, match="actions must be smaller"):
                function(sets, factor, theta, 1.0)
    gram, bias = np.eye(2), np.zeros(2)
    for x, y in ((actions[1], 1.0), (actions, np.ones(2)), ([1e100, 0], 1e250), (actions[1], 1)):
        with pytest.raises(InputError, match="x and y must be smaller"):
            kernels.rank_one_update(gram, bias, x, y)
        assert (gram == np.eye(2)).all() and not bias.any()


@pytest.mark.parametrize("scale", [1e155, 1e200, 1e300, -1e200])
def test_step_objects_refuse_actions_whose_scores_overflow(scale):
    actions = np.array([[0.1, 0.0], [0.9, 0.0]]) * scale
    for rows in (actions, actions.tolist(), actions[::-1], np.asfortranarray(actions)):
        with pytest.raises(InputError, match="actions must be at most"):
            fastfed.LinUCB(2).select(rows)
        with pytest.raises(InputError, match="actions must be at most"):
            check_actions(rows, 2)
    assert fastfed.LinUCB(2).select([[1e140, 0.0], [2e140, 0.0]]) == 1


@pytest.mark.parametrize("reward", [Decimal("0.5"), Fraction(1, 2), np.float16(0.5)])
def test_a_reward_may_be_any_real_number(reward):
    agent, reference = fastfed.LinUCB(2), fastfed.LinUCB(2)
    for learner, value in ((agent, reward), (reference, 0.5)):
        learner.select(np.eye(2))
        learner.observe(value)
    np.testing.assert_array_equal(agent.theta, reference.theta)
    for invalid in (Decimal("NaN"), Decimal("sNaN"), Decimal("inf"), Decimal("1e400")):
        agent.select(np.eye(2))
        with pytest.raises(InputError, match="must be finite"):
            agent.observe(invalid)


def test_large_numbers_that_do_not_overflow_are_accepted():
    factor, theta = kernels.inverse_factor(np.eye(2)), np.array([1.0, 0.0])
    actions = np.array([[0.1, 0.0], [0.9, 0.0]]) * 1e100
    assert kernels.ucb_argmax(actions, factor, theta, 1.0) == 1
    gram, bias = np.eye(2), np.zeros(2)
    kernels.rank_one_update(gram, bias, [1e150, 0.0], 1e100)
    assert gram[0, 0] == 1e150 * 1e150 and bias[0] == 1e150 * 1e100


@pytest.mark.parametrize("click", [True, False, np.True_, np.False_])
def test_a_click_is_a_reward(click):
    learners = [fastfed.LinUCB(2), fastfed.LinUCB(2)]
    for learner, reward in zip(learners, (click, float(click)), strict=True):
        learner.select(np.eye(2))
        learner.observe(reward)
    assert (learners[0].theta == learners[1].theta).all()
    gram, bias = np.eye(2), np.zeros(2)
    kernels.rank_one_update(gram, bias, [1.0, 0.0], click)
    assert bias[0] == float(click)
