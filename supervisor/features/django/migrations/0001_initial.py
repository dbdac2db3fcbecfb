"""The table of jobs."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Job",
            fields=[
                ("name", models.CharField(max_length=100, primary_key=True, serialize=False)),
                ("task", models.CharField(blank=True, max_length=255)),
                ("cron", models.TextField(blank=True)),
                ("every", models.CharField(blank=True, max_length=100)),
                (
                    "timezone",
                    models.CharField(blank=True, max_length=100, verbose_name="time zone"),
                ),
                ("args", models.JSONField(blank=True, default=list, verbose_name="arguments")),
                (
                    "kwargs",
                    models.JSONField(blank=True, default=dict, verbose_name="keyword arguments"),
                ),
                ("overlap", models.CharField(blank=True, max_length=20)),
                ("queue", models.CharField(blank=True, max_length=255)),
                ("paused", models.BooleanField(default=False)),
                ("description", models.TextField(blank=True)),
                ("labels", models.JSONField(blank=True, default=dict)),
                ("more", models.JSONField(blank=True, default=dict, verbose_name="further keys")),
                (
                    "changed_at",
                    models.DateTimeField(auto_now=True, db_index=True, verbose_name="changed"),
                ),
                (
                    "changed_by",
                    models.CharField(blank=True, editable=False, max_length=150, verbose_name="by"),
                ),
            ],
            options={
                "ordering": ("name",),
                "permissions": (
                    ("trigger_job", "Can trigger jobs"),
                    ("pause_job", "Can pause and resume jobs"),
                    ("cancel_job", "Can cancel the runs of jobs"),
                ),
            },
        ),
    )
