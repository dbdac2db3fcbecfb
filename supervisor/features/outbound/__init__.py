"""What is sent to other servers."""
