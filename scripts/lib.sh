# Functions of all scripts: find a Python, check the tools for a build, create .venv.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { printf '%s\n' "$1" >&2; exit 1; }

# Check the tools for a build. Print all missing tools at once, with one command that installs them.
need_tools() {
    PYTHON="${PYTHON:-python3}"
    local missing="" packages=""
    lacks() { missing="$missing $1,"; packages="$packages $2"; }
    if ! command -v "$PYTHON" >/dev/null 2>&1; then
        lacks "Python 3.11 or newer ($PYTHON was not found)" python3
        lacks "Python's venv module" python3-venv
        lacks "Python's headers" python3-dev
    else
        "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
            || fail "Python 3.11 or newer is needed, got $("$PYTHON" -V 2>&1). Set PYTHON to a newer one."
        "$PYTHON" -c 'import venv, ensurepip' >/dev/null 2>&1 || lacks "Python's venv module" python3-venv
        "$PYTHON" -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' \
            || lacks "Python's headers" python3-dev
    fi
    command -v "${CC:-cc}" >/dev/null 2>&1 || lacks "a C compiler" gcc
    [ -z "$missing" ] || fail "Needed, and not found here:${missing%,}. On Debian or Ubuntu: sudo apt-get install$packages"
}

# Folder of the environment into which `install` installs, and which `run_tests` tests.
VENV=.venv

# install EXTRAS: install the project with these extras into $VENV.
install() {
    need_tools
    [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check ".[$1]" \
        || fail "The installation failed; the lines above say why."
}

# run_tests ARGUMENT...: run pytest with these arguments.
run_tests() {
    # The installed package is tested, not the checkout, in child processes too.
    export PYTHONSAFEPATH=1
    # Compiling the tests takes longer than importing them, so cache their bytecode in the environment.
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX="$PWD/$VENV/bytecode"
    # All tests of a file run in one process, because they share its fixtures.
    "$VENV/bin/python" -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"
}
