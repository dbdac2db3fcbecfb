"""Which features there are: one list for each place of the core where a feature takes part.

The core imports these lists and no feature, and the tools do where they show or serve what features
add. To remove a feature, delete its folder and its lines here, its line in
`ledger/function_library.py` if it has Lua, and its verb with the line in `cli/`; and with it the
features that need it. `tests/features/test_deleting.py` does that with each. A schedule file that
has the key of a deleted feature gets an error with its line, and a job in Redis that has it is
passed over: edit the files first. `after` and its options, and the arguments of `supervise` for
adoption, are the core's, and then do nothing: without `following` a job that follows others does
not run.
"""
