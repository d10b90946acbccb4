"""Fixtures."""

import os

import pytest

from stage import Place


@pytest.fixture
def place():
    made = Place()
    yield made
    made.close()


@pytest.fixture(scope="session")
def image():
    """Its name in engine.sh's store."""
    return os.environ["TEST_IMAGE"]
