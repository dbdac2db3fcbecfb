"""Where it runs: `supervisor up` on one machine, and files for systemd, Compose and Kubernetes."""
