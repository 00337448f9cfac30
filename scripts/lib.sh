# Shared by the scripts: find a Python, check what a build needs, make .venv.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { printf '%s\n' "$1" >&2; exit 1; }

need_tools() {
    PYTHON="${PYTHON:-python3}"
    command -v "$PYTHON" >/dev/null 2>&1 || fail "Python 3.11 or newer is needed, and $PYTHON was not found."
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
        || fail "Python 3.11 or newer is needed, got $("$PYTHON" -V 2>&1)."
    "$PYTHON" -c 'import venv, ensurepip' >/dev/null 2>&1 \
        || fail "Python's venv module is needed: on Debian or Ubuntu, apt-get install python3-venv."
    "$PYTHON" -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' \
        || fail "Python's headers are needed: on Debian or Ubuntu, apt-get install python3-dev."
    command -v "${CC:-cc}" >/dev/null 2>&1 \
        || fail "A C compiler is needed: on Debian or Ubuntu, apt-get install gcc."
}

# The environment that is installed into and tested.
VENV=.venv

# install EXTRAS: the project with these extras into it.
install() {
    need_tools
    [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check ".[$1]" \
        || fail "The installation failed; the lines above say why."
}

# run_tests ARGUMENT...: pytest, with these arguments.
run_tests() {
    # The installed package is tested, not the checkout, in child processes too.
    export PYTHONSAFEPATH=1
    # Compiling the tests takes longer than importing them: what was compiled stays beside the packages.
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX="$PWD/$VENV/bytecode"
    # A file's tests stay in one process, for they share what its fixtures made.
    "$VENV/bin/python" -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"
}
