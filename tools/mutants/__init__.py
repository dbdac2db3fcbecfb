"""Mutation testing: code that is broken in small ways on purpose, and the tests that must notice.

`make mutants` is no part of CI. cosmic-ray and mutmut were tried for the Python: neither removes
statements nor lets each module have its own tests, and neither knows Lua.
"""
