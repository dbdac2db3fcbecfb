"""What is kept from a run's code: its log lines, and the traceback of a failed attempt."""

#: Keys of a job that do something only with this feature.
KEYS = ("log",)
