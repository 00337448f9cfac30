"""The compiled functions that have a twin, in one module like the twins."""

from fastfed._kernels import aggregation, linalg, rng


def __getattr__(name: str):
    """Return the function of this name, in whichever module it is."""
    for module in (rng, linalg, aggregation):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"no compiled function is called {name}")
