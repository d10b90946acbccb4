"""A plugin of pytest: the closing line that the summary of `make test` adds up, as cargo's own tests have it."""


def pytest_terminal_summary(terminalreporter):
    def count(*words):
        return sum(len(terminalreporter.stats.get(word, [])) for word in words)

    failed = count("failed", "error")
    terminalreporter.write_line(
        f"test result: {'FAILED' if failed else 'ok'}. {count('passed')} passed; {failed} failed; "
        f"{count('skipped')} ignored; 0 measured; 0 filtered out"
    )
