"""Runs the checks of this folder and closes with a line that tests/run.sh counts."""

import sys
import unittest


def main():
    suite = unittest.TestSuite()
    loader = unittest.defaultTestLoader
    for name in sys.argv[1:] or ["check_chart", "check_schema", "check_alerts", "check_packaging"]:
        suite.addTests(loader.loadTestsFromName(name))
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    # Several sub-tests of one test may fail; it is one test all the same.
    failed = {getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors}
    skipped = len(result.skipped)
    passed = result.testsRun - len(failed) - skipped
    word = "FAILED" if failed else "ok"
    print(f"\ntest result: {word}. {passed} passed; {len(failed)} failed; {skipped} ignored; 0 measured")
    sys.exit(1 if failed or result.testsRun == 0 else 0)


if __name__ == "__main__":
    main()
