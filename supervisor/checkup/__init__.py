"""What `supervisor doctor` looks at: facts are read once, each check is a function of them."""
