"""The layer that comes with the package is what its README says."""

from importlib.resources import files

import numpy as np

from dgnumba.data import demo_layer


def test_the_layer_has_the_shapes_and_types_that_it_says():
    layer = demo_layer()
    assert (layer.weight.shape, layer.weight.dtype) == ((1536, 384), np.float16)
    assert (layer.activations.shape, layer.activations.dtype) == ((1431, 384), np.float16)
    assert np.isfinite(layer.weight).all()
    assert np.isfinite(layer.activations).all()


def test_the_activations_are_normed_rows_and_not_noise():
    """They come out of a LayerNorm: no two rows are equal, and each has about the same size."""
    x = demo_layer().activations.astype(np.float64)
    size = np.linalg.norm(x, axis=1)
    assert len(np.unique(x, axis=0)) == len(x)
    assert size.max() / size.min() < 4


def test_notice_and_licence_of_the_model_are_shipped_with_it():
    folder = files("dgnumba.data")
    assert "Apache License" in (folder / "LICENSE.apache-2.0").read_text()
    assert "all-MiniLM-L6-v2" in (folder / "NOTICE").read_text()


def test_the_data_is_small():
    assert len((files("dgnumba.data") / "layer.npz").read_bytes()) < 3_000_000
