"""Check-ins of runs at Sentry Crons, and messages that begin traces of their own."""
