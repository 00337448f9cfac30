"""Build the compiled core. Everything else is in pyproject.toml.

Files with loops that vectorise are compiled once for each level of x86-64 (`LEVELS`), and
ff_levels.c chooses a level when the package is imported. Levels need gcc or clang; other compilers
and other processors get one level. Threads are used if a test program with pthreads and C11 atomics
compiles. Without levels or threads, the package is slower and computes the same bits. The build log
and `fastfed doctor` show what was built.

All bindings and all C files become one shared object, `fastfed._kernels._native`.
`fastfed/_kernels/__init__.py` loads the modules from it.

The environment variable `FASTFED_BUILD` may contain these words:

- `abi3` makes one wheel for this Python and all later versions that have a GIL.
- `plain` uses only the optimization and the processor that CC and CFLAGS name (scripts/sanitize).
- `checked` lets Cython check indices, None and overflow (scripts/sanitize).
"""

import os
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("fastfed") / "_kernels"
#: Names of the Cython modules; `_native` is the shared object itself.
BINDINGS = (
    "_native",
    "rng",
    "linalg",
    "aggregation",
    "checked",
    "environments",
    "losses",
    "experts",
    "driver",
)
#: The module with Cython's code for views of arrays, which the bindings share.
VIEWS = "fastfed._kernels._views"
#: Bindings whose functions do much work in each call: the overhead of a call does not matter.
LONG_CALLS = {"_native", "driver", "experts", "losses"}
#: Files that are compiled once for each level. In EXACT files, multiplications and additions are
#: not fused, so all levels compute the same bits. In FUSED files they may be fused: these files
#: only screen actions, and the remaining actions are scored exactly.
EXACT = (
    "aggregation",
    "batch",
    "bits",
    "coins",
    "course",
    "environment",
    "experts",
    "fixed",
    "group",
    "linalg",
    "losses",
    "random",
    "refresh_small",
    "release",
    "scores",
)
FUSED = ("screen_f32", "screen_f32_small")
#: Files that call instructions of the processor directly (ff_wide.h). Their v4 is compiled with the
#: flags WIDER too; a v4 processor without these instructions runs their v3.
WIDE = (
    "bonus_bounds",
    "bonus_cache",
    "bonus_factor",
    "bonus_few",
    "bonus_scores",
    "quantise_i16",
    "row_sums",
    "screen_i16_factor",
)
WIDER = {"v4": ["-mavx512vnni"]}
#: The file that chooses the level. The names of a level's functions end in the level's name.
#: "base" has only the flags of CC and CFLAGS.
CHOICE = KERNELS / "src" / "ff_levels.c"
LEVELS = {"v4": ["-march=x86-64-v4"], "v3": ["-march=x86-64-v3"], "base": []}
WORDS = os.environ.get("FASTFED_BUILD", "").split()
PLAIN = "plain" in WORDS
#: Build one wheel for this Python and all later ones. Every view of an array then takes 60 ns more.
ABI3 = "abi3" in WORDS
ABI3_MACROS = [("Py_LIMITED_API", "0x030B0000")] if ABI3 else []
#: A negative index is out of range, with and without checks.
DIRECTIVES = {"language_level": 3, "wraparound": False} | dict.fromkeys(
    ("boundscheck", "initializedcheck", "nonecheck", "overflowcheck"), "checked" in WORDS
)
#: Importing fastfed does not switch the GIL on in a Python without a GIL (docs/sharp-edges.md).
DIRECTIVES["freethreading_compatible"] = True

#: A program with all that ff_levels.c needs from a compiler.
LEVELS_PROBE = """
#include <cpuid.h>
int twice_base(int x) { return 2 * x; }
int (*twice_at)(int) __attribute__((used)) = twice_base;
#ifdef __APPLE__
#define US "_"
#else
#define US
#endif
__asm__(".text\\n.globl " US "twice\\n" US "twice:\\n jmp *" US "twice_at(%rip)\\n");
int twice(int x);
int main(void) { unsigned a, b, c, d; return __get_cpuid(1, &a, &b, &c, &d) ? twice(0) : 0; }
"""
THREADS_PROBE = """
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
static _Atomic int made;
static void *serve(void *nothing) { made = 1; return nothing; }
int main(void)
{
    pthread_t other;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return pthread_create(&other, NULL, serve, NULL) || pthread_join(other, NULL) || !made;
}
"""
CLANG_PROBE = """
#ifndef __clang__
#error
#endif
"""


class BuildKernels(build_ext):
    def spelled(self, flags: Iterable[str]) -> list[str]:
        """Return flags of gcc and clang in the form that the compiler understands."""
        return [f"/clang:{flag}" if self.msvc() else flag for flag in flags]

    def msvc(self) -> bool:
        return self.compiler.compiler_type == "msvc"

    def compiles(self, source: str, *flags: str) -> bool:
        """Return whether a program compiles with these flags, without warnings, and links."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "probe.c"
            file.write_text(source)
            try:
                objects = self.compiler.compile(
                    [str(file)], output_dir=folder, extra_postargs=self.spelled([*flags, "-Werror"])
                )
                self.compiler.link_executable(
                    objects, "probe", output_dir=folder,
                    extra_postargs=[] if self.msvc() else list(flags),
                )  # fmt: skip
            except Exception:
                return False
        return True

    def build_extensions(self) -> None:
        compile_args, link_args, macros = self.flags()
        (native,) = self.extensions
        native.extra_link_args = link_args
        threads = [macro for macro in macros if macro[0] == "FF_THREADS"]
        wrappers, native.sources = native.sources, []
        native.depends += wrappers
        # The wrappers take longest. They are compiled in parallel.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = []
            for one in map(Path, wrappers):
                # Wrappers only convert arguments and call C. Less optimization halves the time
                # of compiling them, and does not change results.
                less = "-Og" if one.stem in LONG_CALLS else "-O1"
                flags = [flag.replace("-O3", less) for flag in compile_args]
                parts.append(pool.submit(self.objects, "", [one], flags, macros))
            for one in once():
                parts.append(pool.submit(self.objects, "", [one], compile_args, macros))
            if ("FF_LEVELS", "1") in macros:
                for level, flags in LEVELS.items():
                    args = [*compile_args, *self.spelled(flags)]
                    parts.append(pool.submit(self.levelled, level, args, threads))
            else:
                parts.append(pool.submit(self.levelled, "", compile_args, threads))
            for part in parts:
                native.extra_objects += part.result()
        # Delete the shared object of a different kind of build: Python might load it first, and a
        # wheel would contain both.
        target = Path(self.get_ext_fullpath(native.name))
        for suffix in EXTENSION_SUFFIXES:
            other = target.with_name("_native" + suffix)
            if other != target:
                other.unlink(missing_ok=True)
        super().build_extensions()

    def renamed(self, level: str, names: list[str], file: str) -> list[str]:
        """Write a header that appends the level to the names of functions; return its flags."""
        if not level:
            return []
        header = Path(self.build_temp) / level / file
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text("".join(f"#define {name} {name}_{level}\n" for name in names))
        return self.spelled([f"-include{header}"])

    def levelled(self, level: str, flags: list[str], macros: list[tuple[str, str]]) -> list[str]:
        """Compile all files with levels for one level; return the paths of the objects."""
        names = listed("EACH_OF", (*EXACT, *FUSED))
        wide = listed("EACH_WIDE|EACH_WITHIN", WIDE)
        own = [*flags, *self.renamed(level, names, "names.h")]
        # Name the option, because the defaults of compilers differ.
        fusing = [flag.replace("contract=off", "contract=fast") for flag in own]
        # Wide files call one another at the same level. Other files call the level that
        # ff_levels.c has chosen.
        wider = self.spelled(WIDER.get(level, []))
        wider = [*flags, *wider, *self.renamed(level, names + wide, "wide_names.h")]
        # Compile the wide files as one file: the compiler's header of instructions takes longer
        # than their code.
        together = Path(self.build_temp) / level / "wide.c"
        together.parent.mkdir(parents=True, exist_ok=True)
        together.write_text("".join(f'#include "{path(name).name}"\n' for name in WIDE))
        return [
            *self.objects(level, [path(name) for name in EXACT], own, macros),
            *self.objects(level, [path(name) for name in FUSED], fusing, macros),
            *self.objects(level, [together], wider, macros),
        ]

    def objects(
        self, level: str, files: list[Path], flags: list[str], macros: list[tuple[str, str]]
    ) -> list[str]:
        return self.compiler.compile(
            [str(file) for file in files],
            output_dir=str(Path(self.build_temp) / level),
            macros=[*macros, *ABI3_MACROS],
            include_dirs=self.extensions[0].include_dirs,
            extra_postargs=flags,
        )

    def flags(self) -> tuple[list[str], list[str], list[tuple[str, str]]]:
        """Return the flags of the compiler, the flags of the linker, and the macros."""
        if self.msvc():
            wanted = os.environ.get("CC", "")
            if not Path(wanted).stem.startswith("clang-cl"):
                print("fastfed: MSVC: one thread per run, one level; CC=clang-cl has all levels")
                return ["/O2", "/fp:precise"], [], []
            self.compiler.initialize()
            self.compiler.cc = wanted
        # Without contraction and fast-math, results have the same bits on every processor.
        compile_args = [
            *([] if PLAIN else ["-O3"]),
            "-std=gnu11",
            "-fno-math-errno",
            "-fno-trapping-math",
            "-ffp-contract=off",
            "-Wno-psabi",
        ]
        link_args, macros = [], []
        if not self.msvc() and self.compiles(THREADS_PROBE, "-std=gnu11", "-pthread"):
            compile_args.append("-pthread")
            link_args.append("-pthread")
            macros.append(("FF_THREADS", "1"))
        else:
            print("fastfed: no pthreads found: one replicate uses one thread", file=sys.stderr)
        if PLAIN:
            print("fastfed: plain build: for the processor that CC and CFLAGS name, one level")
        elif self.compiles(LEVELS_PROBE, *LEVELS["v4"], *WIDER["v4"]):
            macros.append(("FF_LEVELS", "1"))
        else:
            print(
                "fastfed: one level of instructions: no x86-64, or a compiler that does not know "
                "its levels (same results, slower on x86-64)",
                file=sys.stderr,
            )
        # By default, clang uses vectors of 256 bits, since AVX-512 lowered the clock rate of
        # earlier processors.
        if self.compiles(CLANG_PROBE):
            LEVELS["v4"].append("-mprefer-vector-width=512")
        if not {"plain", "checked"} & set(WORDS):
            # Leave out debug information, which is most of the size.
            compile_args.append("-g0")
            link_args += [] if self.msvc() else ["-Wl,-x" if sys.platform == "darwin" else "-s"]
        return self.spelled(compile_args), link_args, macros


def check_tools() -> None:
    """Stop with one sentence, before anything is built, if the compiler or a header is missing."""
    builds = {"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}
    if os.name == "nt" or builds.isdisjoint(sys.argv):
        return
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(shlex.split(command)[0]) is None:
        sys.exit(
            f"fastfed compiles its core, but there is no C compiler {command!r}: install gcc or "
            "clang (Debian, Ubuntu: apt install build-essential python3-dev; macOS: xcode-select "
            "--install), or set CC"
        )
    # With these variables set, the headers may be in a different folder.
    elsewhere = {"CPATH", "C_INCLUDE_PATH", "CFLAGS", "CPPFLAGS"} & set(os.environ)
    if not elsewhere and not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        sys.exit(
            f"fastfed compiles its core, but the headers of Python {version} are not installed: "
            f"install them (Debian, Ubuntu: apt install python{version}-dev)"
        )


def path(name: str) -> Path:
    """Return the path of a C file of the kernels."""
    return KERNELS / "src" / f"ff_{name}.c"


def once() -> list[Path]:
    """Return the C files without levels, which are compiled once."""
    levelled = {path(name) for name in (*EXACT, *FUSED, *WIDE)}
    return sorted({*(KERNELS / "src").glob("*.c")} - levelled)


def listed(lists: str, files: tuple[str, ...]) -> list[str]:
    """Return the names of all functions of some files with levels.

    The names come from the lists of ff_levels.c. Exit with a message if a list differs from the
    files.
    """
    text = "".join(
        body
        for _, body in re.findall(rf"#define ({lists})\(each\)((?:.*\\\n)*.*)", CHOICE.read_text())
    )
    names = re.findall(r"each\((ff_\w+)\)", text)
    defined = {
        function: name
        for name in files
        for function in re.findall(
            r"^(?!static|FF_INLINE)[a-z][\w *]*?\b(ff_\w+)\([^;{]*\)\s*\{",
            path(name).read_text(),
            re.M,
        )
    }
    if missing := sorted(set(defined) - set(names)):
        where = ", ".join(f"{function} of ff_{defined[function]}.c" for function in missing)
        sys.exit(f"ff_levels.c must list every function of a file with levels: add {where}")
    if unknown := sorted(set(names) - set(defined)):
        sys.exit(f"ff_levels.c lists what no file with levels defines: {', '.join(unknown)}")
    return names


def readme() -> str:
    """Return the text of README.md with links that work on the package index too."""
    root = Path(__file__).parent
    text = (root / "README.md").read_text(encoding="utf-8")
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"].get("urls")
    if urls is None:  # nothing is published: links stay relative to the checkout
        return text
    address = urls["Repository"]
    code = (root / "fastfed" / "__init__.py").read_text()
    version = re.search(r'^__version__ = "(.*)"', code, re.MULTILINE)[1]

    def absolute(match: re.Match[str]) -> str:
        kind = "raw" if match[1].startswith("!") else "blob"
        return f"{match[1]}{address}/{kind}/v{version}/{match[2]}"

    # A link without a scheme that is not an anchor is a file of the repository.
    relative = r"(!?\[[^\]]*\]\()(?![a-z]+:|#)([^)\s]+)"
    return re.sub(relative, absolute, text)


def bindings() -> list[Extension]:
    """Return the extension that contains all bindings."""
    extensions = cythonize(
        [
            *(Extension(f"fastfed._kernels.{n}", [str(KERNELS / f"{n}.pyx")]) for n in BINDINGS),
            Extension(VIEWS, [str(KERNELS / "_views.c")]),
        ],
        compiler_directives=DIRECTIVES,
        shared_utility_qualified_name=VIEWS,
    )
    native = Extension(
        "fastfed._kernels._native",
        [source for each in extensions for source in each.sources],
        include_dirs=[str(KERNELS / "src")],
        depends=[str(p) for p in sorted((KERNELS / "src").glob("*.[ch]"))],
        define_macros=ABI3_MACROS,
        py_limited_api=ABI3,
        export_symbols=[f"PyInit_{name}" for name in (*BINDINGS, "_views")],
    )
    return [native]


if set(WORDS) - {"abi3", "plain", "checked"}:
    sys.exit(f"FASTFED_BUILD takes the words abi3, plain and checked, got {' '.join(WORDS)}")
if ABI3 and sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(
        "FASTFED_BUILD=abi3 needs a Python with the GIL: one without it has another ABI, so leave "
        "the word out and build a wheel for this Python"
    )
check_tools()
setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=bindings(),
    cmdclass={"build_ext": BuildKernels},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if ABI3 else {},
)
