"""Jobs that run after others."""

#: Keys of a job that do something only with this feature.
KEYS = ("after", "after_match", "after_policy")
