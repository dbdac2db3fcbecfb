"""What the ledger knows, for people and for programs: words, tables, JSON shapes."""
