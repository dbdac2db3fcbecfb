"""OpenTelemetry: traces of runs, and how long their attempts take."""
