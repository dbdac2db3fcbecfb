"""A run that is triggered when a database transaction has committed, and never when it has not.

One module for each library whose transactions they are, so that neither needs the other:
`supervisor.on_commit.sqlalchemy` and `supervisor.on_commit.django`.
"""
