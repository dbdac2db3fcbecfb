"""Which features there are: one list for each place of the core where a feature takes part.

The core imports these lists and no feature. To remove a feature, delete its folder and its lines
here, its line in `ledger/library.py` if it has Lua, and its verb with the line in `cli/`.
"""
