"""First of all: what is tested is the installed package, not the files beside it."""

from pathlib import Path

import fastfed


def test_fastfed_is_imported_from_an_installation():
    checkout = Path(__file__).resolve().parents[1] / "fastfed"
    assert Path(fastfed.__file__).resolve().parent != checkout, (
        "fastfed was imported from the checkout; run scripts/test, which installs it"
    )


def test_every_public_name_loads():
    for name in fastfed.__all__:
        assert getattr(fastfed, name) is not None
    assert set(fastfed.__all__) <= set(dir(fastfed))


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(fastfed, "nonsense")
