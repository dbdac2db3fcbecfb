"""What people ask and do: control, `why`, `doctor`, imports, and their output as text and JSON."""
