"""Other projects' packages, which tests compare with where they are installed."""

import pytest


def module(name):
    """A package, or a skip: some of them fail in ways of their own where one of theirs is missing."""
    try:
        return __import__(name, fromlist=["_"])
    except Exception as error:
        pytest.skip(f"{name} cannot be imported: {error}")
