"""What went wrong on a day, beside the day before: on the page, and as a notice."""
