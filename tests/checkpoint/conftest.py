"""Files for the tests of this room."""

import pytest
from safetensors_by_hand import file_bytes


@pytest.fixture
def save(tmp_path):
    """``save({"name": array}, "file", metadata)`` writes a file and gives its path."""

    def call(tensors, name="in", metadata=None):
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(file_bytes(tensors, metadata))
        return path

    return call
