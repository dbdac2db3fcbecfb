"""What OpenTelemetry is told: counters of runs by beat, and traces and durations where runs are."""
