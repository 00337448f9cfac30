"""The notebooks in examples/notebooks run from top to bottom, and show tables, plots, sentences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def outputs(request, tmp_path_factory):
    """Run a notebook in a new kernel; return the outputs of its code cells."""
    import nbformat

    notebook = nbformat.read(request.param, as_version=4)
    nbformat.validate(notebook)
    folder = tmp_path_factory.mktemp("notebook")
    options = {"timeout": 120, "kernel_name": "python3"}
    client = nbclient.NotebookClient(
        notebook, resources={"metadata": {"path": str(folder)}}, **options
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__import__("fastfed").__file__).parents[1]))
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        client.execute()
    assert not list(folder.iterdir())  # nothing is written into the folder of the notebook
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def test_a_notebook_shows_its_table_its_plot_and_its_certificate(outputs):
    assert not [output for output in outputs if output.get("name") == "stderr"]
    shown = [output["data"] for output in outputs if "data" in output]
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert len(pages) == 2
    table, certificate = pages
    assert "<table" in table and "sharing pays for" in table and "<svg" in table
    assert "Privacy certificate" in certificate and "proven" in certificate
    assert "<Figure" not in table and any("image/png" in data for data in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
