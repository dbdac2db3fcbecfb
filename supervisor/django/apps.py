"""Leads Django to the app, whose code is in supervisor/integrations/django."""

from __future__ import annotations

from supervisor.integrations.django.apps import SupervisorConfig

__all__ = ["SupervisorConfig"]
