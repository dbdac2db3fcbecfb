"""The app `supervisor.django`: its name for INSTALLED_APPS, and nothing else."""
