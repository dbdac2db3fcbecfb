"""What is served over HTTP: metrics, health, the jobs as a page and as JSON."""
