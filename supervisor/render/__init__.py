"""Deployments from schedule files: queues and workers -> systemd units, Compose, Kubernetes."""
