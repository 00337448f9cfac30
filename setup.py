"""Build of the compiled core; everything else stands in pyproject.toml.

Threads (pthreads and C11 atomics) and dispatch by processor (GNU ifunc) are probed. Without them
the build is plain, slower and gives the same bits; the build log and `fastfed doctor` say which it
was.

Where there is dispatch, the compiler clones the loops that it vectorises by itself. Vectors that
are written out should be as wide as a processor's registers, which is known only when a whole file
is compiled for it: those files are compiled once for each level, and ff_levels.c chooses.

All bindings and all C files become one shared object, `fastfed._kernels._native`, which
`fastfed/_kernels/__init__.py` loads the modules from.

`FASTFED_BUILD`, in the environment, is for scripts/sanitize and takes words: `plain` leaves
optimization and processor to CC and CFLAGS, `checked` has Cython check indices, None and overflow.
"""

import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("fastfed") / "_kernels"
#: One module each; `_native` is the shared object itself.
BINDINGS = (
    "_native",
    "rng",
    "linalg",
    "aggregation",
    "checked",
    "environments",
    "losses",
    "driver",
)
#: The module of what Cython needs for views of arrays, which the bindings share.
VIEWS = "fastfed._kernels._views"
#: With vectors written out. Screening alone may fuse multiplications and additions: what it keeps
#: is scored exactly.
EXACT = [KERNELS / "src" / f"ff_{name}.c" for name in ("linalg", "scores", "environment")]
FUSED = [KERNELS / "src" / f"ff_{name}.c" for name in ("screen_f32", "screen_f32_small")]
#: Chooses among the levels, whose functions end in these names; base is as CC and CFLAGS have it.
CHOICE = KERNELS / "src" / "ff_levels.c"
#: Compiled once.
ONCE = sorted({*(KERNELS / "src").glob("*.c")} - {*EXACT, *FUSED, CHOICE})
LEVELS = {"v4": ["-march=x86-64-v4"], "v3": ["-march=x86-64-v3"], "base": []}
WORDS = os.environ.get("FASTFED_BUILD", "").split()
PLAIN = "plain" in WORDS
#: An index below zero counts as outside, checked or not.
DIRECTIVES = {"language_level": 3, "wraparound": False} | dict.fromkeys(
    ("boundscheck", "initializedcheck", "nonecheck", "overflowcheck"), "checked" in WORDS
)

CLONES_PROBE = """
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
int twice(int x) { return 2 * x; }
int main(void) { return __builtin_cpu_supports("x86-64-v4") ? twice(0) : 0; }
"""
#: Instructions of AVX-512 by name, used where the processor has them.
AVX512_PROBE = """
#include <immintrin.h>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))) int twice(int x)
{
    __m512i sum = _mm512_set1_epi32(x);
    __asm__("vpdpwssd %1, %1, %0" : "+v"(sum) : "v"(_mm512_set1_epi16(1)));
    return _mm512_reduce_add_epi32(sum);
}
int main(void) { return __builtin_cpu_supports("avx512vnni") ? twice(0) : 0; }
"""
#: In a plain build only for a processor that has them by name.
NAMED_PROBE = """
#ifndef __AVX512BW__
#error
#endif
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


class BuildKernels(build_ext):
    def compiles(self, source: str, *flags: str) -> bool:
        """Whether a small program compiles, without warnings, and links with these flags."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "probe.c"
            file.write_text(source)
            try:
                objects = self.compiler.compile(
                    [str(file)], output_dir=folder, extra_postargs=[*flags, "-Werror"]
                )
                self.compiler.link_executable(
                    objects, "probe", output_dir=folder, extra_postargs=list(flags)
                )
            except Exception:
                return False
        return True

    def build_extensions(self) -> None:
        compile_args, link_args, macros = self.flags()
        (native,) = self.extensions
        native.extra_link_args = link_args
        wrappers, native.sources = native.sources, []
        native.depends += wrappers
        # The wrappers take longer than all else, so they are compiled side by side.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = [
                pool.submit(self.objects, "", [Path(one)], compile_args, macros)
                for one in [*wrappers, *ONCE]
            ]
            if ("FF_TARGET_CLONES", "1") in macros:
                names = re.findall(r"each\((ff_\w+)\)", CHOICE.read_text())
                parts.append(pool.submit(self.objects, "", [CHOICE], compile_args, []))
                for level, flags in LEVELS.items():
                    own = [(name, f"{name}_{level}") for name in names]
                    args = level, [*compile_args, *flags], own
                    parts.append(pool.submit(self.vectors, *args))
            else:
                parts.append(pool.submit(self.vectors, "", compile_args, []))
            for part in parts:
                native.extra_objects += part.result()
        super().build_extensions()

    def vectors(self, level: str, flags: list[str], macros: list[tuple[str, str]]) -> list[str]:
        """The objects of the files with vectors written out, in a folder of the level's name."""
        fusing = [flag for flag in flags if "contract" not in flag]
        return [
            *self.objects(level, EXACT, flags, macros),
            *self.objects(level, FUSED, fusing, macros),
        ]

    def objects(
        self, level: str, files: list[Path], flags: list[str], macros: list[tuple[str, str]]
    ) -> list[str]:
        return self.compiler.compile(
            [str(file) for file in files],
            output_dir=str(Path(self.build_temp) / level),
            macros=macros,
            include_dirs=self.extensions[0].include_dirs,
            extra_postargs=flags,
        )

    def flags(self) -> tuple[list[str], list[str], list[tuple[str, str]]]:
        """To compile, to link, and macros."""
        if self.compiler.compiler_type == "msvc":
            print("fastfed: plain build (MSVC): one thread per run, no processor clones")
            return ["/O2", "/fp:precise"], [], []
        # No contraction and no fast-math: the same bits on every processor.
        compile_args = [
            *([] if PLAIN else ["-O3"]),
            "-std=gnu11",
            "-fno-math-errno",
            "-fno-trapping-math",
            "-ffp-contract=off",
            "-Wno-psabi",
        ]
        link_args, macros = [], []
        if self.compiles(THREADS_PROBE, "-std=gnu11", "-pthread"):
            compile_args.append("-pthread")
            link_args.append("-pthread")
            macros.append(("FF_THREADS", "1"))
        else:
            print("fastfed: no pthreads found: one replicate uses one thread", file=sys.stderr)
        if PLAIN:
            print("fastfed: plain build: for the processor that CC and CFLAGS name, no clones")
        elif self.compiles(CLONES_PROBE):
            macros.append(("FF_TARGET_CLONES", "1"))
        else:
            print(
                "fastfed: no target_clones here: plain code for the baseline processor "
                "(same results, slower)",
                file=sys.stderr,
            )
        if self.compiles(NAMED_PROBE * PLAIN + AVX512_PROBE):
            macros.append(("FF_AVX512", "1"))
        return compile_args, link_args, macros


def bindings() -> list[Extension]:
    """One extension of all bindings."""
    made = cythonize(
        [
            *(Extension(f"fastfed._kernels.{n}", [str(KERNELS / f"{n}.pyx")]) for n in BINDINGS),
            Extension(VIEWS, [str(KERNELS / "_views.c")]),
        ],
        compiler_directives=DIRECTIVES,
        shared_utility_qualified_name=VIEWS,
    )
    native = Extension(
        "fastfed._kernels._native",
        [source for each in made for source in each.sources],
        include_dirs=[str(KERNELS / "src")],
        depends=[str(p) for p in sorted((KERNELS / "src").glob("*.[ch]"))],
        export_symbols=[f"PyInit_{name}" for name in (*BINDINGS, "_views")],
    )
    return [native]


if set(WORDS) - {"plain", "checked"}:
    sys.exit(f"FASTFED_BUILD takes the words plain and checked, got {' '.join(WORDS)}")
setup(ext_modules=bindings(), cmdclass={"build_ext": BuildKernels})
