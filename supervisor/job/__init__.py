"""What a job is: its keys and their types, the rules and names that follow from them."""
