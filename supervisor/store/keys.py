"""Every key we write: this file is the schema. `%s` is the name that the key is about.

The functions get the same table as a Lua local `K`, so that a key is spelled in one place.
Functions reach keys that they find while they run (the next waiting run); the ledger therefore
lives on one primary, with or without Sentinel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from supervisor.settings import Settings


class Template:
    def __init__(self, template: str) -> None:
        self.template = template


class Single(Template):
    """One key: ``keys.jobs``; made once, and from then on an attribute of `keys`."""

    def __set_name__(self, _: type[Keys], name: str) -> None:
        self.name = name

    def __get__(self, keys: Keys, _: type[Keys]) -> str:
        key = vars(keys)[self.name] = f"{keys.prefix}:{self.template}"
        return key


class Named(Template):
    """A key for each name: ``keys.run(run_id)``."""

    def __get__(self, keys: Keys, _: type[Keys]) -> Callable[[str], str]:
        return lambda name: f"{keys.prefix}:{self.template % name}"


class Keys:
    """The keys under one prefix."""

    # STRING  number of the schema that the ledger is written in, see ledger/limits.py
    schema = Single("schema")
    # STRING  owner token of the run that holds the lock; always with a time to live:
    #         start_deadline while the run is queued, lease_ttl while it runs.
    #         This is slot 1; further slots (`max_running`) are "lock:{%s}:2", "lock:{%s}:3" ...,
    #         and those of runs without a bound go on from MOST_RUNNING + 1
    lock = Named("lock:{%s}")
    # HASH    holder:<slot> (run id), fence (last fencing token), skips:<job> (runs of the job that
    #         were skipped under this lock since one began), slots (how many were taken by runs
    #         without a bound), given_up (a line "<token> <run id>" for each attempt that was, and
    #         that has no successor yet, up to ATTEMPTS_KEPT), failed_at (ms at which rescue last
    #         failed to promote a run that waits for the lock), began:<slot> ("<fencing token> <run
    #         id>" of the run that began there last), seen:<token> (that the overlap of an attempt
    #         without a record is counted); expires HISTORY_TTL after use
    lock_state = Named("lock:{%s}:state")
    # ZSET    run id -> order of arrival, negative for those that replace the holder; runs that wait
    #         for the lock; goes when empty
    waiting = Named("lock:{%s}:waiting")
    # HASH    one run, fields as in ledger/run_record.py; expires HISTORY_TTL after the run ended
    #         attempts: those that ended, the last ATTEMPTS_KEPT of them, one JSON object a line;
    #         rules: JSON of RunRules without the lock, which is a field of its own; of a run that
    #         has ended what is shown with it (base.lua), if there is anything
    #         progress_done, _total (empty without one), _text, _at in ms, _attempt: how far that
    #         attempt said it is; reported: "<attempt>:<number>" of the last report that was written
    #         lost:<token>: of an attempt that was given up, empty, or "<microseconds> <run id>" of
    #         the begin of its successor, or "reported"; seen:<token>: until when their overlap is
    #         counted
    #         succeeds:<attempt>:<lock>: whose successor that attempt is, lines as in given_up
    #         duplicates: how often a second tick or message of it was dropped; obstacle: JSON
    #         of what kept it from starting (job/run.py), until it begins; content: of a step, and
    #         of a run whose message was made before an edit of its job; said: what its message says
    #         (job/content.py), if the app's own code changed it; note: of the pause
    #         repeats: the run that it repeats; repeated_by: a line for each run that repeats it
    #         began_with: params (JSON, as in the hash of them) before a step returned some, empty
    #         if they were too large to be kept
    #         waits_for_others: until other runs end; after, after_policy: the run that it was
    #         to follow, and how that had to end; followed_by: a line "<policy> <run id>" for each
    #         of those that follow it
    run = Named("run:%s")
    # SET     ids of the steps of a run, or of the items of a batch, that are open
    below = Named("run:%s:below")
    # HASH    name -> JSON; the params of a run of several steps, as its present stage found them;
    #         expires HISTORY_TTL after the run ended
    params = Named("run:%s:params")
    # LIST    the items of a batch (JSON); goes when the batch ends
    items = Named("run:%s:items")
    # STRING  a letter for each item of a batch, "." while it has not ended; expires likewise
    states = Named("run:%s:states")
    # SET     numbers of the items of a batch that have a record, because they ended badly; likewise
    kept = Named("run:%s:kept")
    # STREAM  at (ms), attempt, number (1 for the attempt's first line), text, step; the newest
    #         LINES_KEPT lines of a run's log, of all attempts and steps; expires HISTORY_TTL after
    #         the last line, or after the run ended
    log = Named("run:%s:log")
    # HASH    step ('' for the run itself) -> JSON: how its last failed attempt ended (attempt, at
    #         in ms, text); of up to MOST_TRACEBACKS steps and items; expires HISTORY_TTL after
    #         the last of them was written
    tracebacks = Named("run:%s:tracebacks")
    # HASH    one job: counters ("n:..."), histogram buckets ("h:..."), instants in ms (created:
    #         since when it counts, loaded: when its times were last edited), watermark, paused;
    #         removed: the spec (JSON) of a job that is not loaded any more;
    #         apart: why Celery has to make the message of each run;
    #         dealt_until: the watermark before the server's clock was set back;
    #         restored: nominal times after the watermark whose runs their workers restored;
    #         troubled: no success since a problem was reported; observed:<event>: what
    #         beat observed last (observe.lua); expires HISTORY_TTL after the job is removed
    job = Named("job:%s")
    # LIST    "<ms> <spec>" (JSON); what the job was until then, before each of its last FORMER_KEPT
    #         edits of what its messages say; expires likewise
    former = Named("job:%s:former")
    # LIST    ids of the last RUNS_WITH_PARAMS runs of several steps that failed, newest first; they
    #         keep their large params; expires HISTORY_TTL after the last of them ended
    with_params = Named("job:%s:with_params")
    # STRING  what messages of the job say (job/content.py), a line for each of its last
    #         CONTENTS_KEPT versions; expires likewise
    content = Named("job:%s:content")
    # HASH    the messages of the job's runs, made once by Celery for all of them, as in
    #         sending/templates.py: queue:<step>, list:<step>, text:<step> ("text:" for a job of
    #         one task), and for:<step>, a line each of the lock (of a step: digest of its plan) and
    #         the rules (JSON) of its runs. Goes when the job is edited or removed
    message = Named("job:%s:message")
    # SET     ids of the job's runs that have not ended
    open = Named("job:%s:open")
    # ZSET    run id -> time of admission in ms; the last `history` runs of a job
    history = Named("job:%s:history")
    # STRING  how the job's runs ended on each day of a year, in 3 KB
    #         (features/days/outcomes.lua); expires with the job's hash
    outcomes = Named("job:%s:outcomes")
    # SET     names of the jobs that follow this one, as they are loaded
    followers = Named("job:%s:followers")
    # HASH    what a job that follows others knows of their runs (features/following/rule.py):
    #         nominal time in ms, or "latest", -> JSON; "waiting:<run id>" -> nominal time in ms of
    #         a waiting tick
    following = Named("job:%s:following")
    # LIST    JSON, as in features/following/store.py; ends of runs that others follow, and runs
    #         that wait for such ends, which the leading beat deals with in order
    endings = Single("index:endings")
    # HASH    job name -> JobSpec as JSON; the jobs that are loaded
    jobs = Single("jobs")
    # HASH    job name -> "<source> <version> <place>"; where each loaded job is from
    sources = Single("sources")
    # HASH    job name -> name of its entry in RedBeat's schedule; only of jobs that are made of
    #         entries whose names they could not have
    entries = Single("entries")
    # ZSET    job -> version; the newest EDITS_KEPT jobs that were loaded, edited or removed
    edited = Single("index:edited")
    # ZSET    job -> ms at which it was removed; goes with the job's hash, which has its last spec
    removed = Single("index:removed")
    # HASH    task name -> GuardedTaskSpec as JSON; tasks that are guarded by their own code
    guarded = Single("guarded")
    # HASH    "<queue> <prefix> of <owner>" -> ms at which a message of that other ledger last came
    #         by this queue; expires SHARED_KEPT after the last one
    shared_queues = Single("shared_queues")
    # HASH    queue -> ms since which no run of it may begin
    drained = Single("drained")
    # ZSET    run id -> ms from which beat may publish it; runs that are queued and not yet sent;
    #         +inf while their queue is drained
    outbox = Single("index:outbox")
    # ZSET    run id -> ms at which its lock, or its time to wait for one, runs out
    leases = Single("index:leases")
    # ZSET    run id -> ms at which a re-queue or a retry is due
    delayed = Single("index:delayed")
    # ZSET    destination -> ms at which it is tried next; "<kind> <name>", as in
    #         features/outbound/store.py
    outbound = Single("index:outbound")
    # ZSET    destination -> ms at which its oldest entry was due
    unsent = Single("index:unsent")
    # LIST    JSON, as in features/outbound/store.py; what waits for one destination, `%s`, in
    #         order; or
    # HASH    of notices: id -> JSON, the last word of an id is when it is due in ms; and latest
    #         (JSON, group -> ms when its latest was due); expires GROUPS_KEPT after the last one
    to_send = Named("outbound:%s")
    # HASH    "sent:<kind>", "dropped:<kind>" -> how many, with the events beyond MOST_EVENTS
    outbound_counts = Single("outbound_counts")
    # LIST    JSON, as in features/notices/store.py; what happened to jobs with `notify`, of which
    #         the leading beat is to make notices, the newest MOST_EVENTS
    events = Single("index:events")
    # HASH    "<digest> <job>" -> JSON, as in features/notices/incidents.py: what is known there of
    #         the job
    incidents = Single("incidents")
    # ZSET    the same -> ms at which beat is to check it again
    incidents_due = Single("index:incidents")
    # HASH    id -> when it ends in ms, a blank, and JSON (features/notices/silences.py)
    silences = Single("silences")
    # HASH    "<quarter of an hour> <failed, skipped or missed>" -> how many, of all jobs; `%s` and
    #         the quarter count from 1970, in UTC; expires COUNTS_OF_DAYS_KEPT after the first
    day = Named("day:%s")
    # HASH    date -> JSON (features/summary/rule.py); the newest SUMMARIES_KEPT days, summed up
    days = Single("days")
    # SET     loaded jobs with `notify`
    watched = Single("watched")
    # ZSET    run id -> ms of the last publish; runs that were sent and have not begun
    sent = Single("index:sent")
    # SET     queues in which messages of runs that ended before they began may lie
    leftovers = Single("leftovers")
    # ZSET    job -> ms at which its pause ends by itself
    pauses = Single("index:pauses")
    # SET     locks with a waiting list; rescue looks whether they are held
    contended = Single("index:contended")
    # HASH    run_id of the server process that answers, and since when in ms it does; polled_at:
    #         when a beat last polled, in ms; grace_until: the ms before which no running run is
    #         given up
    server = Single("server")
    # HASH    beat: leader, last_tick and last_reload in ms, last_reload_successful, problems
    #         (JSON), config (digest of the loaded files), files (version with which they were
    #         loaded), version (the newest of a job), at_run_time (how many loaded jobs are not of
    #         files), source:NAME (fingerprint of a source as it was last loaded), follows (digest
    #         of the schedule files that the leader loads, empty when it has none), leader_changes
    #         (how often it was another), clock_set_backs (how often the server's clock was),
    #         _back_at in ms, _back_ms, app (the name of the app whose ledger it is), refused (app
    #         and name of the last beat of another app), refused_at in ms, starting (when the
    #         service started, in ms, while its jobs are still to have their runs of that start),
    #         troubled and observed:<event> as of a job, actions_logged (id of the last action
    #         that a server has logged)
    beat = Single("beat")
    # STREAM  at (ms), entry (JSON, as in ledger/actions.py), result (the first word of what the
    #         ledger's function answered); who did what, about the newest ACTIONS_KEPT
    actions = Single("actions")
    # STRING  what a worker or a beat says of itself (JSON, as in ledger/presence.py); `%s` is a
    #         fresh id of the process; expires PRESENCE_TTL after it was last said
    presence = Named("presence:%s")
    # ZSET    "<kind>|<id>|<name>" -> ms at which the process last said so; stays LAST_SEEN_KEPT, or
    #         goes when it stops
    present = Single("index:present")
    # STRING  names of tasks (JSON list); `%s` is their digest; expires TASKS_TTL after a worker
    #         last said that it knows them
    tasks = Named("tasks:%s")
    # STRING  the key that signs sessions of the page, see web/sessions.py; random, stays
    session_key = Single("session:key")
    # STRING  1: the session of this id was logged out; expires SESSION_TTL after that
    session_ended = Named("session:ended:%s")
    # LIST    "<from> <until>" in ms; the newest ABSENCES_KEPT times in which no beat led
    away = Single("beat:away")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.prefix)

    def lua(self, *names: str) -> str:
        """The table in Lua, with these names or with all: ``K.run(id)``."""
        return "local K = {}\n" + "".join(map(self._lua, names or TEMPLATES))

    def _lua(self, name: str) -> str:
        head, mark, tail = TEMPLATES[name].partition("%s")
        if not mark:
            return f"K.{name} = '{self.prefix}:{head}'\n"
        return f"function K.{name}(x) return '{self.prefix}:{head}' .. x .. '{tail}' end\n"


TEMPLATES = {name: it.template for name, it in vars(Keys).items() if isinstance(it, Template)}
