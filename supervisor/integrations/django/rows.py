"""The table as a source of jobs: what beat and `manage.py supervisor sync` read."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db.models import Count, Max

from supervisor import jobs
from supervisor.integrations.django.checking import SOURCE, words
from supervisor.integrations.django.models import Job
from supervisor.sending.sources import Found


class Rows:
    """A Source. Its errors are the database's own."""

    name = SOURCE

    def fingerprint(self) -> str:
        """One query, whatever the table's size. Each year has holidays of its own."""
        found = Job.objects.aggregate(Count("pk"), Max("changed_at"))
        year = datetime.now(UTC).year
        return f"{found['pk__count']} rows, {found['changed_at__max']}, {year}"

    def read(self) -> Found:
        """Unknown tasks are no fault here: a row that was saved stays the truth."""
        found = Found()
        for row in Job.objects.iterator():
            spec, faults = jobs.judged(row.name, row.keys())
            if faults:
                found.problems[row.name] = "; ".join(map(words, faults))
            else:
                found.specs[row.name] = spec
        return found
