"""The container images that are rendered, by version; pin them by digest where you deploy."""

from __future__ import annotations

from importlib.metadata import version

APP = f"celery-beat-supervisor:{version('celery-beat-supervisor')}"
VALKEY = "valkey/valkey:8.1.3-alpine"
PROMETHEUS = "prom/prometheus:v3.5.0"
ALERTMANAGER = "prom/alertmanager:v0.28.1"
GRAFANA = "grafana/grafana:12.1.1"

#: Where things lie in a container; the Dockerfile makes them.
APP_DIRECTORY = "/srv/app"
SCHEDULES = "/etc/supervisor/schedules"
STATE = "/var/lib/supervisor"
USER_ID = 10001
