"""Check-ins of runs at Sentry Crons."""
