"""What operators do and ask: control, `why`, `doctor`, imports; their output as text and JSON."""
