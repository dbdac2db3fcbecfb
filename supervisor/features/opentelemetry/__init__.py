"""OpenTelemetry: beat reports counters of runs, and workers report traces and durations."""
