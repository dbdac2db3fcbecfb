"""Which features there are: one list for each place of the core where a feature takes part.

The core imports these lists and no feature. To remove a feature, delete its folder and its lines
here, and those of its verbs, pages and metrics in the lists of the tools.
"""
