"""What loading the schedule files would change, and what that leads to: seen beforehand."""
