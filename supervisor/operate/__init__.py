"""What people ask and do: control, `why`, `doctor`, imports, shapes and tables."""
