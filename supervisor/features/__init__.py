"""What the core can do without: a folder for each.

Features import the core, and those other features that they name. The core imports none of them:
each is a line in those lists of `supervisor/lists/` that it needs. What Redis keeps of them is in
the core all the same: keys (store/keys.py), rules (job/run.py), what a poll tells
(ledger/leader.py). Tools may know any: the page, the API and the verbs of a feature are theirs.
"""
