"""Ways to run it: `supervisor up` on one machine; files for systemd, Compose and Helm."""
