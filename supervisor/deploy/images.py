"""The container images of a rendered deployment. `render --help` shows some of them."""

from importlib.metadata import version


class Images:
    """Images by version; pin them by digest in your deployment."""

    APP = f"celery-beat-supervisor:{version('celery-beat-supervisor')}"
    VALKEY = "valkey/valkey:8.1.3-alpine"
    PROMETHEUS = "prom/prometheus:v3.5.0"
    ALERTMANAGER = "prom/alertmanager:v0.28.1"
    GRAFANA = "grafana/grafana:12.1.1"

    # Paths in a container.
    SCHEDULES = "/etc/supervisor/schedules"
    ACCESS = "/etc/supervisor/access"
    STATE = "/var/lib/supervisor"
