"""Which features there are: one list for each place of the core where a feature takes part.

The core imports these lists and no feature, and the tools do where they show or serve what features
add. To remove a feature, delete its folder and its lines here, its line in
`ledger/function_library.py` if it has Lua, and its verb with the line in `cli/`; and with it the
features that need it. `tests/features/test_deleting.py` does that with each. A schedule file that
has the key of a deleted feature gets an error with its line: edit the files first. A job in Redis
that has it is passed over, or, if the core has the key (`OFFERED` in keys.py), runs without it: one
that follows others does not run without `following`. The arguments of `supervise` for adoption are
the core's, and then do nothing.
"""
