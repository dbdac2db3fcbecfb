"""Test-suites of others, run twice: as they are, and with every app of theirs supervised.

`make foreign-tests` prints how many tests passed and failed each time, and each test whose outcome
differs. It exits 1 when a difference is not explained in the suite's `explained`.

A suite is added in suites.py: the package whose source distribution has the tests, what of it is
needed, the folders that are run, and the environment it wants. It runs in an environment of its own
(.foreign/NAME), outside of which nothing is written.

* foreign_outcomes.py, a plugin of pytest, writes down how each test ended.
* foreign_supervised.py, another one, supervises each Celery app that is made.
* foreign_redbeat.py gives RedBeat's tests a real server, and our scheduler.
"""
