"""Foreign apps: settings and patterns of real projects, with and without our one line."""
