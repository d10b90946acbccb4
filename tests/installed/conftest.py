"""Fixtures, and the closing line that the summary of `make test-slow` adds up."""

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


def pytest_terminal_summary(terminalreporter):
    def count(*words):
        return sum(len(terminalreporter.stats.get(word, [])) for word in words)

    failed = count("failed", "error")
    terminalreporter.write_line(
        f"test result: {'FAILED' if failed else 'ok'}. {count('passed')} passed; {failed} failed; "
        f"{count('skipped')} ignored; 0 measured; 0 filtered out"
    )
