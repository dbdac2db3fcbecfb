"""Taking over what an app's beat emits today: `beat_schedule`, RedBeat's entries, Django's rows."""

#: The source of the jobs that are rows of django-celery-beat.
DJANGO = "django-celery-beat"

#: Keys of a job that do something only with this feature.
KEYS = ("entry",)
