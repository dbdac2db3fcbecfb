"""Apps of strangers: settings and patterns of real projects, with and without our one line."""
